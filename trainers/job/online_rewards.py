"""Rewards for new answers from a scorer set, with retries while scorers are unavailable. Does not depend on a training library."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from ratchet.contracts.data.datasets import Label
from ratchet.contracts.errors import Retryable

PAUSES = (1.0, 5.0, 25.0)
"""Seconds to wait before each retry if every scorer abstained."""


def comparable(groups: Sequence[Hashable], labels: Sequence[Label]) -> list[float | None]:
    """Return the rewards, with None for each answer that was not decided by the same scorers as most answers of its group.

    For example, if one of two judges is unavailable for an answer, the score of the other judge is not comparable with scores of both.
    `groups` and `labels` have one entry per answer.
    """
    counts = Counter((group, label.deciding) for group, label in zip(groups, labels, strict=True) if label.reward is not None)
    most: dict[Hashable, frozenset[str]] = {}
    for (group, own), n in counts.items():
        if group not in most or (n, len(own)) > (counts[group, most[group]], len(most[group])):
            most[group] = own
    return [label.reward if most.get(group) == label.deciding else None for group, label in zip(groups, labels, strict=True)]


def scored(score: Callable[[Sequence[Mapping[str, Any]]], list[float | None]], samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """Return one reward per sample, None for an abstention.

    `score` maps samples to rewards. Raises Retryable if all rewards are None in every try. Without the error, the run would continue
    without any training signal.
    """
    for pause in PAUSES:
        found = score(samples)
        if any(reward is not None for reward in found) or not samples:
            return found
        time.sleep(pause)
    found = score(samples)
    if all(reward is None for reward in found):
        raise Retryable(
            f"every scorer abstained on all {len(samples)} answers of a step in {len(PAUSES) + 1} tries; check the scorers' log"
        )
    return found
