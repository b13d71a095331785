"""Sampler: the rows of a run and their order, drawn once for the whole run from the weights and the seed.

The weight of a row is 1 - 2 * P(label is wrong). Rows are sampled in proportion to their weights, because the losses of the
library have no weight per row. The expected gradient is the same. A single order for the whole run makes a resume exact.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from ratchet.contracts.errors import Permanent


def draw(weights: Sequence[float], n: int, seed: int) -> list[int]:
    """Return `n` row indices, in expectation in proportion to `weights`. Equal weights give ordinary epochs.

    The indices are drawn in rounds. In each round, a row is drawn at most once, with probability weight / largest weight. This is
    systematic resampling: one random offset, then equal steps along the cumulative weights. Each round is shuffled.
    Raises Permanent if a weight is not a finite non-negative number, or none is positive.
    """
    for number, given in enumerate(weights):
        weight(given, f"row {number}")
    if not weights or max(weights) <= 0:
        raise Permanent("no row has a positive weight, so the labels carry no information; collect more feedback or corrections")
    chance = random.Random(seed)
    drawn: list[int] = []
    while len(drawn) < n:
        drawn += _round(weights, chance)
    return drawn[:n]


def weight(given: Any, row: str) -> float:
    """Return the weight `given` for `row`, which is its name in messages.

    Raises Permanent if it is not a finite number >= 0. With NaN, `draw` would never end, because no comparison holds and every
    round stays empty.
    """
    if not isinstance(given, int | float) or not math.isfinite(given) or given < 0:
        raise Permanent(f"{row}: its weight is {given}; a weight is 1 - 2 * P(wrong), a number from 0 to 1; rebuild the training set")
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
    """Return a torch sampler over the `n` indices of `draw`."""
    from torch.utils.data import Sampler

    class Drawn(Sampler[int]):
        def __init__(self) -> None:
            self.order = draw(weights, n, seed)

        def __len__(self) -> int:
            return len(self.order)

        def __iter__(self) -> Iterator[int]:
            return iter(self.order)

    return Drawn()
