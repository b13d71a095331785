"""Forecast of a rollout: the smallest margin that the ratings of a line can decide, and the time for `rollout.margin`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ratchet.contracts.loop import RolloutSettings
from ratchet.contracts.mirror import MIRROR_PAIRS
from ratchet.gates.sequential import MOST_RATINGS
from ratchet.gates.statistics import normal_share

_POWER = 0.8
"""Probability of the decision if both versions are equal."""
_LONGEST = 16.0
"""Largest multiple of the observed time for which a forecast is given."""


@dataclass(frozen=True)
class Forecast:
    """What the ratings of a line decide within a time."""

    people: int
    """Number of users who rated."""
    effective: float
    """Effective number of raters of the version that has fewer."""
    ratings: float
    margin: float
    """Smallest margin that is decided with probability 0.8 if both versions are equal."""
    enough_people: bool
    """Whether there are `rollout.min_people` effective raters. Without them, nothing is ever decided."""


def forecast(settings: RolloutSettings, rated: Sequence[tuple[int, float]], times: float = 1.0) -> Forecast | None:
    """Forecast the step that decides, from (number of ratings, sum) per user of an earlier time. None for fewer than two users.

    `times` is the length of the step as a multiple of that time. More time brings more ratings of the same users.
    """
    if len(rated) < 2:
        return None
    share = deciding_share(settings)
    counts, sums = (np.array(column, dtype=float) for column in zip(*rated, strict=True))
    counts, sums = counts * times, sums * times
    factor = np.minimum(1.0, MOST_RATINGS / counts)
    sizes = counts * factor
    total = float(sizes.sum())
    effective = total**2 / float((sizes**2).sum())
    mean = (float((sums * factor).sum()) / total * effective + 0.5) / (effective + 1)
    variance = mean * (1 - mean) * float((sizes * factor).sum()) / total**2
    if settings.unit == "user":  # people are compared with others
        variance = max(variance, float((((sums - mean * counts) * factor / (total - sizes)) ** 2).sum()))
        effective *= min(share, 1 - share)
    margin = math.sqrt(information(settings) * variance / (share * (1 - share)))
    return Forecast(len(rated), effective, float(counts.sum()), margin, effective >= settings.min_people)


def time_needed(settings: RolloutSettings, rated: Sequence[tuple[int, float]]) -> float | None:
    """Return the multiple of the observed time after which `rollout.margin` is decided, or None if 16 times are not enough."""
    times = 0.05
    while times <= _LONGEST:
        found = forecast(settings, rated, times)
        if found is not None and found.enough_people and found.margin <= settings.margin:
            return times
        times *= 1.1
    return None


def ratings_needed(settings: RolloutSettings) -> int:
    """Return the number of ratings that decide `rollout.margin` if each is of another user, and half of them are good."""
    share = deciding_share(settings)
    return math.ceil(information(settings) * 0.25 / (share * (1 - share)) / settings.margin**2)


def pairs_needed(settings: RolloutSettings, deviation: float, people: int) -> int:
    """Return the number of mirrored pairs that decide `rollout.margin` with probability 0.8 if both versions are equal.

    `deviation` is the standard deviation of the difference of the two rewards of a pair, `people` the number of people with equally many
    pairs. The test uses the larger one of two estimates of the variance (`ratchet.gates.sequential.mirrored_difference`). The estimate that
    is clustered by person has the relative standard error e = sqrt(2 / (people - 1)). The mean of the larger estimate is therefore about 1
    + 0.4 * e times the true variance.
    """
    larger = 1 + 0.4 * math.sqrt(2 / max(1, people - 1))
    variance = max(deviation**2 * larger, settings.margin)
    return max(MIRROR_PAIRS, math.ceil(information(settings) * variance / settings.margin**2))


def deciding_share(settings: RolloutSettings) -> float:
    """Return the share of the sessions that the candidate gets at the step that decides: the largest weight below 100."""
    below = [weight for weight in settings.steps if weight < 100]
    return (below[-1] if below else min(100 - settings.holdback, 99.9)) / 100


def information(settings: RolloutSettings) -> float:
    """Return the squared margin in units of the variance with which equal versions are decided with probability 0.8.

    The evidence is a Brownian motion with a drift of a half and a variance of 1 per unit. The function inverts the probability that it
    reaches log(1 / beta).
    """
    limit = math.log(1 / settings.beta)

    def reached(size: float) -> float:
        root = math.sqrt(size)
        return normal_share((size / 2 - limit) / root) + math.exp(limit) * normal_share((-limit - size / 2) / root)

    low, high = 0.01, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if reached(middle) < _POWER else (low, middle)
    return high
