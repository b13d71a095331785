"""Compaction of an Iceberg table after many small commits: finds days with too many files, and expires old snapshots.

pyiceberg does not compact by itself and does not delete the files of expired snapshots. The replaced files stay on disk.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, LessThan
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType

_FILES_PER_DAY = 32
"""Number of data files of one day above which the day is compacted."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def crowded_days(table: Table) -> list[BooleanExpression]:
    """Return filters on `time`, one for each day with more than 32 data files."""
    return [_day(day) for day, count in _files_of_days(table) if count > _FILES_PER_DAY]


def all_days(table: Table) -> list[BooleanExpression]:
    """Return filters on `time`, one for each day with data files."""
    return [_day(day) for day, _ in _files_of_days(table)]


def _files_of_days(table: Table) -> list[tuple[int, int]]:
    files: dict[int, int] = {}
    for task in table.scan().plan_files():
        day = int(task.file.partition[0])
        files[day] = files.get(day, 0) + 1
    return sorted(files.items())


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
