"""Scorer that uses users' ratings. It applies to logged answers only, because new answers have no ratings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.contracts.data.records import FeedbackKind, Tier
from ratchet.contracts.model import Frozen
from ratchet.rewards.options import check_options


class UserFeedbackOptions(Frozen):
    """Options of `UserFeedback`, which has none."""


class UserFeedback:
    """Mean of the latest ratings of all raters, each in [0, 1]. Abstains without ratings."""

    name = "user_feedback"
    tier = Tier.FEEDBACK
    needs = frozenset({"feedback"})

    def __init__(self, **options: Any) -> None:
        check_options(self.name, UserFeedbackOptions, options)

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Return the mean rating of each sample, or None without ratings."""
        return [_mean(ratings(sample.get("feedback") or ())) for sample in samples]


def ratings(feedback: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the values of all ratings in the feedback on one answer."""
    return [float(item["value"]) for item in feedback if item["kind"] == FeedbackKind.RATING and item["value"] is not None]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
