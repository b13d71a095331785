"""Rewards for answers as they are written, by a panel whose scorers may be away for a while. It knows no library."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from contracts.data import Label
from contracts.errors import Retryable

PAUSES = (1.0, 5.0, 25.0)
"""Seconds before each further try where every scorer abstained."""


def comparable(groups: Sequence[Hashable], labels: Sequence[Label]) -> list[float | None]:
    """Rewards, with None for every answer that other scorers decided than most of its group: where one of two judges is away for it, what
    the other says is no measure beside what both say."""
    counts = Counter((group, label.deciding) for group, label in zip(groups, labels, strict=True) if label.reward is not None)
    most: dict[Hashable, frozenset[str]] = {}
    for (group, own), n in counts.items():
        if group not in most or (n, len(own)) > (counts[group, most[group]], len(most[group])):
            most[group] = own
    return [label.reward if most.get(group) == label.deciding else None for group, label in zip(groups, labels, strict=True)]


def scored(score: Callable[[Sequence[Mapping[str, Any]]], list[float | None]], samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """One reward per sample, None for an abstention. Retryable where everything abstained in every try: training on nothing would look
    like training."""
    for pause in PAUSES:
        found = score(samples)
        if any(reward is not None for reward in found) or not samples:
            return found
        time.sleep(pause)
    found = score(samples)
    if all(reward is None for reward in found):
        raise Retryable(
            f"every scorer abstained on all {len(samples)} answers of a step, {len(PAUSES) + 1} times; look at the scorers' log"
        )
    return found
