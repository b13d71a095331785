"""Compares a candidate with the best earlier champion of each golden slice.

Each promotion may lose a little in a slice, within the margin against the champion of its time. Over several promotions such losses add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ratchet.contracts.evaluation import Comparison, EarlierComparison
from ratchet.gates.evaluation.questions import Decoding
from ratchet.gates.statistics import paired_interval


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
        group, _ = place
        version, pairs = max(found[place], key=lambda one: (float(one[1][:, 0].mean()), one[0]))
        interval = paired_interval((pairs[:, 1] - pairs[:, 0]).tolist(), 1 - (1 - level) / comparisons)
        assert interval is not None
        before, now = (float(mean) for mean in pairs.mean(axis=0))
        comparison = Comparison(name=group, n=len(pairs), champion=before, candidate=now, difference=interval)
        result.append(EarlierComparison(version=version, comparison=comparison))
    return result


def _pairs(candidate: Answers, earlier: Answers) -> dict[str, list[tuple[float, float]]]:
    """Return group -> (earlier reward, candidate's reward) of each conversation with comparable answers of both."""
    clusters: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for key, new in candidate.items():
        old = earlier.get(key)
        if old is not None and new.deciding in (None, old.deciding):
            for group in new.groups:
                clusters[group][new.cluster].append((old.reward, new.reward))
    return {
        group: [(float(np.mean([old for old, _ in pairs])), float(np.mean([new for _, new in pairs]))) for pairs in of_group.values()]
        for group, of_group in clusters.items()
    }
