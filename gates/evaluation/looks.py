"""Decides how an evaluation asks its prompts in batches, and whether it goes on after each. Pure.

An evaluation may stop for two reasons. For success: the gain is shown by the boundary of the look (gates/boundaries.py), and no check could
turn the verdict with the rest of the prompts. For futility: the rest would hardly show a gain. A futile stop never passes, so it costs no
error. If in doubt, the evaluation goes on.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ratchet.contracts.data.datasets import HoldoutEdition
from ratchet.contracts.evaluation import Comparison, EvalReport, Looks, Result, Stopped
from ratchet.contracts.ids import digest, hash_share
from ratchet.contracts.loop import GateSettings
from ratchet.gates.boundaries import error_of_look
from ratchet.gates.checks import checks
from ratchet.gates.evaluation.questions import Question
from ratchet.gates.statistics import LENGTH_LEVEL, deviation_of, normal_quantile, normal_share

LEAST_BATCH = 40
"""Minimum number of conversations per batch."""
HARDLY = 0.02
"""Conditional power below which the rest of the prompts would hardly show a gain."""
PLAUSIBLE = 0.8
"""The plausible gain is the one that the whole evaluation shows with this probability. `benchmarks/gate_decisions.py` measures what the
looks cost in power."""


def batches(questions: Sequence[Question], edition: HoldoutEdition, looks: int) -> list[list[int]]:
    """Return the places of the questions of each batch: at most `looks` batches of at least `LEAST_BATCH` conversations.

    All prompts of a conversation are in one batch. Each prompt set and slice is spread evenly over the batches. A digest orders the
    conversations within it, so each batch is a fair sample, and a repeated evaluation has the same batches. The digest depends on all
    prompts of the edition, so nobody who writes a prompt can predict its batch.
    """
    seed = digest([edition.prompts, edition.golden])
    places: dict[str, list[int]] = defaultdict(list)
    for place, question in enumerate(questions):
        places[question.cluster].append(place)
    count = max(1, min(looks, len(places) // LEAST_BATCH))
    strata: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for cluster, own in places.items():
        strata[tuple(sorted({group for place in own for group in questions[place].groups}))].append(cluster)
    order: list[tuple[float, str]] = []
    for groups, clusters in strata.items():
        clusters.sort(key=lambda cluster: digest([seed, cluster]))
        shift = hash_share("batches", seed, *groups)
        order += [((rank + shift) / len(clusters), cluster) for rank, cluster in enumerate(clusters)]
    order.sort()
    cuts = [len(order) * number // count for number in range(count + 1)]
    return [sorted(place for _, cluster in order[first:last] for place in places[cluster]) for first, last in pairwise(cuts)]


def group_sizes(questions: Sequence[Question]) -> dict[str, int]:
    """Return the number of conversations of each prompt set and slice."""
    clusters: dict[str, set[str]] = defaultdict(set)
    for question in questions:
        for group in question.groups:
            clusters[group].add(question.cluster)
    return {group: len(found) for group, found in clusters.items()}


def level_of_look(looks: Looks | None, level: float) -> float:
    """Return the two-sided level of the interval by which a candidate passes. `level` is that of an evaluation without looks.

    It is `level` too if no conversation was compared, because there is then no interval.
    """
    if looks is None or looks.compared[-1] == 0:
        return level
    return 1 - 2 * error_of_look(looks.compared, looks.clusters, looks.error, looks.done == looks.planned)


def level_at_equal_length(looks: Looks | None, level: float) -> float:
    """Return the two-sided level of the interval at equal length: at the last look at most LENGTH_LEVEL, before it that of the look."""
    found = level_of_look(looks, level)
    return min(found, LENGTH_LEVEL) if looks is None or looks.done == looks.planned else found


def stop(report: EvalReport, whole: Mapping[str, int], settings: GateSettings, may_pass: bool = True) -> Stopped | None:
    """Return why an evaluation ends at this look, before its last batch; None if it goes on.

    `report` is about the prompts asked so far, as if the evaluation stopped for success. `whole` is `group_sizes` of all prompts.
    `may_pass` is false if there may be reasons against a pass that this module cannot foresee; it then never stops for success.
    """
    overall, looks = report.comparison("overall"), report.looks
    if overall is None or looks is None:
        return None
    if may_pass and overall.difference.low > settings.min_effect:
        return "success" if _is_settled(report, whole, settings) else None
    return "futility" if conditional_power(overall, looks, settings.min_effect) < HARDLY else None


def conditional_power(overall: Comparison, looks: Looks, min_effect: float) -> float:
    """Return the probability that the whole evaluation shows a gain, given the comparison so far.

    It is computed for the larger of the plausible gain and the present estimate, and for a single test at the end, whose boundary is a
    little lower than that of the last look. Both make it higher.
    """
    fraction = overall.n / looks.clusters
    if fraction >= 1:
        return 1.0
    error = deviation_of(overall.difference) / math.sqrt(overall.n)
    score = (overall.difference.estimate - min_effect) / error
    needed = normal_quantile(1 - looks.error)
    drift = max(needed + normal_quantile(PLAUSIBLE), score / math.sqrt(fraction))
    missing = needed - score * math.sqrt(fraction) - drift * (1 - fraction)
    return normal_share(-missing / math.sqrt(1 - fraction))


def _is_settled(report: EvalReport, whole: Mapping[str, int], settings: GateSettings) -> bool:
    """Return whether each check passes now, and could not turn the verdict with the rest of the prompts.

    - Each set and slice of the whole edition has been asked and answered. Those that the whole edition can judge have enough prompts, and
      their whole intervals exclude a loss of the margin. Neither set has an estimated loss.
    - The ratio of the lengths is within the square root of its limit. If a judge scored answers, the gain is shown at equal length.
    """
    if any(check.check(report).result is not Result.PASS for check in checks(settings)):
        return False
    if not all(_is_safe(report, name, clusters, settings) for name, clusters in whole.items()):
        return False
    ratio = (report.lengths["candidate"] + 1) / (report.lengths["champion"] + 1)
    return max(ratio, 1 / ratio) ** 2 <= settings.max_length_ratio


def _is_safe(report: EvalReport, name: str, clusters: int, settings: GateSettings) -> bool:
    """Return whether a prompt set or slice with so many conversations cannot turn the verdict any more."""
    count, comparison = report.count(name), report.comparison(name)
    if count is None or count.answered_by_both == 0:
        return False
    is_set = not name.startswith("slice:")
    if clusters >= settings.min_slice or (is_set and clusters > 1):
        if comparison is None or comparison.n < min(clusters, settings.min_slice):
            return False
        if comparison.difference.low <= -settings.slice_margin:
            return False
    return not is_set or comparison is None or comparison.difference.estimate >= 0
