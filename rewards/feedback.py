"""The scorer that passes on what people said about one answer. It adds to labels only: nobody has rated an unseen answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contracts.model import Frozen
from contracts.records import FeedbackKind, Tier
from rewards.options import check_options


class UserFeedbackOptions(Frozen):
    """UserFeedback has no options."""


class UserFeedback:
    """Mean of the raters' latest ratings, each in [0, 1]; abstains where nobody rated."""

    name = "user_feedback"
    tier = Tier.FEEDBACK
    needs = frozenset({"feedback"})

    def __init__(self, **options: Any) -> None:
        check_options(self.name, UserFeedbackOptions, options)

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        return [_mean(ratings(sample.get("feedback") or ())) for sample in samples]


def ratings(feedback: Sequence[Mapping[str, Any]]) -> list[float]:
    """The values of the ratings among one answer's feedback."""
    return [float(item["value"]) for item in feedback if item["kind"] == FeedbackKind.RATING and item["value"] is not None]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
