"""Resolves conflicts between samples of the same answer to the same prompt.

Votes on equal answers are pooled. Corrections that contradict each other, and answers with contradictory rewards, are removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from ratchet.contracts.conversation import without_call_ids
from ratchet.contracts.data.records import SAMPLES, FeedbackKind, Tier
from ratchet.contracts.loop import SnapshotSettings
from ratchet.materializer.lake.schemas import frame_of
from ratchet.materializer.texts import Texts

_ANSWER = ["prompt_id", "answer"]


def uncontested(feedback: pl.DataFrame, traces: pl.DataFrame, texts: Texts) -> tuple[pl.DataFrame, int]:
    """Return (feedback without contradicted corrections, number of corrections removed).

    A correction is contradicted if the same text was given as an answer to the same prompt and corrected to a different text. Then
    two users contradict each other, and neither is trusted. `traces` has the columns source, id, prompt_id and answer, and `texts` their
    texts; `feedback` is the result of `attach`. Differences in white space are ignored.
    """
    corrections = feedback.filter((pl.col("kind") == FeedbackKind.CORRECTION.value) & pl.col("text").is_not_null())
    answered = texts.filled(traces.join(corrections.select("source", "id"), on=["source", "id"], how="semi").drop("messages", "tools"))
    corrected = corrections.select("source", "id", _plain("text").alias("correction")).join(
        answered.select("source", "id", "prompt_id", _plain("answer").alias("wrong")), on=["source", "id"], how="inner"
    )
    disputed = corrected.filter(pl.col("correction") != pl.col("wrong")).select("prompt_id", pl.col("wrong").alias("correction")).unique()
    bad = corrected.join(disputed, on=["prompt_id", "correction"], how="semi").select("source", "id", "correction").unique()
    kept = feedback.with_columns(_plain("text").alias("correction"), pl.int_range(pl.len()).alias("place"))
    out = kept.filter(pl.col("kind") == FeedbackKind.CORRECTION.value).join(bad, on=["source", "id", "correction"], how="semi")
    return kept.filter(~pl.col("place").is_in(out["place"].to_list())).drop("correction", "place"), len(out)


def _plain(column: str) -> pl.Expr:
    return pl.col(column).str.replace_all(r"\s+", " ").str.strip_chars()


def pooled(samples: pl.DataFrame) -> pl.DataFrame:
    """Pool logged answers whose reward comes from user ratings: one row per prompt and text, with all their votes.

    `samples` and the result are records.SAMPLES; all other rows are unchanged. One positive rating among four does not make an
    answer right, and one negative rating does not make it wrong. The pooled row is charged to the user with the smallest pseudonym,
    so the caps per person still apply to it.
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


def without_contradictions(samples: pl.DataFrame, settings: SnapshotSettings) -> tuple[pl.DataFrame, int]:
    """Return (samples without contradictions, number of answers with contradictions).

    An answer has a contradiction if one sample of it counts as chosen and another one as rejected. The strongest tier with a sample
    on either side decides, and samples on the other side are removed. If that tier has samples on both sides, all of them are removed.
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


def with_equal_calls(samples: pl.DataFrame) -> pl.DataFrame:
    """Return the samples with equal answers where only the random ids of their tool calls differ."""
    calls = pl.col("answer").str.starts_with('{"content":')
    plain = pl.col("answer").map_elements(without_call_ids, return_dtype=pl.String)
    return samples.with_columns(pl.when(calls).then(plain).otherwise(pl.col("answer"))) if samples.select(calls.any()).item() else samples
