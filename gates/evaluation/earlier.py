"""Compares a candidate with the earlier champions in each golden slice.

Each promotion may lose a little in a slice, within the margin against the champion of its time. Over several promotions such losses add up.
Two comparisons find them: with the best earlier champion, for a loss that is certainly larger than the margin, and with the mean of
all champions up to each one, for a loss that is certain whatever its size. A mean has less noise, and nobody has selected its best member.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ratchet.contracts.evaluation import Comparison, EarlierComparison
from ratchet.gates.evaluation.questions import Decoding
from ratchet.gates.statistics import normal_quantile, paired_interval

PROMOTIONS = 20
"""Number of promotions over which false alarms of `eroded` are bounded."""
EROSION_ERROR = 0.03
"""Probability of a false alarm over PROMOTIONS promotions and all parts, by Student's distribution for one comparison of each part. The
choice among several means makes it a little higher (`benchmarks/erosion.py`)."""
WON_BACK = 0.68
"""Level of the interval by which a candidate wins back a part of a loss: it is higher than the present champion by a standard error."""
_FULL = 0.8
"""Share of the largest number of conversations that a champion answered in a part. One with fewer is left out of the means, because a mean
is over conversations that all of its champions answered."""


@dataclass(frozen=True)
class Scored:
    """The mean reward of the answers to a golden prompt."""

    cluster: str
    """Conversation of the prompt; its prompts are averaged first."""
    groups: tuple[str, ...]
    """golden, and the slice of the prompt if it has one."""
    reward: float
    deciding: frozenset[str] | None
    """The scorers that decided; rewards of other scorers are not comparable. None if all requests failed."""


Answers = Mapping[str, Scored]
"""Key of the golden prompt -> its scored answers."""


@dataclass(frozen=True)
class Earlier:
    """The scored answers of an earlier champion."""

    decoding: Decoding
    answers: Answers


def best_earlier(
    candidate: Mapping[Decoding, Answers], earlier: Mapping[str, Earlier], level: float, least: int
) -> list[EarlierComparison]:
    """Return, for each group with at least `least` common conversations, the comparison with the earlier champion of the highest mean.

    A champion is compared with the candidate's answers of the same decoding, and the best one is found per decoding.
    `level` is the confidence level of all intervals together: each allows for the number of champions and groups (Bonferroni).
    """
    found: dict[tuple[str, Decoding], list[tuple[str, np.ndarray]]] = {}
    for version, one in earlier.items():
        for group, rewards in _pairs(candidate[one.decoding], one.answers).items():
            if len(rewards) >= max(2, least):
                found.setdefault((group, one.decoding), []).append((version, np.array(rewards)))
    comparisons = sum(map(len, found.values()))
    result = []
    for place in sorted(found):
        version, pairs = max(found[place], key=lambda one: (float(one[1][:, 0].mean()), one[0]))
        result.append(_compared(place[0], version, pairs, 1 - (1 - level) / comparisons))
    return result


def eroded(candidate: Mapping[Decoding, Answers], earlier: Mapping[str, Earlier], least: int) -> list[EarlierComparison]:
    """Return the groups in which the candidate is certainly lower than the earlier champions up to one of them are on average.

    `earlier` has the oldest champion first. For each group and decoding, the candidate is compared with the mean of the champions up to
    each one, on at least `least` conversations that all of these have answered. The mean counts from which the candidate's distance is
    largest in standard errors. `version` of the result is the newest champion of this mean.
    """
    answered: dict[tuple[str, Decoding], list[tuple[str, dict[str, tuple[float, float]]]]] = {}
    for version, one in earlier.items():
        for group, rewards in _of_clusters(candidate[one.decoding], one.answers).items():
            answered.setdefault((group, one.decoding), []).append((version, rewards))
    found = {place: list(_means(versions, max(2, least))) for place, versions in answered.items()}
    level = 1 - 2 * EROSION_ERROR / (PROMOTIONS * max(1, sum(map(bool, found.values()))))
    lower: dict[str, EarlierComparison] = {}
    for (group, _), means in found.items():
        compared = [_compared(group, version, pairs, level) for version, pairs in means]
        farthest = max([*compared, *filter(None, [lower.get(group)])], key=_distance, default=None)
        if farthest is not None and farthest.comparison.difference.high < 0:
            lower[group] = farthest
    return [lower[group] for group in sorted(lower)]


def champions_since(earlier: Mapping[str, Earlier], since: str | None) -> Mapping[str, Earlier]:
    """Return the champions from `since` on (`gate.erosion_since`): all of them for None, none of them if `since` is not among them."""
    if since is None:
        return earlier
    versions = list(earlier)
    return {version: earlier[version] for version in versions[versions.index(since) :]} if since in earlier else {}


def _means(versions: Sequence[tuple[str, Mapping[str, tuple[float, float]]]], least: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each champion with (mean reward of the champions up to it, candidate's reward) of at least `least` conversations."""
    most = max(len(rewards) for _, rewards in versions)
    known: dict[str, list[float]] | None = None
    for version, rewards in versions:
        if len(rewards) < _FULL * most:
            continue
        known = {name: [] for name in rewards} if known is None else {name: olds for name, olds in known.items() if name in rewards}
        for name, olds in known.items():
            olds.append(rewards[name][0])
        if len(known) >= least:
            yield version, np.array([(sum(olds) / len(olds), rewards[name][1]) for name, olds in known.items()])


def rows_to_find(loss: float, groups: int, spread: float = 0.4) -> int:
    """Return how many prompts a golden slice needs so that `eroded` finds a loss with a probability of 80 %.

    Args:
        loss: The mean loss of reward against the earlier champions.
        groups: Number of slices that are judged, and the golden set as a whole.
        spread: Standard deviation of the difference of a prompt's rewards. 0.4 is that of rewards of 0 and 1 of which one in six differs.
    """
    certain = normal_quantile(1 - EROSION_ERROR / (PROMOTIONS * max(1, groups)))
    return math.ceil(((certain + normal_quantile(0.8)) * spread / loss) ** 2)


def _compared(group: str, version: str, pairs: np.ndarray, level: float) -> EarlierComparison:
    interval = paired_interval((pairs[:, 1] - pairs[:, 0]).tolist(), level)
    assert interval is not None
    before, now = (float(mean) for mean in pairs.mean(axis=0))
    comparison = Comparison(name=group, n=len(pairs), champion=before, candidate=now, difference=interval)
    return EarlierComparison(version=version, comparison=comparison)


def _distance(one: EarlierComparison) -> float:
    """Return the loss in units of its upper half-width: above 1, it is certain."""
    difference = one.comparison.difference
    return -difference.estimate / (difference.high - difference.estimate)


def _pairs(candidate: Answers, earlier: Answers) -> dict[str, list[tuple[float, float]]]:
    """Return group -> (earlier reward, candidate's reward) of each conversation with comparable answers of both."""
    return {group: list(of_group.values()) for group, of_group in _of_clusters(candidate, earlier).items()}


def _of_clusters(candidate: Answers, earlier: Answers) -> dict[str, dict[str, tuple[float, float]]]:
    """Return group -> conversation -> (earlier reward, candidate's reward), for conversations with comparable answers of both."""
    clusters: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for key, new in candidate.items():
        old = earlier.get(key)
        if old is not None and new.deciding in (None, old.deciding):
            for group in new.groups:
                clusters[group][new.cluster].append((old.reward, new.reward))

    def mean(pairs: list[tuple[float, float]]) -> tuple[float, float]:
        return pairs[0] if len(pairs) == 1 else (float(np.mean([old for old, _ in pairs])), float(np.mean([new for _, new in pairs])))

    return {group: {name: mean(pairs) for name, pairs in of_group.items()} for group, of_group in clusters.items()}
