"""Data governance: decides which traces may be used. The order of the rules is origin, consent, region,
confidentiality, quality, rarity, duplicates.

The rules fail closed: a trace with unknown consent, region or confidentiality is left out if the rule applies. Personal data in texts is
masked before, at ingest (materializer/privacy).

A right answer that the application logged, a correction and a reviewer's reference are evidence about a question. They count although the
trace that carries them is left out for its own answer, or because an equal trace represents it. A right answer with a masked value that its
question does not have is no evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from ratchet.contracts.data.records import PARTIAL
from ratchet.contracts.loop import GovernanceSettings
from ratchet.materializer.privacy.masked_values import has_unknown

_QUESTION = ["messages", "tools"]
_CONTENT = ["messages", "answer", "tools"]
_ASKED = ("source", "id", "time", "user", "sender", "response_id", "verified", *_QUESTION, "reference")
_JUDGED = ("origin", "region", "confidentiality", "consent", "consent_time", "refused", "status", "finish_reason")
"""Columns that the rules alone read."""
ANSWER_FAULTS = ("partial_answer", "failed_request", "truncated", "empty_response", "long_answer", "masked_answer")
"""Reasons that concern the answer of a trace only. Its question, and what people say about it, may be used."""
_IMAGE = '{"type":"image_url","image_url":{"url":'
"""Beginning of a part with an image. It cannot be in a text, where quotation marks are escaped."""
_FACTS: Mapping[str, pl.Expr] = {
    "has_image": pl.col("messages").str.contains(_IMAGE, literal=True),
    "question_chars": pl.col("messages").str.len_chars(),
    "answer_chars": pl.col("answer").str.len_chars(),
}
_MASKED = {"masked_answer": "answer", "masked_reference": "reference"}
"""Fact -> column with the text that has a masked value which the question does not have, if the fact is true."""


@dataclass(frozen=True)
class Governed:
    """Traces that may be used, and counts of the others by reason."""

    used: pl.DataFrame
    """Columns of records.TRACES without those that the rules alone read, and `repeats`. One row per distinct (messages, answer, tools),
    which represents `repeats` equal traces: the first whose attribution is verified, otherwise the first. `slice` is the first one that is
    given, `latency_ms` the mean."""
    questions: pl.DataFrame
    """The same columns, with `answer` null and `repeats` 0. One row per distinct (messages, tools): questions of traces that are left out
    for their answer only."""
    merged: pl.DataFrame
    """source, id, keeper_source, keeper_id: every trace whose question may be used, and the trace in `used` or `questions` that represents
    it (often itself)."""
    asked: pl.DataFrame
    """Every trace whose question may be used: the facts about its question and its user, and the right answer that was logged with it."""
    refused: pl.DataFrame
    """source, id, response_id, reason: every trace whose question may not be used, with the first rule that it breaks."""
    masked_references: int
    """Number of traces in `asked` without the right answer that was logged with them, because it has a masked value that the question does
    not have."""
    out: dict[str, int]
    """Reason -> number of traces left out. len(used) + sum(out.values()) = number of traces considered."""


def govern(traces: pl.DataFrame, settings: GovernanceSettings) -> Governed:
    """Apply the rules to `traces`, the result of `settle` with one row per trace.

    A trace that is left out is counted once, under the first rule that it breaks. `traces` has the columns of `with_facts`, and texts or
    keys of them (texts.py).
    """
    judged = traces.with_columns(
        _reason(settings).alias("reason"),
        pl.when(~pl.col("masked_reference")).then("reference").alias("reference"),
    )
    judged = judged.drop(*_FACTS, "masked_answer", *_JUDGED).sort("time", "source", "id")
    usable = judged.filter(~_concerns_question())
    common = usable.filter(pl.col("user").n_unique().over("messages") >= settings.min_users)  # null counts as one user
    masked = int(common["masked_reference"].sum())
    common = common.drop("masked_reference")
    admitted = common.filter(pl.col("reason").is_null()).drop("reason")
    faulty = (
        common.filter(pl.col("reason").is_not_null()).drop("reason").with_columns(pl.lit(None, traces.schema["answer"]).alias("answer"))
    )
    used, merged = _merge(admitted, _CONTENT)
    questions, asked = _merge(faulty, _QUESTION)
    out = dict(judged.filter(pl.col("reason").is_not_null()).group_by("reason").len().sort("reason").iter_rows())
    rare = len(usable.filter(pl.col("reason").is_null())) - len(admitted)
    if rare:
        out["rare_prompt"] = rare
    if len(used) < len(merged):
        out["duplicate"] = len(merged) - len(used)
    others = judged.join(common.select("source", "id"), on=["source", "id"], how="anti")
    refused = others.select(
        "source", "id", "response_id", pl.when(_concerns_question()).then("reason").otherwise(pl.lit("rare_prompt")).alias("reason")
    )
    questions = questions.with_columns(pl.lit(0, pl.Int64).alias("repeats"))
    return Governed(used, questions, pl.concat([merged, asked]), common.select(_ASKED), refused, masked, out)


def with_facts(traces: pl.DataFrame, placeholder: str) -> pl.DataFrame:
    """Return the traces with the facts about their texts that the rules need: characters, images, and masked values.

    `placeholder` is the result of `placeholder_pattern`.
    """
    masked = (has_unknown(traces[text], traces, placeholder).alias(name) for name, text in _MASKED.items())
    return traces.with_columns(*(fact.alias(name) for name, fact in _FACTS.items()), *masked)


def _concerns_question() -> pl.Expr:
    return pl.col("reason").is_not_null() & ~pl.col("reason").is_in(ANSWER_FAULTS)


def _merge(traces: pl.DataFrame, keys: list[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return (one row for all traces with equal `keys`, the trace that represents each trace).

    `traces` are sorted by time, source and id.
    """
    ranked = traces.sort(pl.col("verified").fill_null(False), descending=True, maintain_order=True)
    first = [pl.col(key).first().over(keys).alias(f"keeper_{key}") for key in ("source", "id")]
    given = pl.col("slice").sort_by("time", "source", "id").drop_nulls().first()
    shared = [given.over(keys), pl.col("latency_ms").mean().over(keys), pl.len().over(keys).cast(pl.Int64).alias("repeats")]
    merged = ranked.with_columns(first).with_columns(shared).sort("time", "source", "id")
    stands = (pl.col("source") == pl.col("keeper_source")) & (pl.col("id") == pl.col("keeper_id"))
    return merged.filter(stands).drop("keeper_source", "keeper_id"), merged.select("source", "id", "keeper_source", "keeper_id")


def _reason(settings: GovernanceSettings) -> pl.Expr:
    """Return an expression for the first broken rule; null if all rules hold."""
    agreed = pl.col("messages").is_not_null()  # content is stored only with consent, or if the loop file assumes consent
    agreed = agreed & ~pl.col("refused")
    if settings.consent == "required":
        agreed = agreed & pl.col("consent")
    in_region = pl.col("region").is_in(settings.regions).fill_null(False) if settings.regions else pl.lit(True)
    allowed = settings.confidentiality
    labelled = pl.col("confidentiality").is_in(allowed).fill_null(False) if allowed else pl.lit(True)
    rules = (
        ("origin", pl.col("origin") == "traffic"),
        ("consent", agreed),
        ("region", in_region),
        ("confidentiality", labelled),
        ("images", ~pl.col("has_image")),  # no trainer trains on images
        ("too_long", pl.col("question_chars") <= settings.max_chars),
        ("partial_answer", (pl.col("finish_reason") != PARTIAL).fill_null(True)),
        ("failed_request", pl.col("status") == "ok"),
        ("truncated", (pl.col("finish_reason") != "length").fill_null(True)),
        ("empty_response", (pl.col("answer_chars") > 0).fill_null(False)),
        ("long_answer", pl.col("answer_chars") <= settings.max_chars),
        ("masked_answer", ~pl.col("masked_answer")),
    )
    reason: pl.Expr = pl.lit(None, dtype=pl.String)
    for name, holds in reversed(rules):
        reason = pl.when(holds).then(reason).otherwise(pl.lit(name))
    return reason
