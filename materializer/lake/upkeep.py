"""Upkeep of a lake: merges small files and expires old snapshots, in short steps, while others read and write.

A step writes its files without the write lock, so that ingest waits for its commit only. After a `kill -9`, files of the interrupted step
stay, to which no snapshot refers; `unused.py` deletes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import date

from pyiceberg.table import Table

from ratchet.materializer.lake.compaction import (
    TARGET,
    expire_snapshots,
    facts_of,
    first_merges,
    plan_expiry,
    plan_merges,
    replace_files,
    snapshot_facts,
    write_merged,
)
from ratchet.materializer.lake.storing.dedup_index import DedupIndex
from ratchet.materializer.lake.tables import ORDER, TABLES, Lake, TableName

_KEPT, _MANY = 8, 16
"""Number of the newest snapshots with appended rows that never expire, and number at which older ones do. Each commit copies the list of
all snapshots many times, so an append takes longer with every one.
"""
_KEPT_OTHERS, _MANY_OTHERS = 16, 24
"""The same for snapshots of other commits, such as compactions."""
_LOOK = 16
"""Number of commits after which the writer looks whether small files have piled up, because nobody else merges them."""
_PILED_UP = 128
"""Number of files to merge from which they have."""
_WHILE_WRITING = 12 << 20
"""Bytes of files that the writer merges at most, because it does so between two batches."""

Boundary = Callable[[str], None]
"""Called with the name of each place at which a process may die. Tests kill it there."""


@dataclass(frozen=True)
class TableState:
    """Size of a table as of its current snapshot, and of its history."""

    files: int
    bytes: int
    snapshots: int


@dataclass(frozen=True)
class Merged:
    """What one step did with a table."""

    table: TableName
    files: int = 0
    """Number of files that were replaced."""
    into: int = 0
    """Number of files that took their place."""
    bytes: int = 0
    """Number of bytes that were written."""
    expired: int = 0
    """Number of snapshots that have expired."""


def state(lake: Lake, name: TableName) -> TableState:
    """Return the size of a table, read from its metadata only."""
    table = lake.table(name)
    current = table.current_snapshot()
    summary = current.summary if current is not None else None
    files, size = (int((summary[key] if summary else None) or 0) for key in ("total-data-files", "total-files-size"))
    return TableState(files, size, len(table.metadata.snapshots))


def pending(lake: Lake, name: TableName, today: date) -> int:
    """Return the number of files of a table that upkeep would merge now. Raises Retryable if the storage or the catalog fails."""
    with lake.reaching(f"read {name}"):
        return _pending(lake.table(name), today, TARGET)


def _pending(table: Table, today: date, target: int) -> int:
    return sum(map(len, plan_merges([facts for facts, _ in facts_of(table).values()], today, target)))


def keep(lake: Lake, today: date, boundary: Boundary = lambda _: None) -> Iterator[Merged]:
    """Merge the small files of all tables, and expire old snapshots. Yield after each step, which makes one or two commits.

    Rows do not change. Between two steps, no lock is held; a caller may stop there and go on later. Raises Retryable if the disk or the
    catalog fails.
    """
    for name in TABLES:
        with lake.writing():
            lake.adopt_properties(name)
        while (merged := compact(lake, name, today, boundary)) is not None:
            expired = 0
            with lake.writing():
                DedupIndex(lake).catch_up(name)  # otherwise it would read the whole table again if many steps follow
                if _has_many(lake.table(name)):
                    expired = expire(lake, name)
                    boundary("snapshots expired")
            yield Merged(name, merged.files, merged.into, merged.bytes, expired)
        with lake.writing():
            expired = expire(lake, name) if _has_many(lake.table(name)) else 0
        boundary("snapshots expired")
        if expired:
            yield Merged(name, expired=expired)


def compact(
    lake: Lake,
    name: TableName,
    today: date,
    boundary: Boundary = lambda _: None,
    target: int = TARGET,
    is_writing: bool = False,
) -> Merged | None:
    """Merge small files of a table in one commit; see `plan_merges`. Rows do not change. None if there is nothing to merge.

    The rows are read and written while others may write, and only the commit takes the write lock, unless the caller holds it
    (`is_writing`). Then nothing is merged while another process does. Raises Retryable if the disk or the catalog fails.
    """
    with lake.reaching(f"merge files of {name}"), lake.compacting(wait=not is_writing) as is_free:
        table = lake.table(name)
        files = facts_of(table) if is_free else {}
        chosen = first_merges(plan_merges([facts for facts, _ in files.values()], today, target), target)
        if not chosen:
            return None
        tasks = [files[facts.path][1] for facts in chosen]
        made = write_merged(table, tasks, ORDER.get(name, ()))
        boundary("files written")
        with nullcontext() if is_writing else lake.writing():
            replace_files(lake.table(name), [task.file for task in tasks], made)
        boundary("files replaced")
        return Merged(name, len(tasks), len(made), sum(file.file_size_in_bytes for file in made))


def expire(lake: Lake, name: TableName) -> int:
    """Expire old snapshots without a tag, and return their number. The caller holds the write lock.

    Raises Retryable if the disk or the catalog fails.
    """
    table = lake.table(name)
    old = plan_expiry(snapshot_facts(table), _KEPT, _KEPT_OTHERS)
    if old:
        with lake.reaching(f"expire snapshots of {name}"):
            expire_snapshots(table, old)
    return len(old)


def tidy(lake: Lake, name: TableName, today: date) -> None:
    """Expire old snapshots if there are many, and merge a few small files if they have piled up. The caller holds the write lock.

    Ingest calls this after each batch, so that a lake without any other upkeep stays usable. Raises Retryable if the disk or the catalog
    fails.
    """
    table = lake.table(name)
    current = table.current_snapshot()
    if current is None:
        return
    if _has_many(table):
        expire(lake, name)
    is_time = (current.sequence_number or 0) % _LOOK == 0 and state(lake, name).files >= _PILED_UP
    if not is_time:
        return
    with lake.reaching(f"read {name}"):
        waiting = _pending(lake.table(name), today, _WHILE_WRITING)
    if waiting >= _PILED_UP:
        compact(lake, name, today, target=_WHILE_WRITING, is_writing=True)


def _has_many(table: Table) -> bool:
    """Return whether a table has many snapshots without a tag."""
    appended = [snapshot.appended for snapshot in snapshot_facts(table) if not snapshot.held]
    return sum(appended) >= _MANY or len(appended) - sum(appended) >= _MANY_OTHERS
