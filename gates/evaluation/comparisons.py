"""Turns the outcomes of prompts into the figures of a report: comparisons, counts, failures, lengths and latencies. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

import numpy as np

from ratchet.contracts.data.datasets import Label
from ratchet.contracts.evaluation import ChatAnswer, Comparison, Interval, PromptCount
from ratchet.contracts.failure_reasons import counted
from ratchet.gates.evaluation.outcomes import UNSCORED, AskedPrompt, PromptOutcome, failure_of
from ratchet.gates.evaluation.questions import Question, by_prompt
from ratchet.gates.statistics import length_adjusted_interval, paired_interval


def compare_all(paired: Sequence[tuple[Question, float, float]], level: float, level_to_pass: float) -> list[Comparison]:
    """Return the comparisons over all prompts, and over those of each prompt set and slice."""
    found = [compare("overall", paired, level_to_pass)]
    for name in _groups(q for q, _, _ in paired):
        found.append(compare(name, [row for row in paired if name in row[0].groups], level))
    return [comparison for comparison in found if comparison is not None]


def compare(name: str, rows: Sequence[tuple[Question, float, float]], level: float) -> Comparison | None:
    """Compare rewards (question, champion, candidate), clustered by conversation as in the holdout split. None for less than two clusters.

    Turns of one conversation and repeated prompts form one cluster, and their differences are averaged first.
    """
    clusters: dict[str, list[tuple[float, float]]] = {}
    for q, a, b in rows:
        clusters.setdefault(q.cluster, []).append((a, b))
    pairs = [np.mean(rewards, axis=0) for rewards in clusters.values()]
    interval = paired_interval([float(new - old) for old, new in pairs], level)
    if interval is None:
        return None
    champion, candidate = np.mean(pairs, axis=0)
    return Comparison(name=name, n=len(clusters), champion=float(champion), candidate=float(candidate), difference=interval)


def length_adjusted_difference(outcomes: Sequence[PromptOutcome], level: float) -> Interval | None:
    """Return the difference at equal length of the answers that a judge scored, clustered by conversation as in `compare`."""
    clusters: dict[str, list[PromptOutcome]] = {}
    for outcome in outcomes:
        if outcome.rewards is not None:
            clusters.setdefault(outcome.question.cluster, []).append(outcome)
    differences, longer = list[float](), list[float | None]()
    for cluster in clusters.values():
        lengths = [outcome.longer for outcome in cluster if outcome.longer is not None]
        differences.append(fmean(new - old for old, new in (outcome.rewards for outcome in cluster if outcome.rewards)))
        longer.append(fmean(lengths) if lengths else None)
    return length_adjusted_interval(differences, longer, level)


def cut_difference(known: Sequence[AskedPrompt], level: float) -> Comparison | None:
    """Compare the shares of answers that were cut, on the prompts that both models answered, clustered by conversation as in `compare`."""
    rows = []
    for one in known:
        old, new = ([answer.cut for answer in answers] for answers in one.answers)
        if None not in old and None not in new:
            rows.append((one.question, fmean(map(bool, old)), fmean(map(bool, new))))
    return compare("cut", rows, level)


def _groups(questions: Iterable[Question]) -> list[str]:
    """Return the names of all prompt sets, then of all slices."""
    names = {name for question in questions for name in question.groups}
    return sorted(names, key=lambda name: (name.startswith("slice:"), name != "holdout", name))


def prompt_counts(outcomes: Sequence[PromptOutcome]) -> Iterator[PromptCount]:
    """Yield the count of each prompt set and slice that was asked."""
    for name in _groups(outcome.question for outcome in outcomes):
        inside = [outcome for outcome in outcomes if name in outcome.question.groups]
        yield PromptCount(
            name=name,
            asked=len(inside),
            clusters=len({outcome.question.cluster for outcome in inside}),
            answered_by_both=sum(outcome.answered for outcome in inside),
            champion_failed=sum(outcome.champion_failed for outcome in inside),
            candidate_failed=sum(outcome.candidate_failed for outcome in inside),
        )


def failure_counts(side: str, answers: Sequence[ChatAnswer], labels: Sequence[Label], samples: int) -> Counter[str]:
    """Count the prompts with a failed draw by the reason: the first one in alphabetical order, and a missing score after all others."""
    reasons = [failure_of(answer, label) for answer, label in zip(answers, labels, strict=True)]
    failed = [[reason for reason in draws if reason is not None] for draws in by_prompt(reasons, samples)]
    found = counted(min(draws, key=lambda reason: (reason == UNSCORED, reason)) for draws in failed if draws)
    ordered = sorted(found, key=lambda reason: reason == UNSCORED)
    return Counter({f"{side}:{reason}": found[reason] for reason in ordered})


def mean_length(answers: Sequence[ChatAnswer]) -> float:
    """Return the mean length of the answers in characters, without failed requests."""
    lengths = [len(answer.text) for answer in answers if answer.text is not None]
    return float(np.mean(lengths)) if lengths else 0.0


def p95_latency(answers: Sequence[ChatAnswer]) -> float:
    """Return the 95th percentile of the latencies in milliseconds, without failed requests."""
    values = [answer.latency_ms for answer in answers if answer.text is not None]
    return float(np.percentile(values, 95)) if values else 0.0
