"""Data governance: decides which traces may be used. The order of the rules is origin, consent, region,
confidentiality, quality, rarity, duplicates.

The rules fail closed: a trace with unknown consent, region or confidentiality is left out if the rule applies. Personal data in texts is
masked before, at ingest (materializer/privacy).
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from ratchet.contracts.data.records import PARTIAL
from ratchet.contracts.loop import GovernanceSettings

_CONTENT = ["messages", "answer", "tools"]
_IMAGE = '{"type":"image_url","image_url":{"url":'
"""Beginning of a part with an image. It cannot be in a text, where quotation marks are escaped."""


@dataclass(frozen=True)
class Governed:
    """Traces that may be used, and counts of the others by reason."""

    used: pl.DataFrame
    """Columns of records.TRACES, and `repeats`. One row per distinct (messages, answer, tools): the first of `repeats` equal traces."""
    merged: pl.DataFrame
    """source, id, keeper_source, keeper_id: every admitted trace and the equal trace that represents it (often itself)."""
    out: dict[str, int]
    """Reason -> number of traces left out. len(used) + sum(out.values()) = number of traces considered."""


def govern(traces: pl.DataFrame, settings: GovernanceSettings) -> Governed:
    """Apply the rules to `traces`, the result of `settle` with one row per trace.

    A trace that is left out is counted once, under the first rule that it breaks.
    """
    judged = traces.with_columns(_reason(settings).alias("reason"))
    admitted = judged.filter(pl.col("reason").is_null()).drop("reason").sort("time", "source", "id")
    common = admitted.filter(pl.col("user").n_unique().over("messages") >= settings.min_users)  # null counts as one user
    rare, admitted = len(admitted) - len(common), common
    first = [pl.col(key).first().over(_CONTENT).alias(f"keeper_{key}") for key in ("source", "id")]
    merged = admitted.with_columns(first).with_columns(pl.len().over(_CONTENT).cast(pl.Int64).alias("repeats"))
    stands = (pl.col("source") == pl.col("keeper_source")) & (pl.col("id") == pl.col("keeper_id"))
    used = merged.filter(stands).drop("keeper_source", "keeper_id")
    out = dict(judged.filter(pl.col("reason").is_not_null()).group_by("reason").len().sort("reason").iter_rows())
    if rare:
        out["rare_prompt"] = rare
    if len(used) < len(merged):
        out["duplicate"] = len(merged) - len(used)
    return Governed(used, merged.select("source", "id", "keeper_source", "keeper_id"), out)


def _reason(settings: GovernanceSettings) -> pl.Expr:
    """Return an expression for the first broken rule; null if all rules hold."""
    agreed = pl.col("messages").is_not_null()  # content is stored only with consent, or if the loop file assumes consent
    agreed = agreed & ~pl.col("refused")
    if settings.consent == "required":
        agreed = agreed & pl.col("consent")
    in_region = pl.col("region").is_in(settings.regions).fill_null(False) if settings.regions else pl.lit(True)
    allowed = settings.confidentiality
    labelled = pl.col("confidentiality").is_in(allowed).fill_null(False) if allowed else pl.lit(True)
    longest = pl.max_horizontal(pl.col("messages").str.len_chars(), pl.col("answer").str.len_chars())
    rules = (
        ("origin", pl.col("origin") == "traffic"),
        ("consent", agreed),
        ("region", in_region),
        ("confidentiality", labelled),
        ("partial_answer", (pl.col("finish_reason") != PARTIAL).fill_null(True)),
        ("failed_request", pl.col("status") == "ok"),
        ("truncated", (pl.col("finish_reason") != "length").fill_null(True)),
        ("empty_response", (pl.col("answer").str.len_chars() > 0).fill_null(False)),
        ("images", ~pl.col("messages").str.contains(_IMAGE, literal=True)),  # no trainer trains on images
        ("too_long", longest <= settings.max_chars),
    )
    reason: pl.Expr = pl.lit(None, dtype=pl.String)
    for name, holds in reversed(rules):
        reason = pl.when(holds).then(reason).otherwise(pl.lit(name))
    return reason
