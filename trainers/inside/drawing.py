"""Which rows a run meets, and in which order: drawn once, from the weights and the seed, for the whole run.

A row's weight is 1 - 2 * probability that its label is wrong. The library's losses take no weight per row, so a row is
drawn as often as its weight says: in expectation the same gradient. One order for the whole run makes resume exact.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from contracts.errors import Permanent


def draw(weights: Sequence[float], n: int, seed: int) -> list[int]:
    """`n` indices of rows, in expectation in proportion to `weights`. Equal weights give ordinary epochs.

    Round by round: in each, a row is drawn at most once, with probability weight / largest weight (systematic
    resampling: one random offset, then equal steps along the summed weights), and the round is shuffled.
    Permanent where a weight is no number, or none is positive.
    """
    for number, given in enumerate(weights):
        weight(given, f"row {number}")
    if not weights or max(weights) <= 0:
        raise Permanent("no row has a positive weight: the labels are noise; collect more feedback or corrections")
    chance = random.Random(seed)
    drawn: list[int] = []
    while len(drawn) < n:
        drawn += _round(weights, chance)
    return drawn[:n]


def weight(given: Any, row: str) -> float:
    """The weight that a row names. Permanent, naming the row, where it is no finite number from 0 up: NaN is larger than nothing, so a
    round would never draw anything, for ever."""
    if not isinstance(given, int | float) or not math.isfinite(given) or given < 0:
        raise Permanent(f"{row}: its weight is {given}; a weight is 1 - 2 * P(wrong), a number from 0 to 1: make the training set anew")
    return float(given)


def _round(weights: Sequence[float], chance: random.Random) -> list[int]:
    step = max(weights)
    at, reached, picked = chance.random() * step, 0.0, []
    for index, weight in enumerate(weights):
        reached += weight
        if at < reached:
            picked.append(index)
            at += step
    chance.shuffle(picked)
    return picked


def drawn(weights: Sequence[float], n: int, seed: int) -> Any:
    """A torch sampler over that order."""
    from torch.utils.data import Sampler

    class Drawn(Sampler[int]):
        def __init__(self) -> None:
            self.order = draw(weights, n, seed)

        def __len__(self) -> int:
            return len(self.order)

        def __iter__(self) -> Iterator[int]:
            return iter(self.order)

    return Drawn()
