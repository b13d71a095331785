"""Reads traces and feedback of one Iceberg snapshot with their present consent.

Traces are on disk in partitions: first those with all rows of some traces, for the rules of consent, then those with all traces of some
prompts. Feedback is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import polars as pl
from pyiceberg.expressions import BooleanExpression

from ratchet.contracts.data.records import TRACES
from ratchet.contracts.ids import Digest, digest
from ratchet.materializer.consent import refusing_users, settle
from ratchet.materializer.governance import with_facts
from ratchet.materializer.lake.schemas import empty_frame
from ratchet.materializer.lake.tables import TABLES, Lake, TableName, joined, preferred, until
from ratchet.materializer.late_references import LateReferences
from ratchet.materializer.partitioned.partitions import Partitions, by_hash, partitions_for
from ratchet.materializer.texts import AT_ONCE, TextFile

_READ = pl.exclude("batch")
"""Columns that are kept."""

Pinned = dict[str, int | None]
"""Table -> Iceberg snapshot id."""


@dataclass(frozen=True)
class Settled:
    """Traces and feedback with their present consent."""

    traces: Partitions
    """One row per trace, with the columns of `settle`. All traces with equal messages are in one partition."""
    feedback: pl.DataFrame
    """records.FEEDBACK without `batch`, also of refused traces. Late right answers are in `traces`."""
    refusing: list[str]
    """Users whose feedback must not be used."""
    pinned: Pinned
    texts: TextFile
    """The texts of `traces`, which have keys in their columns `messages`, `answer` and `tools`."""
    withdrawn: Digest
    """Digest over the traces whose content must not be used although it is stored, and over the refusing users who gave feedback."""
    late_references: int
    """Number of right answers that came after the first record of their trace."""
    replaced_references: dict[str, int]
    """Reason -> number of right answers that no row of `traces` has, because a later record of the trace has another one."""


@dataclass(frozen=True)
class Rows:
    """Rows as stored."""

    snapshots: Pinned
    traces: Partitions
    """With keys of texts, and with the columns of `with_facts`. All rows of a trace are in one partition."""
    texts: TextFile
    feedback: pl.DataFrame
    consent: pl.DataFrame

    def settled(self, as_of: datetime | None = None) -> Iterator[pl.DataFrame]:
        """Yield the rows of each partition that were ingested no later than `as_of`, with the columns of `settle`."""
        for rows in self.traces:
            known = rows if as_of is None else rows.filter(pl.col("ingested") <= as_of)
            yield settle(joined(known), self.consent)


class SettledReader:
    """Pins the tables of a lake and reads them, each row as seldom as possible."""

    def __init__(self, lake: Lake, placeholder: str) -> None:
        """`placeholder` is the result of `placeholder_pattern`."""
        self._lake, self._placeholder = lake, placeholder
        self._unused: Rows | None = None
        self._known: tuple[tuple[object, ...], Digest] | None = None

    def read(self, as_of: datetime | None, tag: str) -> Settled:
        """Return the rows of the Iceberg snapshots that are tagged `tag`, ingested no later than `as_of` (None: all).

        Statements about consent are neither pinned nor cut at `as_of`: a refusal counts as soon as it is ingested.
        """
        pinned = self._pin(tag, as_of)
        rows = self._rows(as_of, pinned)
        refusing, none = refusing_users(rows.consent), preferred(settle(rows.traces.read(0).clear(), rows.consent))
        traces, refused = Partitions(self._lake.root, rows.traces.count, none), list[tuple[str, str]]()
        late = LateReferences(rows.feedback, self._placeholder)
        alike = pl.when(pl.col("messages").is_null()).then(by_hash("source", "id")).otherwise(by_hash("messages"))
        for part in rows.settled(as_of):
            whole = preferred(part)
            refused += whole.filter(pl.col("refused") & pl.col("messages").is_not_null()).select("source", "id").rows()
            traces.add(late.given_to(whole, rows.texts), alike)
        raters = set(refusing) & set(rows.feedback["rater"].unique().to_list())
        settled = Settled(
            traces=traces,
            feedback=late.others,
            refusing=refusing,
            pinned=pinned,
            texts=rows.texts,
            withdrawn=digest([*sorted(refused), *sorted(raters)]),
            late_references=late.count,
            replaced_references=late.replaced(),
        )
        self._known = (tag, as_of, rows.snapshots), settled.withdrawn
        return settled

    def current(self) -> Rows:
        """Return all rows of the lake as they are now. Pins nothing."""
        return self._rows(None, {"traces": self._lake.snapshot("traces"), "feedback": self._lake.snapshot("feedback")})

    def withdrawn(self, as_of: datetime, tag: str) -> Digest:
        """Return `read(as_of, tag).withdrawn`. Reads no rows if no statement about consent was added since the last call for this tag."""
        snapshots = self._pin(tag, as_of) | {"consent": self._lake.snapshot("consent")}
        if self._known is not None and self._known[0] == (tag, as_of, snapshots):
            return self._known[1]
        return self.read(as_of, tag).withdrawn

    def _pin(self, tag: str, as_of: datetime | None) -> Pinned:
        """Pin the tables, where the rows in memory come from if they include all that were ingested no later than `as_of`."""
        pinned: Pinned = {}
        for name in ("traces", "feedback"):
            read = self._unused.snapshots[name] if self._unused else None
            pinned[name] = self._lake.pin(name, tag, (read, as_of) if read and as_of else None)
        return pinned

    def _rows(self, as_of: datetime | None, snapshots: Pinned) -> Rows:
        """Read the rows of these snapshots.

        Rows that are read without `as_of` stay in memory until the next call: a cycle freezes its edition and then its snapshot, from the
        same rows.
        """
        snapshots = snapshots | {"consent": self._lake.snapshot("consent")}
        unused, self._unused = self._unused, None

        def table(name: TableName) -> pl.DataFrame:
            if unused is None or unused.snapshots[name] != snapshots[name]:
                where = until(as_of) if as_of and name != "consent" else None
                columns = [column.name for column in TABLES[name] if name == "consent" or column.name != "batch"]
                return self._lake.scan(name, columns, where=where, snapshot=snapshots[name])
            found: pl.DataFrame = getattr(unused, name)
            return found if as_of is None or name == "consent" else found.filter(pl.col("ingested") <= as_of)

        if unused is not None and unused.snapshots["traces"] == snapshots["traces"]:
            texts, traces = unused.texts, unused.traces
        else:
            texts = TextFile(self._lake.root)
            traces = self._keyed(texts, until(as_of) if as_of else None, snapshots["traces"])
        rows = Rows(snapshots=snapshots, traces=traces, feedback=table("feedback"), consent=table("consent"), texts=texts)
        if as_of is None:
            self._unused = rows
        return rows

    def _keyed(self, texts: TextFile, where: BooleanExpression | None, snapshot: int | None) -> Partitions:
        """Read traces, and leave their texts in `texts`."""
        none = texts.keyed(with_facts(empty_frame(TRACES), self._placeholder).select(_READ))
        found = Partitions(self._lake.root, partitions_for(self._lake.size("traces")[0]), none)
        for part in self._lake.parts("traces", where=where, snapshot=snapshot):
            keyed = [texts.keyed(rows.select(_READ)) for rows in with_facts(part, self._placeholder).iter_slices(AT_ONCE)]
            found.add(pl.concat([none, *keyed]), by_hash("source", "id"))
        return found
