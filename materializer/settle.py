"""What several samples of one answer to one prompt say together, and which answers nobody can call right or wrong.

Votes on equal answers are one body of evidence; corrections that contradict each other are none. Knows nothing of pairs,
demonstrations or training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from contracts.loop import SnapshotSettings
from contracts.records import SAMPLES, FeedbackKind, Tier
from materializer.schemas import frame_of

_ANSWER = ["prompt_id", "answer"]


def uncontested(feedback: pl.DataFrame, traces: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """(feedback without the corrections that somebody contradicted, how many those were).

    A correction to a text that was itself given as an answer and corrected to something else is one person's word against
    another's. `traces` has source, id, prompt_id, answer; `feedback` is as label.attach gives it. White space does not count.
    """
    corrections = feedback.filter((pl.col("kind") == FeedbackKind.CORRECTION.value) & pl.col("text").is_not_null())
    said = corrections.select("source", "id", _plain("text").alias("told")).join(
        traces.select("source", "id", "prompt_id", _plain("answer").alias("wrong")), on=["source", "id"], how="inner"
    )
    disputed = said.filter(pl.col("told") != pl.col("wrong")).select("prompt_id", pl.col("wrong").alias("told")).unique()
    bad = said.join(disputed, on=["prompt_id", "told"], how="semi").select("source", "id", "told").unique()
    kept = feedback.with_columns(_plain("text").alias("told"), pl.int_range(pl.len()).alias("place"))
    out = kept.filter(pl.col("kind") == FeedbackKind.CORRECTION.value).join(bad, on=["source", "id", "told"], how="semi")
    return kept.filter(~pl.col("place").is_in(out["place"].to_list())).drop("told", "place"), len(out)


def _plain(column: str) -> pl.Expr:
    return pl.col(column).str.replace_all(r"\s+", " ").str.strip_chars()


def pooled(samples: pl.DataFrame) -> pl.DataFrame:
    """records.SAMPLES in which answers that only people judged are one row per prompt and text, with all their votes.

    One of four who liked an answer does not make it right, and one of four who did not does not make it wrong. The row
    is charged to the first of its persons by name, so that nobody escapes the caps by company.
    """
    rated = (pl.col("tier") == Tier.FEEDBACK.value) & (pl.col("origin") == "traffic") & pl.col("reward").is_not_null()
    several = samples.filter(rated).filter(pl.len().over(_ANSWER) > 1)
    if several.is_empty():
        return samples
    rest = samples.join(several.select(_ANSWER).unique().with_columns(several=True), on=_ANSWER, how="left", maintain_order="left")
    alone = rest.filter(~(rated & pl.col("several").fill_null(value=False))).drop("several")
    groups = several.sort("trace", "user", "reward", nulls_last=True).group_by(_ANSWER, maintain_order=True)
    return pl.concat([alone, frame_of([_together(rows.to_dicts()) for _, rows in groups], SAMPLES)])


def _together(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    votes = [max(row["votes"], 1) for row in rows]
    parts = [json.loads(row["parts"]) for row in rows]
    mean = {name: _mean([(part.get(name), n) for part, n in zip(parts, votes, strict=True)]) for name in sorted(set().union(*parts))}
    users = [row["user"] for row in rows if row["user"] is not None]
    versions = [row["model_version"] for row in rows if row["model_version"] is not None]
    return {
        **rows[0],
        "reward": _mean([(row["reward"], n) for row, n in zip(rows, votes, strict=True)]),
        "parts": json.dumps(mean, sort_keys=True, separators=(",", ":")),
        "votes": sum(votes),
        "repeats": sum(row["repeats"] for row in rows),
        "user": min(users, default=None),
        "model_version": min(versions, default=None),
    }


def _mean(weighed: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, n) for value, n in weighed if value is not None]
    return sum(value * n for value, n in known) / sum(n for _, n in known) if known else None


def settled(samples: pl.DataFrame, settings: SnapshotSettings) -> tuple[pl.DataFrame, int]:
    """(samples without those that stand on both sides, how many answers those were).

    Where an answer would be chosen here and rejected there, the strongest tier that takes a side decides; where that
    tier takes both, the answer is out altogether.
    """
    side = pl.when(pl.col("reward") >= settings.chosen_min).then(1).when(pl.col("reward") < settings.rejected_max).then(0)
    order = {tier.value: place for place, tier in enumerate(Tier)}
    sided = samples.with_columns(side.alias("side"), pl.col("tier").replace_strict(order, default=len(order)).alias("place"))
    known = sided.filter(pl.col("side").is_not_null())
    strongest = known.filter(pl.col("place") == pl.col("place").min().over(_ANSWER))
    verdict = strongest.group_by(_ANSWER).agg(pl.col("side").min().alias("least"), pl.col("side").max().alias("most"))
    joined = sided.join(verdict, on=_ANSWER, how="left", maintain_order="left")
    out = pl.col("side").is_not_null() & ((pl.col("least") != pl.col("most")) | (pl.col("side") != pl.col("least")))
    refused = joined.filter(out).select(_ANSWER).unique()
    return joined.filter(~out).drop("side", "place", "least", "most"), len(refused)
