"""Refusals of whole OpenTelemetry traces, which have several model calls. Each call is a trace of the lake with an id of its own.

The span that refuses often ends last, and arrives after its calls or in another request. So its refusal is applied to the calls that are
stored, to those of its batch, and to those that come later.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
from pyiceberg.expressions import StartsWith

from ratchet.contracts.data.decoding import Row
from ratchet.contracts.data.records import ConsentSubject
from ratchet.materializer.dialects.otlp import EVERY_CALL
from ratchet.materializer.dialects.statement import STATED, Statement
from ratchet.materializer.lake.tables import Lake


def apply_refusals(lake: Lake, statements: Sequence[Row], traces: list[Row], halves: list[Row]) -> tuple[list[Row], list[Row], list[Row]]:
    """Return the traces and halves of a batch without refused content, and statements about calls that are stored.

    `statements` are those of the batch, complete. A refusal counts within its source.
    """
    fresh = [row for row in statements if row["subject"] == ConsentSubject.TRACE.value and row["id"].endswith(EVERY_CALL)]
    times = {(row["source"], _trace(row["id"])): row["time"] for row in fresh}
    if traces or halves:
        times = _known(lake) | times
    if not times:
        return traces, halves, []
    here = {row["id"] for row in (*traces, *halves)}  # these state the refusal themselves
    found = [row | {"id": identity} for row in fresh for identity in _stored(lake, row["source"], _trace(row["id"]))]
    stored = [row for row in found if row["id"] not in here]
    return [_refused(row, times) for row in traces], [_refused(row, times) for row in halves], stored


def _known(lake: Lake) -> dict[tuple[str, str], int]:
    return {(source, _trace(identity)): time for (source, identity), time in lake.refusals_ending(EVERY_CALL).items()}


def _stored(lake: Lake, source: str, trace: str) -> list[str]:
    rows = lake.scan("traces", ("source", "id"), where=StartsWith("id", f"{trace}:"))
    return sorted(set(rows.filter(pl.col("source") == source)["id"].to_list()))


def _refused(row: Row, times: dict[tuple[str, str], int]) -> Row:
    time = times.get((row["source"], row["id"].partition(":")[0])) if ":" in row["id"] else None
    if time is None:
        return row
    empty: Row = dict.fromkeys(("messages", "answer", "tools", "reference", "consent_time"))
    return row | empty | {"consent": False, STATED: Statement(False, time)}


def _trace(identity: str) -> str:
    return identity.removesuffix(EVERY_CALL)
