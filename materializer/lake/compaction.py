"""Compaction of an Iceberg table after many small commits: merges small files, and expires old snapshots.

Files of one partition are merged with files of about their size only, as in a log-structured merge tree: each row is written a few times,
however many commits its day gets. pyiceberg does not compact by itself and does not delete the files of expired snapshots. The replaced
files stay on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThan
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.refs import SnapshotRefType

from ratchet.materializer.lake.arrow import pa

_FILES = 8
"""Number of files of one partition and about one size from which they are merged."""
_LARGEST = 64 << 20
"""Bytes from which a file is not merged any more."""
_AT_ONCE = 32 << 20
"""Bytes of files that one commit merges, unless a group has more. In memory, their rows take some ten times as much."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def small_files(table: Table) -> list[list[FileScanTask]]:
    """Return the files to merge, in parts, one for each commit."""
    groups: dict[tuple[str, int], list[FileScanTask]] = {}
    for task in table.scan().plan_files():
        if task.file.file_size_in_bytes < _LARGEST:
            groups.setdefault((repr(task.file.partition), _tier(task.file.record_count)), []).append(task)
    parts: list[list[FileScanTask]] = []
    room = 0
    for _, group in sorted(groups.items()):
        if len(group) >= _FILES:
            size = sum(task.file.file_size_in_bytes for task in group)
            if not parts or size > room:
                parts.append([])
                room = _AT_ONCE
            parts[-1] += group
            room -= size
    return parts


def _tier(rows: int) -> int:
    """Return a number that grows by one whenever a file has four times as many rows. Small files have about the same number of bytes."""
    return rows.bit_length() >> 1


def merge(table: Table, files: Sequence[FileScanTask], ordered: Callable[[pa.Table], pa.Table]) -> None:
    """Replace files by fewer ones with the same rows, in one commit. `ordered` sorts the rows of a file."""
    rows = ordered(ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table(files))
    with table.transaction() as change, change.update_snapshot().overwrite() as replaced:
        for task in files:
            replaced.delete_data_file(task.file)
        for made in _dataframe_to_data_files(change.table_metadata, rows, table.io, replaced.commit_uuid):
            replaced.append_data_file(made)


def day_of(day: date) -> BooleanExpression:
    """Return the filter on `time` for one day in UTC."""
    return _day((day - _EPOCH.date()).days)


def _day(number: int) -> BooleanExpression:
    begin = _EPOCH + timedelta(days=number)
    return And(GreaterThanOrEqual("time", begin.isoformat()), LessThan("time", (begin + timedelta(days=1)).isoformat()))


def forget_snapshots(table: Table, keep: int) -> None:
    """Expire all but the newest `keep` of the snapshots without a tag. Branch heads and tagged snapshots are always kept."""
    old = unpinned(table)[:-keep]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()


def unpinned(table: Table) -> list[int]:
    """Return the ids of the snapshots that may expire, oldest first: no branch head, no tag."""
    held = {ref.snapshot_id for ref in table.refs().values() if ref.snapshot_ref_type in (SnapshotRefType.TAG, SnapshotRefType.BRANCH)}
    ordered = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    return [snapshot.snapshot_id for snapshot in ordered if snapshot.snapshot_id not in held]
