"""Measures the facts on which the choice of a training method depends. The trainers interpret them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import polars as pl

from ratchet.contracts.data.datasets import MOST_SLICES, Facts, ProbeReport, ScorerVersion
from ratchet.contracts.data.records import Tier
from ratchet.materializer.labels.label_confidence import MOST_VOTES
from ratchet.materializer.training_sets.pairs import Pairs
from ratchet.materializer.training_sets.policy_distance import policy_distance
from ratchet.materializer.training_sets.probe import never_right

_LEAST_COMPARED = 20
"""Minimum number of answers with both a rating and a verifiable score. With fewer answers, the noise is not measured."""


def label_noise(samples: pl.DataFrame, scorers: Sequence[ScorerVersion]) -> float | None:
    """Return the share of single ratings that contradict the verifiable score of their answer; None if too few answers have both.

    If a right answer has `votes` ratings with mean m, then votes * (1 - m) of them are wrong. The mean of many ratings is rarely
    wrong, so counting answers instead of single ratings would underestimate the noise. Each answer counts with at most MOST_VOTES
    ratings. A rating between 0 and 1 counts by its distance from the score.
    """
    tiers = {version.name: version.tier for version in scorers}
    wrong, ratings, answers = 0.0, 0, 0
    for text, votes in samples.filter(pl.col("origin") == "traffic").select("parts", "votes").iter_rows():
        parts = {name: score for name, score in json.loads(text).items() if score is not None}
        people = [score for name, score in parts.items() if tiers.get(name) == Tier.FEEDBACK]
        proof = [score for name, score in parts.items() if tiers.get(name) == Tier.VERIFIABLE and score != 0.5]
        if not people or not proof or votes == 0 or (votes == 1 and people == [0.5]):  # a single rating of 0.5 is neutral
            continue
        right = sum(proof) / len(proof) > 0.5
        count = min(votes, MOST_VOTES)
        wrong += count * abs(right - sum(people) / len(people))
        ratings += count
        answers += 1
    return wrong / ratings if answers >= _LEAST_COMPARED else None


def slices_of(frames: Mapping[str, pl.DataFrame]) -> dict[str, tuple[str, ...]]:
    """Return the value of `TrainingSet.slices` for the frames of its artifacts by name."""
    named = {name: tuple(frame["slice"].fill_null("").unique().sort()) for name, frame in frames.items()}
    return {name: slices for name, slices in named.items() if len(slices) <= MOST_SLICES}


def off_policy(own: Sequence[tuple[bool, bool]]) -> float | None:
    """Return the share of the pairs' answers that no version of this line wrote; None without pairs.

    These are answers of other models and users' corrections. Answers of older versions count as the line's own.
    """
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
    """Return all facts of one training set.

    `shown` is records.DEMONSTRATIONS, `teachable` the result of demonstrations.teachable, `noise` that of `label_noise`. `answers` is
    records.SAMPLES of the probe, without rows if there was no probe.
    """
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
        never_right=never_right(answers, prompts),
        label_noise=noise,
        champion_reward=probe.mean_reward if probe else None,
        best_of_k=probe.best_of_k if probe else None,
        off_policy=off_policy(pairs.own),
        usual_reward=probe.usual_reward if probe else None,
        usual_error=probe.usual_error if probe else None,
        new_prompts=probe.new_prompts if probe else None,
        policy_distance=distance,
        policy_distance_error=error,
    )
