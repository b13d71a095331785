"""Care of an Iceberg table that small commits wear down: which days have too many files, and which snapshots nobody needs.

pyiceberg neither compacts by itself nor deletes files of expired snapshots; the replaced files stay on disk.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, LessThan
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType

_FILES_PER_DAY = 32
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def crowded_days(table: Table) -> list[BooleanExpression]:
    """Filters on `time`, one per day that lies in more files than is good for its readers."""
    files: dict[int, int] = {}
    for task in table.scan().plan_files():
        day = int(task.file.partition[0])
        files[day] = files.get(day, 0) + 1
    return [_day(day) for day, count in sorted(files.items()) if count > _FILES_PER_DAY]


def _day(number: int) -> BooleanExpression:
    begin = _EPOCH + timedelta(days=number)
    return And(GreaterThanOrEqual("time", begin.isoformat()), LessThan("time", (begin + timedelta(days=1)).isoformat()))


def forget_snapshots(table: Table, keep: int) -> None:
    """Expires all but the newest `keep` snapshots; heads of branches and tagged ones always stay."""
    held = {ref.snapshot_id for ref in table.refs().values() if ref.snapshot_ref_type in (SnapshotRefType.TAG, SnapshotRefType.BRANCH)}
    ordered = sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    old = [snapshot.snapshot_id for snapshot in ordered[:-keep] if snapshot.snapshot_id not in held]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()
