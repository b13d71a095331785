"""Intervals: paired ones for the gate, and confidence sequences, which stay valid however often one looks, for the rollout."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import special  # not scipy.stats: it takes a second to import, and every command would pay

from contracts.evaluation import Interval


def paired_interval(differences: Sequence[float], level: float) -> Interval | None:
    """Mean of per-prompt differences with a two-sided Student interval; None for fewer than two.

    Where all differences are equal the sample variance says nothing; then the half-width is that of an event unseen in n
    trials, 1 - (1 - level)^(1/n) ("rule of three"), so that no interval is narrower than its n allows.
    """
    n = len(differences)
    if n < 2:
        return None
    values = np.asarray(differences, dtype=float)
    mean, error = float(values.mean()), float(values.std(ddof=1) / math.sqrt(n))
    half = float(special.stdtrit(n - 1, (1 + level) / 2)) * error
    half = max(half, 1 - (1 - level) ** (1 / n)) if error == 0 else half
    return Interval(estimate=mean, low=mean - half, high=mean + half, level=level, n=n)


def clustered_mean(clusters: Sequence[tuple[int, float]]) -> tuple[float, float, int] | None:
    """(mean, its variance, clusters) over clusters of (items, sum), each counted once by its own mean; None for fewer than two.

    Whoever rates a thousand times weighs no more than whoever rates once. The variance is that between people's means, and at
    least what ratings of [0, 1] leave open within people (binomial, smoothed by one half person on either side), so that a
    few unanimous raters do not look certain.
    """
    kept = [(n, total) for n, total in clusters if n > 0]
    count = len(kept)
    if count < 2:
        return None
    sizes, means = np.array([n for n, _ in kept], dtype=float), np.array([total / n for n, total in kept], dtype=float)
    smoothed = (float(means.sum()) + 0.5) / (count + 1)
    floor = smoothed * (1 - smoothed) * float((1 / sizes).mean()) / count
    return float(means.mean()), max(float(means.var(ddof=1)) / count, floor), count


def sequence_factor(t: float, alpha: float, tightest_at: float) -> float:
    """Half-width, in standard errors, of an asymptotic confidence sequence after t observations.

    Waudby-Smith, Arbour, Sinha, Kennedy, Ramdas: Time-uniform central limit theory and asymptotic confidence sequences,
    theorem 2.2, with rho chosen to be tightest at `tightest_at`. Two-sided error alpha over all looks together.
    """
    rho2 = (-2 * math.log(alpha) + math.log(-2 * math.log(alpha) + 1)) / tightest_at
    return math.sqrt(2 * (t * rho2 + 1) / (t * rho2) * math.log(math.sqrt(t * rho2 + 1) / alpha))


def difference_sequence(
    champion: Sequence[tuple[int, float]], candidate: Sequence[tuple[int, float]], alpha: float, tightest_at: float
) -> Interval | None:
    """candidate minus champion mean over people (see `clustered_mean`), at every look within the interval with probability
    1 - alpha; None without two people a side."""
    old, new = clustered_mean(champion), clustered_mean(candidate)
    if old is None or new is None:
        return None
    estimate, error, n = new[0] - old[0], math.sqrt(old[1] + new[1]), old[2] + new[2]
    half = error * sequence_factor(n, alpha, tightest_at)
    return Interval(estimate=estimate, low=estimate - half, high=estimate + half, level=1 - alpha, n=n)


def share_difference_sequence(old: tuple[int, int], new: tuple[int, int], alpha: float, tightest_at: float) -> Interval | None:
    """The same for shares given as (events, trials), one trial a cluster; None without trials on both sides."""
    if old[1] == 0 or new[1] == 0:
        return None
    variance = 0.0
    for events, trials in (old, new):
        share = (events + 1) / (trials + 2)
        variance += share * (1 - share) / trials
    estimate, n = new[0] / new[1] - old[0] / old[1], old[1] + new[1]
    half = math.sqrt(variance) * sequence_factor(n, alpha, tightest_at)
    return Interval(estimate=estimate, low=estimate - half, high=estimate + half, level=1 - alpha, n=n)


def detectable_effect(n: int, level: float, power: float = 0.8, deviation: float = 0.5) -> float:
    """The smallest true mean difference that a paired interval over n prompts shows with `power`; `deviation` of a difference."""
    return float((special.ndtri((1 + level) / 2) + special.ndtri(power)) * deviation / math.sqrt(max(n, 1)))
