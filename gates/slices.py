"""Compares the slices of an evaluation with each other: a slice that loses while the others gain is found, noise in many slices is not.

Each estimate is compared with the mean of the other slices, and the probability that any slice is found by chance is limited over all
slices together. A threshold on each estimate alone would find a loss in most evaluations: with ten slices of 25 prompts it held 58 % of the
candidates that were better by 0.05 in every slice (`benchmarks/gate_decisions.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ratchet.contracts.evaluation import Comparison
from ratchet.gates.statistics import deviation_of, normal_quantile

FAMILY_ERROR = 0.046
"""Probability that a candidate with the same difference in all slices has a slice found by `losing`. Rewards have few
values, so the share in simulations is a little higher: at most 0.05 with 10 or 40 slices of 25 prompts."""
OWN_WEIGHT = 0.25
"""Weight of a slice's own variance; the rest is the variance within the other slices. The variance of few prompts is itself uncertain, and
slices differ in theirs. In simulations, the family error with this weight is at most 0.13 if half of the slices have six times the
variance of the others. A higher weight misses more losses."""


def losing(slices: Sequence[Comparison], margin: float) -> list[Comparison]:
    """Return the slices whose estimated loss exceeds `margin` and is greater than chance explains, the largest loss first.

    A slice is compared with the mean of all other slices, with the normal distribution and Bonferroni's correction for the number of
    slices. A single slice is compared with no difference.
    """
    critical = normal_quantile(1 - FAMILY_ERROR / max(1, len(slices)))
    found = [one for one in slices if one.difference.estimate < -margin and _distance(one, slices) < -critical]
    return sorted(found, key=lambda one: one.difference.estimate)


def _distance(one: Comparison, slices: Sequence[Comparison]) -> float:
    """Return the difference of a slice from the others in standard errors."""
    others = [other for other in slices if other is not one]
    count = sum(other.n for other in others)
    own = deviation_of(one.difference) ** 2
    if not others:
        return one.difference.estimate / math.sqrt(own / one.n)
    mean = sum(other.n * other.difference.estimate for other in others) / count
    within = sum(other.n * deviation_of(other.difference) ** 2 for other in others) / count
    variance = OWN_WEIGHT * own + (1 - OWN_WEIGHT) * within
    return (one.difference.estimate - mean) / math.sqrt(variance * (1 / one.n + 1 / count))
