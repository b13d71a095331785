"""Decides which traces and which statements about consent of a batch are stored.

Each statement of an admitted record is stored once, either in the row of its trace or in the table `consent`, also if the record itself is
a duplicate or in conflict with a stored one. The state of a trace therefore does not depend on the order of its records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ratchet.contracts.data.datasets import RawBatch
from ratchet.contracts.data.decoding import PLACE, Decoded, Row
from ratchet.contracts.data.records import ConsentSubject
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.admission import DEFERRED
from ratchet.materializer.dialects.otlp import OF_LOGS
from ratchet.materializer.dialects.statement import STATED, Statement
from ratchet.materializer.lake.storing.dedup_index import DedupIndex, Known, TraceKeys, bare_key, full_key, key_of, sent_by, stated_by
from ratchet.materializer.record_hashes import Key


@dataclass
class SortedTraces:
    """Trace rows, grouped by outcome."""

    fresh: list[Row] = field(default_factory=list)
    keys: list[TraceKeys] = field(default_factory=list)
    """Those of `fresh`."""
    kept: int = 0
    """Number of rows that this or an earlier attempt of this batch stores."""
    duplicate: int = 0
    completed: int = 0
    """Number of kept rows that add the content of a trace that came without consent."""
    late: list[Row] = field(default_factory=list)
    """Duplicates with a right answer, which the stored record of their trace may lack."""
    stored: list[tuple[Row, bool]] = field(default_factory=list)
    """All rows, with whether the lake has or gets the row itself."""

    def keep(self, row: Row, keys: TraceKeys, is_new: bool) -> None:
        """Count a row that this batch stores. An earlier attempt of the batch may have stored it; then it is not new."""
        if is_new:
            self.fresh.append(row)
            self.keys.append(keys)
        self.kept += 1


def sort_traces(rows: list[Row], decoded: Decoded, seen: DedupIndex, batch: RawBatch) -> SortedTraces:
    """Group the rows by outcome. Of several rows with one key, the first is kept.

    A row without content, from a record without consent, is a duplicate of any other row of its trace. Content that follows such a row is
    kept if the same sender or the operator sends it. Any other row with a known id and different content is quarantined, because it is
    unknown which of the two is correct.
    """
    seen.catch_up("traces")
    keyed = [(row, TraceKeys.of(row)) for row in rows]
    wanted = [keys.full for _, keys in keyed]
    if seen.has_bare():
        wanted += [keys.bare for _, keys in keyed]
    known = seen.lookup("traces", wanted)
    found, here = SortedTraces(), dict[Key, bytes]()
    for row, keys in keyed:
        sort = _sort_withheld if keys.withheld else _sort_complete
        is_stored = sort(row, keys, known, here, found, decoded, batch)
        found.stored.append((row, is_stored))
    return found


def _sort_withheld(
    row: Row,
    keys: TraceKeys,
    known: dict[Key, Known],
    here: dict[Key, bytes],
    found: SortedTraces,
    decoded: Decoded,  # noqa: ARG001 -- the two functions have one signature
    batch: RawBatch,
) -> bool:
    bare, full, content, _ = keys
    earlier = known.get(bare)
    if bare in here or full in here or (not earlier.is_of(batch.digest) if earlier else full in known):
        found.duplicate += 1
        return False
    here[bare] = content
    found.keep(row, keys, earlier is None)
    return True


def _sort_complete(
    row: Row, keys: TraceKeys, known: dict[Key, Known], here: dict[Key, bytes], found: SortedTraces, decoded: Decoded, batch: RawBatch
) -> bool:
    bare, full, content, _ = keys
    earlier = known.get(full)
    first = here.get(full, earlier.content if earlier else None)
    waiting = here.get(bare, known[bare].content if bare in known else None)
    if first not in (None, content) or (first is None and waiting is not None and not _may_complete(row, waiting)):
        if batch.is_reread:
            found.duplicate += 1
        else:
            decoded.reject("traces", row["position"], conflict(batch.format), row.get(PLACE))
        if first is not None:
            here.setdefault(full, first)
        return False
    if full in here or (earlier and not earlier.is_of(batch.digest)):
        here.setdefault(full, content)
        found.duplicate += 1
        if row["reference"] is not None:
            found.late.append(row)
        return False
    here[full] = content
    found.keep(row, keys, earlier is None)
    found.completed += waiting is not None
    return True


def conflict(form: str) -> Rejected:
    """Return the reason for a record whose id a record with other content has. `form` is the format of its batch.

    Langfuse exports an observation again when it has changed. Of other sources, nobody knows which of the two is right.
    """
    if form == "langfuse":
        return Rejected("later_version", "Langfuse has exported the observation again with other content; the first version stays")
    return Rejected("id_conflict", "a record with the same id has different content")


def sort_halves(rows: list[Row], traces: SortedTraces, seen: DedupIndex) -> None:
    """Add rows of spans without content to the rows that are stored, unless the lake has one of the trace.

    They count as skipped already. The content of their trace may be stored before or after them.
    """
    known, here = seen.lookup("traces", [bare_key(row) for row in rows]), set[Key]()
    for row in rows:
        key = bare_key(row)
        is_new = key not in known and key not in here
        here.add(key)
        if is_new:
            traces.fresh.append(row)
            traces.keys.append(TraceKeys.of(row))
        traces.stored.append((row, is_new))


def without_refused(rows: list[Row], halves: list[Row], refused: Iterable[tuple[str, str]]) -> list[Row]:
    """Return rows without the content of log records whose span refuses consent, and with that of records whose span gives it.

    `refused` are sources and ids of traces with a stored refusal. `halves` are the spans of the same batch, and so of the same sender.
    """
    if not any(row.get(OF_LOGS) or row.get(DEFERRED) for row in rows):
        return rows
    no = set(refused) | {(row["source"], row["id"]) for row in (*rows, *halves) if (said := row.get(STATED)) is not None and not said.given}
    yes = {(row["source"], row["id"]) for row in halves if (said := row.get(STATED)) is not None and said.given} - no
    rows = [row | row[DEFERRED] if row.get(DEFERRED) and (row["source"], row["id"]) in yes else row for row in rows]
    empty: Row = dict.fromkeys(("messages", "answer", "tools", "reference"))
    return [row | empty | {"consent": False} if row.get(OF_LOGS) and (row["source"], row["id"]) in no else row for row in rows]


def _may_complete(row: Row, waiting: bytes) -> bool:
    """Return whether the sender of `row` may add content to the row with the content hash `waiting`.

    Otherwise a sender that knows the id of a trace could put words into the mouth of its user.
    """
    return bool(row["operator"]) or waiting == sent_by(row["sender"])


@dataclass
class SortedStatements:
    """Statements about consent, grouped by outcome."""

    fresh: list[Row] = field(default_factory=list)
    kept: int = 0
    """Number of records which only state consent that this or an earlier attempt of this batch stores."""
    duplicate: int = 0
    """Number of such records that were stored before."""
    changed: int = 0
    """Number of new statements about users, sessions, responses and known traces."""


def sort_statements(traces: SortedTraces, records: list[Row], seen: DedupIndex, batch: RawBatch) -> SortedStatements:
    """Group the statements of trace records, and the `records` that only state consent, by outcome.

    The consent of a stored trace is in its row. A refusal always gets a row of its own, which stays when the trace is deleted.
    """
    seen.catch_up("consent")
    rows = [
        (_row_of(row, said), is_stored, False)
        for row, is_stored in traces.stored
        if (said := row.get(STATED)) is not None and not (said.given and is_stored)
    ]
    rows += [(_refused_sending(row), is_stored, False) for row, is_stored in traces.stored if row.get("third_party") is False]
    rows += [(row, False, True) for row in records]
    if not rows:
        return SortedStatements()
    in_traces = _stated_in_traces([row for row, _, _ in rows if row["subject"] == ConsentSubject.TRACE], traces, seen)
    known = seen.lookup("consent", [key_of("consent", row) for row, _, _ in rows])
    found, here = SortedStatements(), set[Key]()
    for row, of_new_trace, is_record in rows:
        key = key_of("consent", row)
        earlier = known.get(key)
        is_known = key in here or key in in_traces or (earlier is not None and not earlier.is_of(batch.digest))
        here.add(key)
        if not is_known and earlier is None:
            found.fresh.append(row)
        found.changed += not is_known and not of_new_trace
        found.kept += is_record and not is_known
        found.duplicate += is_record and is_known
    return found


def _row_of(trace: Row, said: Statement) -> Row:
    same = {name: trace[name] for name in ("source", "id", "ingested", "batch", "sender", "operator")}
    return same | {"subject": ConsentSubject.TRACE.value, "given": said.given, "time": said.time}


def _refused_sending(trace: Row) -> Row:
    user = trace["user"]
    subject, identity = (ConsentSubject.TRACE_THIRD_PARTY, trace["id"]) if user is None else (ConsentSubject.USER_THIRD_PARTY, user)
    same = {name: trace[name] for name in ("source", "ingested", "batch", "sender", "operator")}
    return same | {"subject": subject.value, "id": identity, "given": False, "time": trace["time"]}


def _stated_in_traces(rows: list[Row], traces: SortedTraces, seen: DedupIndex) -> set[Key]:
    """Return the keys of those statements in `rows` that rows of their traces make themselves, in the lake or in this batch."""
    known = seen.lookup("traces", [key for row in rows for verified in (False, True) for key in _both(row, verified)])
    about = {(row["source"], row["id"]) for row in rows}
    here = (row for row, is_stored in traces.stored if is_stored and (row["source"], row["id"]) in about)
    found = {key_of("consent", row) for row in rows if row["given"] and any(_states(known, row))}
    return found | {key for row in here if (key := stated_by(row)) is not None}


def _states(known: dict[Key, Known], row: Row) -> Iterator[bool]:
    for verified in (False, True):
        for key in _both(row, verified):
            if key in known:
                yield known[key].states(row["time"], row["sender"])


def _both(row: Row, verified: bool) -> tuple[Key, Key]:
    named: dict[str, Any] = {"source": row["source"], "id": row["id"], "verified": verified}
    return bare_key(named), full_key(named)
