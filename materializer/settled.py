"""Reads traces and feedback of one Iceberg snapshot with their present consent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import polars as pl
from pyiceberg.expressions import BooleanExpression

from ratchet.contracts.data.records import TRACES
from ratchet.contracts.ids import Digest, digest
from ratchet.materializer.consent import refusing_users, settle
from ratchet.materializer.governance import with_facts
from ratchet.materializer.lake.schemas import empty_frame
from ratchet.materializer.lake.tables import Lake, TableName, joined, preferred, until
from ratchet.materializer.texts import AT_ONCE, TextFile

_READ = pl.exclude("batch")
"""Columns of the traces that are kept in memory."""

Pinned = dict[str, int | None]
"""Table -> Iceberg snapshot id."""


@dataclass(frozen=True)
class Settled:
    """Traces and feedback with their present consent."""

    traces: pl.DataFrame
    """One row per trace, with the columns of `settle`."""
    feedback: pl.DataFrame
    """records.FEEDBACK, also of refused traces."""
    refusing: list[str]
    """Users whose feedback must not be used."""
    pinned: Pinned
    texts: TextFile
    """The texts of `traces`, which have keys in their columns `messages`, `answer` and `tools`."""

    @property
    def withdrawn(self) -> Digest:
        """Digest over the traces whose content must not be used although it is stored, and over the refusing users who gave feedback."""
        refused = self.traces.filter(pl.col("refused") & pl.col("messages").is_not_null()).select("source", "id").sort("source", "id")
        raters = set(self.refusing) & set(self.feedback["rater"].to_list())
        return digest([*refused.rows(), *sorted(raters)])


@dataclass(frozen=True)
class Rows:
    """Rows as stored."""

    snapshots: Pinned
    traces: pl.DataFrame
    """With keys of texts, and with the columns of `with_facts`."""
    texts: TextFile
    feedback: pl.DataFrame
    consent: pl.DataFrame


class SettledReader:
    """Pins the tables of a lake and reads them, each row as seldom as possible."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._unused: Rows | None = None
        self._known: tuple[tuple[object, ...], Digest] | None = None

    def read(self, as_of: datetime | None, tag: str) -> Settled:
        """Return the rows of the Iceberg snapshots that are tagged `tag`, ingested no later than `as_of` (None: all).

        Statements about consent are neither pinned nor cut at `as_of`: a refusal counts as soon as it is ingested.
        """
        pinned = self._pin(tag, as_of)
        rows = self._rows(as_of, pinned)
        settled = Settled(
            traces=preferred(settle(joined(rows.traces), rows.consent)),
            feedback=rows.feedback,
            refusing=refusing_users(rows.consent),
            pinned=pinned,
            texts=rows.texts,
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
                if name == "traces":
                    return self._keyed(texts, where, snapshots[name])
                return self._lake.scan(name, where=where, snapshot=snapshots[name])
            found: pl.DataFrame = getattr(unused, name)
            return found if as_of is None or name == "consent" else found.filter(pl.col("ingested") <= as_of)

        is_read = unused is not None and unused.snapshots["traces"] == snapshots["traces"]
        texts = unused.texts if unused is not None and is_read else TextFile(self._lake.root)
        rows = Rows(snapshots=snapshots, traces=table("traces"), feedback=table("feedback"), consent=table("consent"), texts=texts)
        if as_of is None:
            self._unused = rows
        return rows

    def _keyed(self, texts: TextFile, where: BooleanExpression | None, snapshot: int | None) -> pl.DataFrame:
        """Read traces, and leave their texts in `texts`."""
        none = texts.keyed(with_facts(empty_frame(TRACES)).select(_READ))
        parts = (with_facts(part) for part in self._lake.parts("traces", where=where, snapshot=snapshot))
        found = [texts.keyed(rows.select(_READ)) for part in parts for rows in part.iter_slices(AT_ONCE)]
        return pl.concat([none, *found], rechunk=True)
