"""Ports of the scorers: one scorer, and the scorer set of a loop file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ratchet.contracts.data.beliefs import JudgeBelief
from ratchet.contracts.data.datasets import Label, ScorerVersion
from ratchet.contracts.data.records import Tier


class RewardFunction(Protocol):
    """Scorer of answers. Labelling, GRPO, the probe and the gate use the same implementation."""

    name: str
    """Entry point name of the scorer."""
    tier: Tier
    """Default tier of the scorer."""
    needs: frozenset[str]
    """Sample keys that the scorer reads: a subset of {prompt, answer, reference, feedback, trace}."""

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Return one score in [0, 1] per sample, in order. None is an abstention, also used for infrastructure failures.

        A sample has at least the keys in `needs`. `prompt` is a list of messages. `answer` is text, or the JSON of a message
        that calls tools (contracts/conversation.py). `reference` is text. `feedback`
        is a list of {kind, value, text, rater, time} with the latest item per rater and kind. `trace` has latency_ms, input_tokens,
        output_tokens and model, each of which may be None. Only logged answers have `feedback` and `trace`.

        A scorer with an attribute `alone = False` counts only where another scorer of its tier gives a score. One with `in_jobs = False` is
        not used in training jobs.
        """


class Rewards(Protocol):
    """Scorer set of a loop file, with tiers and weights (rewards/scorer_set.py)."""

    versions: tuple[ScorerVersion, ...]
    """Identity, tier and weight of each scorer."""

    def unseen(self) -> bool:
        """Return whether some scorer needs at most prompt, answer and reference."""

    def for_jobs(self) -> tuple[ScorerVersion, ...]:
        """Return the scorers of new answers that a training job uses now. Of the judges, these are the believed ones with `in_jobs`."""
        ...

    def label_unseen(self, samples: Sequence[Mapping[str, Any]]) -> list[Label]:
        """Label new answers, for which only prompt, answer and reference are known."""
        ...

    def beliefs(self) -> tuple[JudgeBelief, ...]:
        """Return for each judge whether it is believed, as measured last. A judge that was never measured is absent."""
        ...

    def prefer(self, samples: Sequence[Mapping[str, Any]], others: Sequence[str]) -> list[float | None]:
        """Let the judges compare each new answer with another answer to the same prompt: 1 better, 0 worse, 0.5 a tie, None no verdict."""

    def declined(self, samples: Sequence[Mapping[str, Any]]) -> list[bool | None]:
        """Let the judges say of each new answer whether it declines the request. None: no verdict."""
