"""The measured facts that the choice of a method rests on. Measures only; what they mean is the trainers' business."""

from __future__ import annotations

import json
from collections.abc import Sequence

import polars as pl

from contracts.data import Facts, ProbeReport, ScorerVersion
from contracts.records import Tier
from materializer.belief import MOST_VOTES
from materializer.distance import policy_distance
from materializer.pairs import Pairs

_LEAST_COMPARED = 20
"""Answers with both a rating and a verifiable score below which noise counts as unmeasured."""


def label_noise(samples: pl.DataFrame, scorers: Sequence[ScorerVersion]) -> float | None:
    """Share of single ratings that lie on the other side than their answer's verifiable score; None where too few answers have both.

    Of `votes` ratings with mean m of a right answer, votes * (1 - m) were thumbs down: so answers with many raters, whose
    mean is hardly ever wrong, say the same as answers with one. A rating between 0 and 1 counts by its distance.
    """
    tiers = {version.name: version.tier for version in scorers}
    wrong, ratings, answers = 0.0, 0, 0
    for text, votes in samples.filter(pl.col("origin") == "traffic").select("parts", "votes").iter_rows():
        parts = {name: score for name, score in json.loads(text).items() if score is not None}
        people = [score for name, score in parts.items() if tiers.get(name) == Tier.FEEDBACK]
        proof = [score for name, score in parts.items() if tiers.get(name) == Tier.VERIFIABLE and score != 0.5]
        if not people or not proof or votes == 0 or (votes == 1 and people == [0.5]):  # a single rating in the middle takes no side
            continue
        right = sum(proof) / len(proof) > 0.5
        count = min(votes, MOST_VOTES)
        wrong += count * abs(right - sum(people) / len(people))
        ratings += count
        answers += 1
    return wrong / ratings if answers >= _LEAST_COMPARED else None


def off_policy(own: Sequence[tuple[bool, bool]]) -> float | None:
    """Share of the pairs' answers that no version of this line wrote: other models' answers and people's corrections. An answer
    of an older version counts as the line's own. None without pairs."""
    answers = [ours for pair in own for ours in pair]
    return sum(not ours for ours in answers) / len(answers) if answers else None


def measure(
    samples: pl.DataFrame,
    prompts: pl.DataFrame,
    pairs: Pairs,
    shown: pl.DataFrame,
    teachable: int,
    noise: float | None,
    probe: ProbeReport | None,
    answers: pl.DataFrame,
) -> Facts:
    """All facts of one training set. `answers`: the probe's, records.SAMPLES."""
    distance, error = policy_distance(samples, answers, prompts)
    by_tier = dict(pairs.frame.group_by("tier").len().sort("tier").iter_rows())
    return Facts(
        pairs=len(pairs.frame),
        pairs_by_tier=by_tier,
        pairs_dropped=pairs.dropped,
        prompts=len(prompts),
        prompts_with_reference=prompts["reference"].count(),
        corrections=int((samples["origin"] == "correction").sum()),
        demonstrations=dict(shown.group_by("source").len().sort("source").iter_rows()),
        teachable=teachable,
        samples=len(samples),
        group_coverage=probe.group_coverage if probe else None,
        label_noise=noise,
        champion_reward=probe.mean_reward if probe else None,
        best_of_k=probe.best_of_k if probe else None,
        off_policy=off_policy(pairs.own),
        usual_reward=probe.usual_reward if probe else None,
        usual_error=probe.usual_error if probe else None,
        policy_distance=distance,
        policy_distance_error=error,
    )
