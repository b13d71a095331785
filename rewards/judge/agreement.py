"""Agreement of a judge with people's labels: the area under the ROC curve, with an interval. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

LEVEL_Z = 1.959963984540054
"""Two-sided normal quantile for confidence level 0.95."""


class Agreement(NamedTuple):
    """Probability that a right answer is ranked above a wrong one, with an interval at level 0.95."""

    estimate: float
    low: float
    high: float


def agreement(right: Sequence[float], wrong: Sequence[float]) -> Agreement:
    """Return the agreement from the scores of right and of wrong answers. Equal scores count half. Both must not be empty.

    The interval is that of Newcombe (2006, method 5), which inverts the variance of Hanley and McNeil (1982). It also has a width if the
    judge ranks every pair right.
    """
    pairs = len(right) * len(wrong)
    wins = sum((r > w) + 0.5 * (r == w) for r in right for w in wrong)
    estimate = wins / pairs
    mean = (len(right) + len(wrong)) / 2 - 1

    def outside(theta: float) -> bool:
        spread = theta * (1 - theta) * (1 + mean * (1 - theta) / (2 - theta) + mean * theta / (1 + theta)) / pairs
        return abs(estimate - theta) > LEVEL_Z * math.sqrt(max(0.0, spread))

    return Agreement(estimate, _bound(0.0, estimate, outside), _bound(1.0, estimate, outside))


def _bound(far: float, near: float, outside: object) -> float:
    """Return the last value between `near`, which is inside the interval, and `far`."""
    assert callable(outside)
    if not outside(far + (1e-12 if far == 0.0 else -1e-12)):
        return far
    for _ in range(60):
        middle = (far + near) / 2
        far, near = (middle, near) if outside(middle) else (far, middle)
    return near


def upper_bound(hits: int, n: int) -> float:
    """Return the one-sided upper bound at level 0.95 of a share that was `hits` of `n` (Clopper and Pearson)."""
    if hits >= n:
        return 1.0
    low, high = hits / n, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(hits, n, middle) > 0.05 else (low, middle)
    return high


def _at_most(hits: int, n: int, share: float) -> float:
    """Return the probability of at most `hits` of `n` if the share is `share`."""
    logs = [
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(share) + (n - k) * math.log1p(-share)
        for k in range(hits + 1)
    ]
    return math.fsum(math.exp(value) for value in logs)
