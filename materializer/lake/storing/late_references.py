"""Finds right answers that come with a record of a known trace, and that the trace lacks.

The record is a duplicate, because a right answer is no part of the content by which records are compared. Its right answer becomes feedback
of the kind `logged`, once for each text. The texts that trace rows have themselves are known by a table in the file of the deduplication
index. It is brought up to date only for a batch with such records, so that all other batches cost nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence

import polars as pl
from pyiceberg.expressions import NotNull

from ratchet.contracts.data.decoding import PLACE, Limits, Row
from ratchet.contracts.data.records import FeedbackKind
from ratchet.materializer.lake.storing.dedup_index import DedupIndex, late_reference_key
from ratchet.materializer.lake.storing.statements import SortedTraces
from ratchet.materializer.record_hashes import Key

_TABLE = "CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY) WITHOUT ROWID"
_NAME = "answers"
"""Name under which the index notes the Iceberg snapshot that the table covers."""
_COLUMNS = ("source", "id", "reference", "sender")


def late_references(seen: DedupIndex, traces: SortedTraces, limits: Limits) -> list[Row]:
    """Return rows of feedback, without what `Ingest` completes, for the right answers of duplicates that their traces lack.

    Their times are in the order of the records, because the newest right answer counts, and all records of a trace have the same time.
    """
    if not traces.late:
        return []
    keyed = [(_key(row), row) for row in traces.late]
    known = {_key(row) for row, is_stored in traces.stored if is_stored and row["reference"] is not None}
    known |= _of_traces(seen, [key for key, _ in keyed])
    return [_feedback(row, limits.now + number) for number, (key, row) in enumerate(keyed) if key not in known]


def _key(row: Row) -> Key:
    return late_reference_key(row["source"], row["id"], row["reference"], row["sender"])


def _feedback(trace: Row, time: int) -> Row:
    about = {"trace_id": trace["id"], "response_id": trace["response_id"], "rater": trace["user"], "time": time}
    said = {"kind": FeedbackKind.LOGGED.value, "value": None, "text": trace["reference"], "signal": None}
    return {**about, **said, "position": f"{trace['position']}, reference", PLACE: trace.get(PLACE)}


def _of_traces(seen: DedupIndex, keys: Sequence[Key]) -> set[Key]:
    """Return those of `keys` whose right answer a row of the table `traces` has."""
    with seen.connected() as connection, connection:
        connection.execute(_TABLE)
        current = seen.lake.snapshot("traces")
        covered = connection.execute("SELECT snapshot FROM covered WHERE name = ?", (_NAME,)).fetchone()
        if current is None:
            return set()
        if covered is None or covered[0] != current:
            _catch_up(seen, connection, covered[0] if covered else None)
            connection.execute("INSERT OR REPLACE INTO covered VALUES (?, ?)", (_NAME, current))
    return {key for (key,) in seen.select("key", _NAME, keys)}


def _catch_up(seen: DedupIndex, connection: sqlite3.Connection, since: int | None) -> None:
    """Add the right answers of the rows that were appended after the Iceberg snapshot `since`; of all rows if it is not known any more."""
    for part in _added(seen, connection, since):
        rows = part.drop_nulls("reference").select(_COLUMNS).iter_rows()
        connection.executemany("INSERT OR IGNORE INTO answers VALUES (?)", sorted((late_reference_key(*row),) for row in rows))


def _added(seen: DedupIndex, connection: sqlite3.Connection, since: int | None) -> Iterator[pl.DataFrame]:
    if since is not None and seen.lake.follows("traces", since):
        yield from seen.lake.parts_added("traces", since, _COLUMNS)
    else:
        connection.execute("DELETE FROM answers")
        yield from seen.lake.parts("traces", _COLUMNS, NotNull("reference"))
