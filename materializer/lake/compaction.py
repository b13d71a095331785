"""Compaction of an Iceberg table after many small commits: decides which files to merge and which snapshots to expire, and merges files.

The decisions are pure functions. A file is merged only into a considerably larger one, as in a log-structured merge tree: each row is
written a few times, however many commits its day gets, and the number of files of a day grows with the logarithm of its size.
pyiceberg does not compact by itself and does not delete the files of expired snapshots; `unused.py` does.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThan
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot

from ratchet.materializer.lake.commits import LeanTransaction
from ratchet.materializer.lake.data_files import write_data_files

TARGET = 32 << 20
"""Bytes of files that one commit merges at most, and so the largest size of a merged file. In memory, their rows take some fifteen times
as much, while they are sorted and written.
"""
_OPEN_FILES, _CLOSED_FILES = 8, 2
"""Number of small files from which they are merged: of a day that still gets rows, and of a closed day."""
_OPEN_RATIO, _CLOSED_RATIO = 1, 2
"""How many times as large as all smaller ones together the largest file of a merge may be, in rows, likewise."""
_LATE = timedelta(days=1)
"""Time after the end of a day in which rows of the day still come often. The day is closed afterwards."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

COMPACTION = "ratchet.compaction"
"""Snapshot property of a commit that changed no row."""


class FileFacts(NamedTuple):
    """What the decision needs to know of a data file."""

    path: str
    partition: str
    day: date | None
    """Day of the rows; None in a table without days."""
    rows: int
    bytes: int


def plan_merges(files: Sequence[FileFacts], today: date, target: int = TARGET) -> list[tuple[FileFacts, ...]]:
    """Return groups of files; each is to be merged into one file of at most `target` bytes. `today` is a day in UTC.

    A file is in one group at most, and all files of a group are of one partition. After the merges, the plan is empty, unless the merged
    files are smaller than the sum of their parts. Files from half of `target` are left alone. So is a file with many more rows than all
    smaller ones of its partition together: it waits until they have enough. Small files have about the same number of bytes.
    """
    partitions: dict[str, list[FileFacts]] = {}
    for file in sorted(files, key=lambda file: (file.rows, file.path)):
        if file.bytes < target // 2:
            partitions.setdefault(file.partition, []).append(file)
    merges: list[tuple[FileFacts, ...]] = []
    for _, small in sorted(partitions.items()):
        is_closed = _is_closed(small[0].day, today)
        least, ratio = (_CLOSED_FILES, _CLOSED_RATIO) if is_closed else (_OPEN_FILES, _OPEN_RATIO)
        rows = sum(file.rows for file in small)
        while small and small[-1].rows > ratio * (rows - small[-1].rows):
            rows -= small.pop().rows
        if len(small) >= least:
            merges += [part for part in _parts(small, target) if len(part) > 1]
    return merges


def first_merges(merges: Sequence[tuple[FileFacts, ...]], target: int = TARGET) -> list[FileFacts]:
    """Return the files of the merges of a plan that the next commit makes: as many as have `target` bytes together, and at least one.

    Those of the smallest files come first, because they save most files for the bytes that are written.
    """
    chosen: list[FileFacts] = []
    room = target
    for merge in sorted(merges, key=lambda merge: (sum(file.bytes for file in merge) / len(merge), merge[0].path)):
        size = sum(file.bytes for file in merge)
        if not chosen or size <= room:
            chosen += merge
            room -= size
    return chosen


def _is_closed(day: date | None, today: date) -> bool:
    return day is not None and day + timedelta(days=1) + _LATE <= today


def _parts(files: Sequence[FileFacts], target: int) -> list[tuple[FileFacts, ...]]:
    """Divide files, smallest first, into parts of at most `target` bytes. Each part but the last has more than half of it."""
    parts: list[tuple[FileFacts, ...]] = []
    size = target + 1
    for file in files:
        if size + file.bytes > target:
            parts.append(())
            size = 0
        parts[-1] = (*parts[-1], file)
        size += file.bytes
    return parts


class SnapshotFacts(NamedTuple):
    """What the decision needs to know of a snapshot."""

    id: int
    appended: bool
    """Whether its commit appended rows."""
    held: bool
    """Whether it is a branch head or has a tag."""
    time: int
    """Milliseconds since the epoch."""


def plan_expiry(snapshots: Sequence[SnapshotFacts], keep: int, most: int) -> list[int]:
    """Return the snapshots to expire, given oldest first: those before the newest `keep` ones that appended rows.

    A reader that has read until one of these finds the rows appended since. The snapshots of other commits between them stay, but not more
    than the newest `most`. Branch heads and tagged snapshots always stay.
    """
    loose = [snapshot for snapshot in snapshots if not snapshot.held]
    places = [place for place, snapshot in enumerate(loose) if snapshot.appended]
    first = places[-keep] if len(places) > keep else 0
    others = [place for place, snapshot in enumerate(loose) if place >= first and not snapshot.appended]
    if len(others) > most:
        first = others[-most]
    return [snapshot.id for snapshot in loose[:first]]


def facts_of(table: Table) -> dict[str, tuple[FileFacts, FileScanTask]]:
    """Return the data files of the current snapshot, by their paths."""
    daily = not table.spec().is_unpartitioned()
    found: dict[str, tuple[FileFacts, FileScanTask]] = {}
    for task in table.scan().plan_files():
        file = task.file
        day = _EPOCH.date() + timedelta(days=file.partition[0]) if daily and file.partition[0] is not None else None
        found[file.file_path] = FileFacts(file.file_path, repr(file.partition), day, file.record_count, file.file_size_in_bytes), task
    return found


def write_merged(table: Table, files: Sequence[FileScanTask], order: Sequence[str]) -> list[DataFile]:
    """Write the rows of files into one new file for each partition, sorted by `order`. No snapshot refers to the new files yet."""
    rows = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table(files)
    return list(write_data_files(table.metadata, table.io, rows, order, uuid.uuid4()))


def replace_files(table: Table, replaced: Sequence[DataFile], made: Sequence[DataFile]) -> None:
    """Let new files take the place of others with the same rows, in one commit."""
    with LeanTransaction(table) as change:
        change.replace_files(replaced, made, {COMPACTION: "true"})


def day_of(day: date) -> BooleanExpression:
    """Return the filter on `time` for one day in UTC."""
    begin = _EPOCH + timedelta(days=(day - _EPOCH.date()).days)
    return And(GreaterThanOrEqual("time", begin.isoformat()), LessThan("time", (begin + timedelta(days=1)).isoformat()))


def is_appended(snapshot: Snapshot) -> bool:
    """Return whether the commit of a snapshot did nothing but append rows."""
    return snapshot.summary is not None and snapshot.summary.operation is Operation.APPEND


def is_compaction(snapshot: Snapshot) -> bool:
    """Return whether the commit of a snapshot changed no row."""
    return snapshot.summary is not None and snapshot.summary.additional_properties.get(COMPACTION) == "true"


def snapshot_facts(table: Table) -> list[SnapshotFacts]:
    """Return the snapshots of a table, oldest first."""
    held = {ref.snapshot_id for ref in table.refs().values() if ref.snapshot_ref_type in (SnapshotRefType.TAG, SnapshotRefType.BRANCH)}
    ordered: list[Any] = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    return [SnapshotFacts(one.snapshot_id, is_appended(one), one.snapshot_id in held, one.timestamp_ms) for one in ordered]


def expire_snapshots(table: Table, old: Sequence[int]) -> None:
    """Expire snapshots that have no tag and are the oldest of these, in one commit."""
    gone = set(old)
    loose = [snapshot for snapshot in snapshot_facts(table) if not snapshot.held]
    first = min((snapshot.time for snapshot in loose if snapshot.id not in gone), default=None)
    expiry = table.maintenance.expire_snapshots()
    if first is not None and all(snapshot.time < first for snapshot in loose if snapshot.id in gone):
        expiry.older_than(datetime.fromtimestamp(first / 1000, UTC).replace(tzinfo=None)).commit()
    else:  # pyiceberg copies all metadata for each id
        expiry.by_ids(list(old)).commit()
