"""Scorer of the response time of a logged answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, model_validator

from ratchet.contracts.data.records import Tier
from ratchet.contracts.model import Frozen
from ratchet.rewards.options import check_options


class LatencyOptions(Frozen):
    """Options of the scorer `Latency`."""

    good_ms: float = Field(gt=0)
    """Latency in milliseconds up to which the score is 1."""
    bad_ms: float = Field(gt=0)
    """Latency in milliseconds from which on the score is 0. Between the two, the score falls in proportion."""

    @model_validator(mode="after")
    def _in_order(self) -> LatencyOptions:
        if self.bad_ms <= self.good_ms:
            raise ValueError(f"bad_ms must be greater than good_ms = {self.good_ms:g}")
        return self


class Latency:
    """Score the response time of a logged answer, from 1 (fast) to 0 (slow). Abstain if the trace has no latency.

    It changes a reward only where another scorer of its tier gives a score too, because a fast answer is not a right one. Its tier in the
    loop file is that of this other scorer. It scores no new answers: the gate and the rollout measure latency themselves.
    """

    name = "latency"
    tier = Tier.JUDGE
    needs = frozenset({"trace"})
    alone = False

    def __init__(self, **options: Any) -> None:
        self.options = check_options(self.name, LatencyOptions, options)

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Score the latency of each trace."""
        return [self._score((sample.get("trace") or {}).get("latency_ms")) for sample in samples]

    def _score(self, latency: float | None) -> float | None:
        if latency is None:
            return None
        good, bad = self.options.good_ms, self.options.bad_ms
        return min(1.0, max(0.0, (bad - latency) / (bad - good)))
