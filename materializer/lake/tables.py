"""The lake: Iceberg tables of traces, feedback, statements about consent and quarantined records.

It only stores and returns rows; the decoders decide which content is stored. Catalog and files are below one folder, or in Postgres and a
bucket (`place.py`). In both cases, one installation writes: the locks are files.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import polars as pl
from pydantic import ValidationError
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, RESTError, ValidationException
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, LessThanOrEqual
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import DataScan, Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import DayTransform, IdentityTransform
from sqlalchemy.exc import SQLAlchemyError

from ratchet.contracts.data.records import CONSENT, FEEDBACK, QUARANTINE, TRACES, Column
from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import Digest
from ratchet.materializer.consent import ErasedPeople, erased_people
from ratchet.materializer.lake.arrow import pa
from ratchet.materializer.lake.commits import LeanTransaction
from ratchet.materializer.lake.compaction import is_appended, is_compaction
from ratchet.materializer.lake.deletion import Change, forget_history, rewrite, unreachable
from ratchet.materializer.lake.places.caching import CachingCatalog
from ratchet.materializer.lake.places.files import LakeFile, LakeFiles, files_of
from ratchet.materializer.lake.places.moved import adopt_place, was_moved
from ratchet.materializer.lake.places.place import CATALOG, CATALOG_NAME, LakePlace, place_of, reason
from ratchet.materializer.lake.places.size import table_size
from ratchet.materializer.lake.schemas import arrow_schema, iceberg_schema, missing_columns, present

TableName: TypeAlias = Literal["traces", "feedback", "consent", "quarantine"]
TABLES: Mapping[TableName, tuple[Column, ...]] = {"traces": TRACES, "feedback": FEEDBACK, "consent": CONSENT, "quarantine": QUARANTINE}
_DAILY: Mapping[TableName, tuple[str, ...]] = {"traces": ("consent",), "feedback": (), "consent": (), "quarantine": ()}
"""Partition columns in addition to the day of `time`. Quarantine is small, has no time and is not partitioned."""

ORDER: Mapping[TableName, tuple[str, ...]] = {"traces": ("model", "time", "id")}
"""How the rows of a file are sorted. Similar rows compress well, and a reader of one model can skip the other row groups."""

_PROPERTIES = {
    # Each commit writes a metadata file and a manifest. Without these settings, many small batches make every later commit slower.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "32",  # a scan reads each manifest, and the default is 100
}

BATCH = "ratchet.batch"
"""Snapshot property with the digest of the committed batch. It records lineage and is readable by any Iceberg engine."""


FAILURES = (CommitFailedException, ValidationException, RESTError, OSError, SQLAlchemyError)
"""What pyiceberg raises if the storage or the catalog fails, or if another writer was faster."""


class Read(NamedTuple):
    """State of a table that a writer has read before it appends rows: its snapshot then, None for an empty table."""

    snapshot: int | None


class Commit(NamedTuple):
    """The snapshots of a table before and after rows were appended. Between them, no other rows were."""

    before: int | None
    after: int | None


class Lake:
    """The Iceberg tables at a place. Missing tables are created at first use. A path is the folder of a local lake.

    The folder of a local lake may be moved or copied while nobody uses it. `root` has the locks, the index and the caches.
    """

    def __init__(self, where: LakePlace | Path) -> None:
        self.place = place_of(where)
        self.root = self.place.folder.resolve()
        self._erased: tuple[int | None, ErasedPeople] = None, ErasedPeople()
        self._refused: tuple[int | None, dict[tuple[str, str], int]] = None, {}

    @cached_property
    def _catalog(self) -> Catalog:
        if self.place.is_shared:
            from ratchet.materializer.lake.places.shared import shared_catalog

            catalog: Catalog = shared_catalog(self.place.catalog, self.place.warehouse)
        else:
            warehouse = self.root / "warehouse"
            warehouse.mkdir(parents=True, exist_ok=True)
            self._adopt_place()
            catalog = CachingCatalog(CATALOG_NAME, uri=f"sqlite:///{self.root / CATALOG}", warehouse=f"file://{warehouse}")
        catalog.create_namespace_if_not_exists(self.place.namespace)
        return catalog

    @cached_property
    def _files(self) -> LakeFiles:
        return files_of(self.place)

    @contextmanager
    def reaching(self, what: str) -> Iterator[None]:
        """Raise Retryable, with `what` was tried and the reason, if the storage or the catalog fails inside the block."""
        try:
            yield
        except ValidationError:  # its text may quote a token of a REST catalog
            raise Retryable(f"cannot {what} in {self.place}: a reply has not the form of the REST protocol; {self.place.remedy}") from None
        except (CommitFailedException, ValidationException) as error:  # the storage works, but the table is not as expected
            raise Retryable(f"cannot {what} in {self.place}: {reason(error)}; try again") from error
        except FAILURES as error:
            raise Retryable(f"cannot {what} in {self.place}: {reason(error)}; {self.place.remedy}") from error

    def _reading(self, what: str) -> AbstractContextManager[None]:
        """Return `reaching` for a shared lake. A local one that cannot be read is a defect of the machine, and says so itself."""
        return self.reaching(what) if self.place.is_shared else nullcontext()

    def _adopt_place(self) -> None:
        """Correct the absolute paths of the tables if the folder was moved or copied. Raises Retryable if that fails."""
        if not was_moved(self.root):
            return
        try:
            with self._locked(".moving"):  # a writer may have the write lock already; none has written before this
                adopt_place(self.root)
        except (OSError, ValueError, KeyError, sqlite3.Error) as error:
            raise Retryable(
                f"the lake in {self.root} was moved, and the paths in its metadata cannot be corrected: {type(error).__name__}: {error}; "
                "try again, or restore the folder from a backup"
            ) from error

    def table(self, name: TableName) -> Table:
        """Return a table as it is now. It is created if it does not exist."""
        identifier = f"{self.place.namespace}.{name}"
        with self._reading(f"open {name}"):
            try:
                return self._catalog.load_table(identifier)
            except NoSuchTableError:
                spec, order = _layout(name)
                return self._catalog.create_table_if_not_exists(
                    identifier, iceberg_schema(TABLES[name]), self._location(name), spec, order, _PROPERTIES
                )

    def _location(self, name: TableName) -> str | None:
        """Return where the files of a new table go; None if the catalog decides. A REST catalog would use a place of its own."""
        return f"{self.place.warehouse}/{self.place.namespace}/{name}" if self.place.is_shared else None

    def _complete(self, name: TableName) -> Table:
        """Return the table with all columns of this release: it gets those that were added since it was created."""
        table = self.table(name)
        if missing_columns(table.schema(), TABLES[name]):
            with table.update_schema() as update:
                update.union_by_name(iceberg_schema(TABLES[name]))
        return table

    def adopt_properties(self, name: TableName) -> None:
        """Give a table that an earlier release has created the properties of this one. The caller holds the write lock."""
        table = self.table(name)
        if not _PROPERTIES.items() <= table.properties.items():
            with self._reading(f"change {name}"), table.transaction() as change:
                change.set_properties(_PROPERTIES)

    def writing(self) -> AbstractContextManager[bool]:
        """Hold the exclusive write lock of the lake, across processes. Waits until another writer has finished."""
        return self._locked(".writing")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the write lock while no compaction is under way: every file that no metadata names now is one that none will name.

        A compaction writes its files without the write lock. Waits until it has finished.
        """
        with self.compacting(), self.writing():
            yield

    def compacting(self, wait: bool = True) -> AbstractContextManager[bool]:
        """Hold the lock of a compaction, across processes. A caller that takes both locks and waits takes this one first.

        Yields whether it is held. Without `wait`, it is not if another process holds it.
        """
        return self._locked(".compacting", wait)

    @contextmanager
    def _locked(self, file: str, wait: bool = True) -> Iterator[bool]:
        """Hold a lock of the lake. Yields whether it is held: without `wait`, another process may hold it."""
        self.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.root / file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
        finally:
            os.close(descriptor)

    def has_pseudonyms(self) -> bool:
        """Return whether the lake has rows whose ids were replaced by pseudonyms."""
        return any(self.snapshot(name) is not None for name in ("traces", "feedback"))

    def erased_people(self) -> ErasedPeople:
        """Return the people whose records must not be stored. The statements are read again only if the table has changed."""
        snapshot = self.snapshot("consent")
        if snapshot != self._erased[0]:
            self._erased = snapshot, erased_people(self.scan("consent"))
        return self._erased[1]

    def refusals_ending(self, end: str) -> dict[tuple[str, str], int]:
        """Return source and id -> time (microseconds) of the statements about traces whose id ends in `end`, always the same text.

        The statements are read again only if the table has changed.
        """
        snapshot = self.snapshot("consent")
        if snapshot != self._refused[0]:
            rows = self.scan("consent", ("source", "subject", "id", "given", "time"))
            rows = rows.filter((pl.col("subject") == "trace") & ~pl.col("given") & pl.col("id").str.ends_with(end))
            found = rows.with_columns(pl.col("time").dt.epoch("us")).select("source", "id", "time").iter_rows()
            self._refused = snapshot, {(source, identity): time for source, identity, time in found}
        return self._refused[1]

    def rewrite(self, name: TableName, change: Change) -> int:
        """Delete or change rows of `name` and return their number. The caller holds the write lock. A repeated call completes the first.

        Raises Retryable if the storage or the catalog fails.
        """
        with self.reaching(f"delete rows of {name}"):
            return rewrite(self._complete(name), change)

    def forget_history(self, name: TableName) -> None:
        """Make the current snapshot the only one: tags move to it, and all others expire. The caller holds the write lock.

        Raises Retryable if the storage or the catalog fails.
        """
        with self.reaching(f"expire snapshots of {name}"):
            forget_history(self.table(name))

    def unreachable(self, name: TableName) -> list[LakeFile]:
        """Return the files below the table's location to which no snapshot refers. The caller is `alone` while it deletes them."""
        table = self.table(name)
        with self._reading(f"list the files of {name}"):
            return unreachable(table, self._files, self._files.below(table.location()))

    def unused(self) -> list[LakeFile]:
        """Return the files below the locations of all tables to which no snapshot refers. No writer will refer to them, either.

        Writers wait only while the files are listed. Raises Retryable if an erasure deletes files meanwhile, or if the storage fails.
        """
        with self.alone():
            listed = [(table, self._files.below(table.location())) for table in map(self.table, TABLES)]
        try:
            return [file for table, files in listed for file in unreachable(table, self._files, files)]
        except OSError as error:
            raise Retryable(f"the metadata of the lake in {self.place} changed while it was read: {error}; try again") from error

    def delete(self, file: LakeFile) -> None:
        """Delete a file to which nothing refers, for good. Does nothing if it does not exist."""
        self._files.delete(file)

    def append(self, name: TableName, rows: pa.Table, batch: Digest, read: Read | None = None) -> Commit | None:
        """Append rows in one commit that is marked with the digest of its batch. Without rows, there is no commit, and None is returned.

        `read` is the state that the caller has read before it decided on these rows. Raises Retryable if the table has changed since, or if
        the storage or the catalog fails. Then it may be unknown whether the commit was made; the next attempt finds its rows.
        """
        if rows.num_rows == 0:
            return None
        with self.reaching(f"write {rows.num_rows} rows to {name}"):
            table = self._complete(name)
            before = table.current_snapshot()
            found = Read(int(before.snapshot_id) if before else None)
            if read is not None and read != found:
                raise Retryable(f"another writer has changed {name} in {self.place} meanwhile; try again")
            with LeanTransaction(table) as change:
                change.append_rows(rows, ORDER.get(name, ()), {BATCH: batch})
            after = table.current_snapshot()
            return Commit(found.snapshot, int(after.snapshot_id) if after else None)

    def scan(
        self,
        name: TableName,
        columns: Sequence[str] = ("*",),
        where: BooleanExpression | None = None,
        snapshot: int | None = None,
    ) -> pl.DataFrame:
        """Return the rows of `name` as of an Iceberg snapshot (None: the current one). Files that `where` excludes are not read.

        Columns that were added after the table or the snapshot was written are null. `where` must not name them. Raises Retryable if the
        snapshot has expired.
        """
        with self._reading(f"read {name}"):
            return _frame(self._scan(self.table(name), name, columns, where, snapshot).to_arrow(), name, columns)

    def parts(
        self, name: TableName, columns: Sequence[str] = ("*",), where: BooleanExpression | None = None, snapshot: int | None = None
    ) -> Iterator[pl.DataFrame]:
        """Yield the rows that `scan` returns, those of one file at a time, so that they are never in memory together."""
        from pyiceberg.io.pyarrow import ArrowScan  # after arrow.py, so that it does not load pandas

        table = self.table(name)
        scan = self._scan(table, name, columns, where, snapshot)
        reader = ArrowScan(table.metadata, table.io, scan.projection(), where or AlwaysTrue())
        with self._reading(f"read {name}"):
            for task in scan.plan_files():  # a batch reader of pyiceberg would read all files ahead
                yield _frame(reader.to_table([task]), name, columns)

    def _scan(
        self, table: Table, name: TableName, columns: Sequence[str], where: BooleanExpression | None, snapshot: int | None
    ) -> DataScan:
        if snapshot is not None and table.snapshot_by_id(snapshot) is None:
            raise Retryable(f"snapshot {snapshot} of {name} in {self.place} has expired, because rows were added meanwhile; try again")
        known = present(table, snapshot, TABLES[name], columns)
        return table.scan(row_filter=where or AlwaysTrue(), selected_fields=known, snapshot_id=snapshot)

    def added(self, name: TableName, since: int | None, columns: Sequence[str]) -> pl.DataFrame:
        """Return the rows appended after the Iceberg snapshot `since`; all rows if `since` is None, or if a snapshot after it has expired.

        Commits of a compaction add nothing.
        """
        table = self.table(name)
        current = table.current_snapshot()
        if current is None or current.snapshot_id == since:
            return _frame(arrow_schema(TABLES[name]).empty_table(), name, columns)
        if since is None or not _follows(table, since):
            return self.scan(name, columns)
        known = present(table, None, TABLES[name], columns)
        with self._reading(f"read {name}"):
            return _frame(table.incremental_append_scan(from_snapshot_id_exclusive=since, selected_fields=known).to_arrow(), name, columns)

    def follows(self, name: TableName, since: int) -> bool:
        """Return whether all that was appended to a table after an Iceberg snapshot is known, so that `added` does not read all rows."""
        current = self.snapshot(name)
        return current == since or (current is not None and _follows(self.table(name), since))

    def parts_added(self, name: TableName, since: int | None, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Yield the same rows as `added` returns; all rows of a table in parts, so that they are never in memory together."""
        table = self.table(name)
        current = table.current_snapshot()
        if current is None or current.snapshot_id == since:
            return
        if since is None or not _follows(table, since):
            yield from self.parts(name, columns)
        else:
            yield self.added(name, since, columns)

    def pin(self, name: TableName, tag: str, read: tuple[int, datetime] | None = None) -> int | None:
        """Tag the current Iceberg snapshot so that it never expires, and return its id; None for an empty table.

        `read` is a snapshot and a time. This snapshot is tagged instead if it is the current one except for rows that were appended after
        this time. If the tag exists, it is kept and the id of its snapshot is returned.
        """
        with self.writing(), self._reading(f"pin {name}"):
            table = self.table(name)
            known = table.refs().get(tag)
            current = known.snapshot_id if known else read[0] if read and _only_appended(table, *read) else self.snapshot(name)
            if known is None and current is not None:
                table.manage_snapshots().create_tag(current, tag).commit()
        return current

    def unpin(self, name: TableName, tag: str) -> None:
        """Remove a tag, so that its snapshot may expire. Does nothing if the tag does not exist."""
        with self.writing(), self._reading(f"unpin {name}"):
            table = self.table(name)
            if tag in table.refs():
                table.manage_snapshots().remove_tag(tag).commit()

    def snapshot(self, name: TableName) -> int | None:
        """Return the current Iceberg snapshot id; None for an empty table."""
        current = self.table(name).current_snapshot()
        return int(current.snapshot_id) if current else None

    def size(self, name: TableName) -> tuple[int, datetime | None]:
        """Return (number of rows, time of the newest commit), read from metadata only."""
        return table_size(self.place, name)


_OF_CALL = ("user", "session", "response_id", "model", "finish_reason", "latency_ms", "input_tokens", "output_tokens")
_DESCRIBED = ("region", "confidentiality", "slice", "third_party")


def joined(traces: pl.DataFrame) -> pl.DataFrame:
    """Return the rows, each with the metadata that the other row of its trace has, if one sender sent both.

    The content of a call may come in log records and its metadata in a span. Rows of other senders add nothing: nobody may describe the
    call of somebody else.
    """
    keys = ["source", "id", "sender"]
    if not traces.select(keys).is_duplicated().any():
        return traces
    columns = [name for name in (*_OF_CALL, *_DESCRIBED) if name in traces.columns]
    return traces.with_columns(pl.coalesce(name, pl.col(name).drop_nulls().first().over(keys)).alias(name) for name in columns)


def preferred(traces: pl.DataFrame) -> pl.DataFrame:
    """Return one row per trace: the one that the router has signed, if another sender has sent a trace with the same id.

    Otherwise it is the one with content, if the trace came without consent first.
    """
    content = pl.col("messages").is_not_null()
    ordered = traces.sort(pl.col("verified").fill_null(False), content, descending=True, maintain_order=True)
    return ordered.unique(["source", "id"], keep="first", maintain_order=True)


def until(as_of: datetime) -> BooleanExpression:
    """Return the filter for rows that were ingested no later than `as_of`."""
    return LessThanOrEqual("ingested", as_of.astimezone(UTC).isoformat())


def _only_appended(table: Table, since: int, after: datetime) -> bool:
    """Whether all that happened to the table since a snapshot is that rows were appended, and only after a time.

    If rows were removed, a tag on the earlier snapshot would keep them. A compaction changes no row.
    """
    for at in _ancestors(table):
        if at.snapshot_id == since:
            return True
        if not is_compaction(at) and (not is_appended(at) or at.timestamp_ms <= after.timestamp() * 1000):
            return False
    return False


def _follows(table: Table, since: int) -> bool:
    """Whether every snapshot after `since` up to the current one is known. `since` itself may have expired."""
    return any(at.parent_snapshot_id == since for at in _ancestors(table))


def _ancestors(table: Table) -> Iterator[Snapshot]:
    """Yield the current snapshot and those before it, as far as they have not expired."""
    yield from ancestors_of(table.current_snapshot(), table.metadata)


def _frame(table: pa.Table, name: TableName, columns: Sequence[str]) -> pl.DataFrame:
    """Convert an Arrow table from an Iceberg scan to polars, with `columns` in the given order.

    A scan may return large strings; polars reads both Arrow string types as the declared type. Missing columns become null.
    """
    schema = arrow_schema(TABLES[name])
    wanted = schema.names if tuple(columns) == ("*",) else list(columns)
    for column in wanted:
        if column not in table.column_names:
            table = table.append_column(schema.field(column), pa.nulls(table.num_rows, schema.field(column).type))
    found = pl.from_arrow(table.select(wanted))
    assert isinstance(found, pl.DataFrame)
    return found


def _layout(name: TableName) -> tuple[PartitionSpec, SortOrder]:
    if name == "quarantine":
        return PartitionSpec(), SortOrder()
    ids = {column.name: index for index, column in enumerate(TABLES[name], 1)}
    fields = [PartitionField(source_id=ids["time"], field_id=1000, transform=DayTransform(), name="day")]
    fields += [PartitionField(ids[key], 1001 + n, IdentityTransform(), key) for n, key in enumerate(_DAILY[name])]
    order = SortOrder(SortField(source_id=ids["model"], transform=IdentityTransform())) if name == "traces" else SortOrder()
    return PartitionSpec(*fields), order
