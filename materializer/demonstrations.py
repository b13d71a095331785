"""Answers that count as right, for training by imitation: users' corrections, and answers that the line's scorers or people
judged right, each with the weight that its evidence deserves.

The strongest evidence on a prompt decides: beside a correction or a proven answer, what people merely liked is left out. It
refuses to know how answers came to their rewards, and what a trainer does with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import polars as pl

from contracts.loop import SnapshotSettings
from contracts.records import DEMONSTRATIONS, Tier
from materializer.holdout import share
from materializer.pairs import UNMEASURED_NOISE, majority_error
from materializer.schemas import frame_of

CORRECTION, REFERENCE = "correction", "reference"
RANK = {CORRECTION: 0, REFERENCE: 0, Tier.VERIFIABLE.value: 1, Tier.FEEDBACK.value: 2, Tier.JUDGE.value: 3}
"""Who says that an answer is right, strongest first. A person who writes the right answer stands by it."""


def make_demonstrations(
    samples: pl.DataFrame, prompts: pl.DataFrame, settings: SnapshotSettings, noise: float | None, salt: str
) -> pl.DataFrame:
    """records.DEMONSTRATIONS from records.SAMPLES and records.PROMPTS. `noise`: share of wrong ratings, None where unmeasured.

    Distinct answers only, at most `pairs_per_prompt` of a prompt and `pairs_per_person` of a person.
    """
    of_prompt: Counter[str] = Counter()
    persons: Counter[str] = Counter()
    best: dict[str, int] = {}
    taken: dict[tuple[str, str], dict[str, Any]] = {}
    for row in _ranked(samples, prompts, settings, salt):
        key, person = (row["prompt_id"], row["answer"]), row["user"]
        weight = weight_of(row, UNMEASURED_NOISE if noise is None else noise)
        strongest = best.setdefault(row["prompt_id"], row["rank"])
        weaker = row["rank"] > strongest and row["rank"] >= RANK[Tier.FEEDBACK]
        full = of_prompt[row["prompt_id"]] >= settings.pairs_per_prompt or (person and persons[person] >= settings.pairs_per_person)
        if key in taken or weaker or weight <= 0 or full:
            continue
        of_prompt[row["prompt_id"]] += 1
        persons.update([person] if person else [])
        taken[key] = {**row, "weight": weight}
    return frame_of(list(taken.values()), DEMONSTRATIONS)


def weight_of(row: Mapping[str, Any], noise: float) -> float:
    """1 - 2 P(the answer is wrong): corrections and proven answers count in full, liked ones by the error of their majority."""
    return max(0.0, 1.0 - 2.0 * majority_error(row["votes"], noise)) if row["source"] == Tier.FEEDBACK else 1.0


def _ranked(samples: pl.DataFrame, prompts: pl.DataFrame, settings: SnapshotSettings, salt: str) -> list[dict[str, Any]]:
    """Candidates, the strongest evidence first, then in an order without meaning."""
    right = samples.filter((pl.col("reward") >= settings.chosen_min) & pl.col("tier").is_not_null())
    rows = right.with_columns(
        pl.when(pl.col("origin") == CORRECTION).then(pl.lit(CORRECTION)).otherwise(pl.col("tier")).alias("source")
    ).to_dicts()
    if settings.references_are_answers:
        known = prompts.filter(pl.col("reference_kind").is_in(["reference", "logged"]))
        shown = known.select("prompt_id", "prompt", "slice", pl.col("reference").alias("answer")).to_dicts()
        rows += [{**row, "source": REFERENCE, "votes": 0, "user": None, "trace": None} for row in shown]
    for row in rows:
        row["rank"] = RANK[row["source"]]
    return sorted(rows, key=lambda row: (row["rank"], share("demonstration", salt, row["prompt_id"], row["answer"]), row["trace"] or ""))
