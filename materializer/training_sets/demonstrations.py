"""Builds demonstrations for imitation training: answers that count as right, each with a weight for its evidence.

Demonstrations are users' corrections, references, and answers that scorers or users judged right. The strongest evidence on a prompt
decides. If a prompt has a correction, a reference or a verified answer, answers with only user ratings or judge scores are
left out. Answers of a teacher that no scorer confirms count only on prompts without any of these, and signals only without them, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from ratchet.contracts.conversation import person_answer
from ratchet.contracts.data.datasets import ScorerVersion
from ratchet.contracts.data.records import DEMONSTRATIONS, Tier
from ratchet.contracts.ids import hash_share, normalise
from ratchet.contracts.loop import SnapshotSettings
from ratchet.materializer.labels.conflicts import without_contradictions
from ratchet.materializer.labels.label_confidence import believe
from ratchet.materializer.labels.teachers import TEACHER
from ratchet.materializer.lake.schemas import frame_of

CORRECTION, REFERENCE = "correction", "reference"
RANK = {
    CORRECTION: 0,
    REFERENCE: 0,
    Tier.VERIFIABLE.value: 1,
    Tier.FEEDBACK.value: 2,
    Tier.JUDGE.value: 3,
    Tier.TEACHER.value: 4,
    Tier.SIGNAL.value: 5,
}
"""Source of the evidence -> rank, strongest first. Corrections and references rank first, because their authors wrote the right answer."""

ONE_QUESTION = 0.9
"""Share of equal answers from which a cluster of near-duplicate prompts is one question. The rest may be wrong labels."""


def make_demonstrations(
    samples: pl.DataFrame,
    prompts: pl.DataFrame,
    settings: SnapshotSettings,
    scorers: Sequence[ScorerVersion],
    noise: float | None,
    salt: str,
) -> pl.DataFrame:
    """Build records.DEMONSTRATIONS from records.SAMPLES and records.PROMPTS.

    `noise` is the share of single ratings that are wrong; None means not measured. `salt` fixes the order of equal candidates. The
    answers of a prompt are distinct. At most `pairs_per_prompt` answers of a prompt and `pairs_per_person` of a user are taken.
    """
    believed = samples.with_columns(pl.Series("right", believe(samples, scorers, noise), dtype=pl.Float64))
    of_prompt: Counter[str] = Counter()
    persons: Counter[str] = Counter()
    strongest: dict[str, int] = {}
    taken: dict[tuple[str, str], dict[str, Any]] = {}
    for row in _ranked(without_contradictions(believed, settings)[0], prompts, settings, salt):
        key, person, weight = (row["prompt_id"], row["answer"]), row["user"], 2 * row["right"] - 1
        doubtful = row["right"] < settings.demonstration_min and row["source"] != Tier.TEACHER  # it has passed teacher.min_agreement
        if key in taken or doubtful:
            continue  # an answer that is probably not right excludes no weaker evidence
        rank = RANK[row["source"]]
        weaker = rank > strongest.setdefault(row["prompt_id"], rank) and rank >= RANK[Tier.FEEDBACK]
        full = of_prompt[row["prompt_id"]] >= settings.pairs_per_prompt or (person and persons[person] >= settings.pairs_per_person)
        if weaker or full:
            continue
        of_prompt[row["prompt_id"]] += 1
        persons.update([person] if person else [])
        taken[key] = {**row, "weight": weight}
    return frame_of(list(taken.values()), DEMONSTRATIONS)


def weigh_repeats(shown: pl.DataFrame, cluster: Callable[[Mapping[str, str]], Mapping[str, str]], limit: int) -> tuple[pl.DataFrame, int]:
    """Return demonstrations in which near-duplicate prompts with one right answer weigh as much as one prompt, and how many weigh less.

    Without this, traffic that is full of variants of one question makes the training one of this question, and the model forgets others.
    A cluster counts as one question if at least ONE_QUESTION of its demonstrations have the same answer; `limit` of them have full
    weight together. The others are different questions of one form, for example with other numbers, and keep their weights. So do the
    answers of teachers, whose weight tells the trainer how often they are wrong.

    `shown` is records.DEMONSTRATIONS. `cluster` maps ids of prompts with their prompts (JSON) to clusters of near-duplicates.
    """
    own = shown.filter(pl.col("source") != Tier.TEACHER.value)
    near = cluster(dict(own.select("prompt_id", "prompt").iter_rows()))
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for prompt, answer in own.select("prompt_id", "answer").iter_rows():
        answers[near[prompt]][normalise(answer)] += 1
    share = {
        name: min(1.0, limit / found.total()) if max(found.values()) >= ONE_QUESTION * found.total() else 1.0
        for name, found in answers.items()
    }
    scaled = [
        weight * share[near[prompt]] if source != Tier.TEACHER.value else weight
        for prompt, source, weight in shown.select("prompt_id", "source", "weight").iter_rows()
    ]
    less = sum(found.total() for name, found in answers.items() if share[name] < 1)
    return shown.with_columns(pl.Series("weight", scaled, dtype=pl.Float64)), less


def teachable(shown: pl.DataFrame, samples: pl.DataFrame, scorers: Sequence[ScorerVersion], noise: float | None) -> int:
    """Return the number of demonstrations in `shown` on prompts that the model answers wrong more often than right.

    The estimate is the mean label confidence of the logged and probed answers in `samples`.
    """
    believed = samples.with_columns(pl.Series("right", believe(samples, scorers, noise), dtype=pl.Float64))
    own = believed.filter(~pl.col("origin").is_in([CORRECTION, TEACHER]) & pl.col("tier").is_not_null())
    wrong = own.group_by("prompt_id").agg(pl.col("right").mean()).filter(pl.col("right") < 0.5)
    return len(shown.filter(pl.col("prompt_id").is_in(wrong["prompt_id"].to_list())))


def _ranked(samples: pl.DataFrame, prompts: pl.DataFrame, settings: SnapshotSettings, salt: str) -> list[dict[str, Any]]:
    """Return the candidates by strength of evidence, then by label confidence, then in pseudo-random order."""
    enough = (pl.col("reward") >= settings.chosen_min) | (pl.col("tier") == Tier.TEACHER.value)
    right = samples.filter(enough & pl.col("tier").is_not_null())
    rows = right.with_columns(
        pl.when(pl.col("origin") == CORRECTION).then(pl.lit(CORRECTION)).otherwise(pl.col("tier")).alias("source")
    ).to_dicts()
    if settings.references_are_answers:
        given = prompts.filter(pl.col("reference_kind").is_in(["reference", "logged"]))
        shown = given.select("prompt_id", "prompt", "slice", "tools", pl.col("reference").alias("answer")).to_dicts()
        known = {"source": REFERENCE, "right": 1.0, "user": None, "trace": None}
        rows += [{**row, **known, "answer": person_answer(row["answer"], row["tools"])} for row in shown]
    place = {id(row): hash_share("demonstration", salt, row["prompt_id"], row["answer"]) for row in rows}
    return sorted(rows, key=lambda row: (RANK[row["source"]], -row["right"], place[id(row)], row["trace"] or ""))
