"""One batch into the lake, exactly once, with an account that adds up.

A record that the lake holds already from this same batch was kept by an earlier try that did not finish: it counts as kept
and is not written again. So a repeat after a crash between any two commits completes the rest, and reports what one
undisturbed run would have. Knows the lake and the decoders; what is fit for training is decided much later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from contracts.data import Counts, FeedbackCounts, IngestReport, RawBatch
from contracts.errors import Rejected
from contracts.records import FeedbackKind
from materializer.decode import decode
from materializer.decoded import Decoded, Kind, Limits, Row
from materializer.lake import TABLES, Lake, TableName
from materializer.schemas import arrow_table
from materializer.seen import Key, Seen, content_of, key_of, response_key, trace_key


@dataclass
class Sorted:
    """Rows of one table, sorted by what becomes of them."""

    fresh: list[Row] = field(default_factory=list)
    again: int = 0
    """Written by an earlier try of this batch."""
    duplicate: int = 0


def ingest(lake: Lake, seen: Seen, batch: RawBatch, limits: Limits) -> IngestReport:
    """Decodes `batch` and commits its traces, then its feedback, then its quarantine. Safe to repeat at any point."""
    decoded = decode(batch, limits)
    with lake.writing():
        traces = _sort("traces", decoded.traces, decoded, seen, batch, limits)
        _write(lake, "traces", traces.fresh, batch)
        seen.catch_up("traces")
        kept, parked = _admit(decoded, seen, batch)
        feedback = _sort("feedback", kept, decoded, seen, batch, limits)
        _write(lake, "feedback", feedback.fresh, batch)
        _write(lake, "quarantine", _quarantine(decoded, seen, batch, limits), batch)
    counts = _counts("feedback", feedback, decoded)
    return IngestReport(traces=_counts("traces", traces, decoded), feedback=FeedbackCounts(**counts.model_dump(), parked=parked))


def _write(lake: Lake, table: TableName, rows: list[Row], batch: RawBatch) -> None:
    if rows:
        lake.append(table, arrow_table(rows, TABLES[table]), batch.digest)


def _complete(rows: Iterable[Row], batch: RawBatch, limits: Limits) -> list[Row]:
    return [row | {"source": batch.source, "batch": batch.digest, "ingested": limits.now} for row in rows]


def _sort(table: Kind, rows: list[Row], decoded: Decoded, seen: Seen, batch: RawBatch, limits: Limits) -> Sorted:
    """The first of equal keys wins. The same key with other content is a conflict, and quarantined: nobody knows which is true."""
    seen.catch_up(table)
    keyed = [(key_of(table, row), row) for row in _complete(rows, batch, limits)]
    stored = seen.lookup(table, [key for key, _ in keyed])
    found = Sorted()
    here: dict[Key, bytes] = {}
    for key, row in keyed:
        content = content_of(table, row)
        known = stored.get(key)
        first = here.get(key, known.content if known else content)
        if first != content:
            decoded.reject(table, row["position"], Rejected("id_conflict", "the same id came with other content"))
        elif key in here or (known and known.batch != batch.digest):
            found.duplicate += 1
        elif known:
            found.again += 1
        else:
            found.fresh.append(row)
        here.setdefault(key, first)
    return found


def _admit(decoded: Decoded, seen: Seen, batch: RawBatch) -> tuple[list[Row], int]:
    """(feedback that may be stored, how much of it waits for its trace). Text about a trace without consent is content: left out."""
    subjects = [_subject(batch.source, row) for row in decoded.feedback]
    known = seen.subjects(subjects)
    kept, waiting = [], set()
    for subject, row in zip(subjects, decoded.feedback, strict=True):
        if row["kind"] != FeedbackKind.RATING and known.get(subject) is False:
            decoded.skip("feedback", "no_consent")
            continue
        kept.append(row)
        if subject not in known:
            waiting.add(key_of("feedback", row | {"source": batch.source}))
    return kept, len(waiting)


def _subject(source: str, row: Row) -> Key:
    return trace_key(source, row["trace_id"]) if row["trace_id"] is not None else response_key(source, row["response_id"])


def _quarantine(decoded: Decoded, seen: Seen, batch: RawBatch, limits: Limits) -> list[dict[str, Any]]:
    """Rows for the quarantine that an earlier try has not written."""
    seen.catch_up("quarantine")
    bad = [{"position": bad.position, "reason": bad.reason, "detail": bad.detail} for bad in decoded.bad]
    rows = {key_of("quarantine", row): row for row in _complete(bad, batch, limits)}
    stored = seen.lookup("quarantine", list(rows))
    return [row for key, row in rows.items() if key not in stored]


def _counts(kind: Kind, rows: Sorted, decoded: Decoded) -> Counts:
    bad = Counter(item.reason for item in decoded.bad if item.kind == kind)
    skipped = decoded.skipped[kind]
    kept = len(rows.fresh) + rows.again
    total = kept + rows.duplicate + skipped.total() + bad.total()
    reasons = dict(sorted((skipped + bad).items()))
    return Counts(read=total, kept=kept, duplicate=rows.duplicate, skipped=skipped.total(), quarantined=bad.total(), reasons=reasons)
