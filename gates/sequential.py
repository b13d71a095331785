"""Statistics of a rollout: the differences of mean ratings and of mirrored pairs, and sequential probability ratio tests.

A test compares two hypotheses, no difference and a loss of the margin, by the logarithm of their likelihood ratio. By Ville's inequality, a
limit of log(1 / error) holds for all evaluations together, however often the evidence is looked at. Source of the test: Wald, Sequential
Tests of Statistical Hypotheses (1945). `benchmarks/rollouts.py` measures the error rates of the decisions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ratchet.contracts.serving import Arm

MOST_RATINGS = 40
"""Ratings of one person that count, over both versions and all steps. If a person has more, all of them together count as this many."""


@dataclass(frozen=True)
class Difference:
    """Mean rating, or mean reward of mirrored pairs, of the candidate minus that of the champion."""

    estimate: float
    variance: float
    people: float
    """Effective number of raters of the version that has fewer, or of the people with mirrored pairs."""
    ratings: int
    """Number of ratings of both versions, or of pairs."""


def rating_difference(strata: Sequence[tuple[Arm, Arm]]) -> Difference | None:
    """Return the difference of the mean ratings over strata of (champion, candidate). None without two raters of each version.

    Within a stratum, the share of the candidate is constant. The means are ratios of sums, so that a person weighs as much in both
    versions, also if frequent raters are more satisfied. The differences of the strata are averaged with the weights of Mantel and
    Haenszel, so that a change of the share does not look like a difference of the versions.

    The variance is a jackknife over people, whose ratings of both versions and all strata stay together. Its lower limit is the variance of
    binary ratings: otherwise a few unanimous raters would seem certain.
    """
    counts, sums, linked = _table(strata)
    if counts.shape[2] < 2:
        return None
    sides = counts.sum(axis=2)
    total, ratings = counts.sum(axis=(0, 1)), float(sides.sum())
    most = np.where(linked, MOST_RATINGS, np.maximum(1.0, MOST_RATINGS * ((counts > 0) * sides[:, :, None]).max(axis=(0, 1)) / ratings))
    factor = np.minimum(1.0, most / total)
    counts, sums = counts * factor, sums * factor
    usable = ((counts > 0).sum(axis=2) >= 2).all(axis=1)
    if not usable.any():
        return None
    counts, sums = counts[usable], sums[usable]
    sizes = counts.sum(axis=2)
    means = sums.sum(axis=2) / sizes
    weights = sizes[:, 0] * sizes[:, 1] / sizes.sum(axis=1)
    weights = weights / weights.sum()
    shifts = (sums - means[:, :, None] * counts) / (sizes[:, :, None] - counts)
    apart = (weights[:, None] * (shifts[:, 1] - shifts[:, 0])).sum(axis=0)
    parts = (weights[:, None, None] * counts / sizes[:, :, None]).sum(axis=0)
    people = float((1 / (parts**2).sum(axis=1)).min())
    mean = (float(sums.sum()) / float(sizes.sum()) * people + 0.5) / (people + 1)
    floor = mean * (1 - mean) * float((weights[:, None] ** 2 * (counts * factor).sum(axis=2) / sizes**2).sum())
    estimate = float((weights * (means[:, 1] - means[:, 0])).sum())
    return Difference(estimate, max(float((apart**2).sum()), floor), people, round(ratings))


def _table(strata: Sequence[tuple[Arm, Arm]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return numbers and sums of ratings by (stratum, version, person), and for each person whether its ratings are linked by a name."""
    places: dict[str, int] = {}
    linked: list[bool] = []
    cells: list[tuple[int, int, Sequence[int], np.ndarray]] = []
    for stratum, arms in enumerate(strata):
        for side, arm in enumerate(arms):
            if arm.raters:
                for name in arm.raters:
                    if name not in places:
                        places[name] = len(linked)
                        linked.append(True)
                place: Sequence[int] = [places[name] for name in arm.raters]
            else:
                place = range(len(linked), len(linked) + len(arm.rated))
                linked += [False] * len(arm.rated)
            cells.append((stratum, side, place, np.array(arm.rated, dtype=float).reshape(-1, 2)))
    counts = np.zeros((len(strata), 2, len(linked)))
    sums = np.zeros_like(counts)
    for stratum, side, place, rated in cells:
        counts[stratum, side, place], sums[stratum, side, place] = rated.T
    return counts, sums, np.array(linked, dtype=bool)


def mirrored_difference(pairs: Sequence[tuple[str, float]], margin: float) -> Difference | None:
    """Return the mean of the differences (person, candidate minus champion) of mirrored pairs. None for fewer than two people.

    The variance is clustered by person. It is multiplied by n / (n - 1) for n people. Its lower limit is the variance of
    independent pairs, in which one difference has at least the variance `margin`: a loss of the margin by answers that fail completely is
    such a difference in a share `margin` of the pairs. Pairs without any difference would otherwise be certain at once.
    """
    places: dict[str, int] = {}
    people = np.array([places.setdefault(person, len(places)) for person, _ in pairs], dtype=int)
    if len(places) < 2:
        return None
    values = np.array([difference for _, difference in pairs])
    estimate, n = float(values.mean()), len(values)
    sizes, apart = np.bincount(people), np.bincount(people, values - estimate)
    clustered = float((apart**2).sum()) / n**2 * len(places) / (len(places) - 1)
    independent = max(margin, float(values.var(ddof=1))) / n
    return Difference(estimate, max(clustered, independent), n**2 / float((sizes**2).sum()), n)


def mean_evidence(estimate: float, variance: float, margin: float) -> float:
    """Return the log-likelihood ratio of a difference of 0 against one of -`margin`, for a normal estimate."""
    return margin * (estimate + margin / 2) / variance


Share = tuple[int, int]
"""(events, trials)"""


def share_evidence(old: Share, new: Share, margin: float) -> float:
    """Return the log-likelihood ratio of equal shares against a share of `new` that is higher by `margin`.

    The share of `old` is unknown. Under each hypothesis it has its most likely value. The result is 0 if a side has no trials.
    """
    if not old[1] or not new[1]:
        return 0.0
    pooled = (old[0] + new[0]) / (old[1] + new[1])
    base = share_below(old, new, margin)
    return _likelihood(old, pooled) + _likelihood(new, pooled) - _likelihood(old, base) - _likelihood(new, base + margin)


def harm_evidence(strata: Sequence[tuple[Share, Share]], margin: float) -> float:
    """Return the log-likelihood ratio of higher shares of `new` against equal shares, over strata of (old, new).

    The alternative is a mixture of increases: half of it is `margin`, and the rest are its doublings below 1. An increase of the margin
    alone would not recognise a version that always fails, because it explains many failures hardly better than equal shares do.
    """
    increases = [margin]
    while 2 * increases[-1] < 1:
        increases.append(2 * increases[-1])
    parts = [0.5] + [0.5 / (len(increases) - 1)] * (len(increases) - 1) if len(increases) > 1 else [1.0]
    logs = [
        math.log(part) - sum(share_evidence(old, new, more) for old, new in strata) for part, more in zip(parts, increases, strict=True)
    ]
    most = max(logs)
    return most + math.log(sum(math.exp(one - most) for one in logs))


def _likelihood(share: Share, probability: float) -> float:
    events, trials = share
    none, some = min(1.0, max(1e-12, 1 - probability)), min(1.0, max(1e-12, probability))
    return events * math.log(some) + (trials - events) * math.log(none)


def share_below(old: Share, new: Share, margin: float) -> float:
    """Return the most likely share of `old`, if that of `new` is higher by `margin`.

    It is a root of a cubic equation. Source: Miettinen, Nurminen: Comparative analysis of two rates, Statistics in Medicine 4 (1985).
    """
    n, events = old[1] + new[1], old[0] + new[0]
    third = ((new[1] + 2 * old[1]) * margin - n - events) / (3 * n)
    linear = ((old[1] * margin - n - 2 * old[0]) * margin + events) / n
    constant = old[0] * margin * (1 - margin) / n
    q = third**3 - third * linear / 2 + constant / 2
    p = math.copysign(math.sqrt(max(third**2 - linear / 3, 0.0)), q)
    cosine = min(1.0, max(-1.0, q / p**3)) if p else 0.0
    return min(1 - margin, max(0.0, 2 * p * math.cos((math.pi + math.acos(cosine)) / 3) - third))


def share_difference(strata: Sequence[tuple[Share, Share]]) -> tuple[float, float]:
    """Return (difference, standard error) of the shares `new` minus `old`, averaged over strata with the weights of Mantel and Haenszel."""
    weight = estimate = variance = 0.0
    for old, new in strata:
        if old[1] and new[1]:
            part = old[1] * new[1] / (old[1] + new[1])
            weight += part
            estimate += part * (new[0] / new[1] - old[0] / old[1])
            for events, trials in (old, new):
                smooth = (events + 0.5) / (trials + 1)
                variance += part**2 * smooth * (1 - smooth) / trials
    return (estimate / weight, math.sqrt(variance) / weight) if weight else (0.0, 0.0)
