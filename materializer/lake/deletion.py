"""Deletes rows of Iceberg tables for good: from the current snapshot, from the history, and from the disk.

pyiceberg neither deletes the files of expired snapshots nor forgets what a manifest says about deleted files. Manifests contain the
smallest and the largest value of each column, which are beginnings of texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import polars as pl
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType

from ratchet.materializer.lake.arrow import pa
from ratchet.materializer.lake.compaction import day_of
from ratchet.materializer.lake.places.files import LakeFile, LakeFiles


@dataclass(frozen=True)
class Change:
    """Which rows of a table change, and how."""

    keys: Sequence[str]
    """Columns that `concerns` reads."""
    concerns: Callable[[pl.DataFrame], pl.Series]
    """Returns for each row of a frame with the columns `keys` whether it changes."""
    into: Callable[[pl.DataFrame], pl.DataFrame] | None = None
    """Returns the rows to store instead of the concerned ones. None: they are deleted."""


def rewrite(table: Table, change: Change) -> int:
    """Apply a change, one commit per day, or one commit for a table without days. Return the number of rows that it concerned."""
    if table.current_snapshot() is None:
        return 0
    daily = not table.spec().is_unpartitioned()
    keys = tuple(dict.fromkeys([*change.keys, *(["time"] if daily else [])]))
    seen = _frame(table.scan(selected_fields=keys).to_arrow())
    found = seen.filter(change.concerns(seen))
    parts: list[BooleanExpression] = [AlwaysTrue()] if len(found) else []
    if daily:
        days = found["time"].dt.date().unique().sort().to_list()
        parts = [day_of(day) for day in days]
    for part in parts:
        rows = table.scan(row_filter=part).to_arrow()
        frame = _frame(rows)
        hit = change.concerns(frame.select(change.keys))
        left = frame.filter(~hit)
        if change.into is not None:
            left = pl.concat([left, change.into(frame.filter(hit))])
        if left.is_empty():
            table.delete(part)
        else:
            table.overwrite(left.to_arrow().cast(rows.schema), overwrite_filter=part)
    return len(found)


def _frame(rows: pa.Table) -> pl.DataFrame:
    found = pl.from_arrow(rows)
    assert isinstance(found, pl.DataFrame)
    return found


def forget_history(table: Table) -> None:
    """Make the current snapshot the only one, and one whose manifests describe no deleted file. Tags move to it."""
    current = table.current_snapshot()
    if current is None:
        return
    if _describes_deleted_files(table):
        table.append(table.schema().as_arrow().empty_table())  # an append leaves out manifests with deleted files only
        current = table.current_snapshot()
        assert current is not None
    others = [name for name, ref in table.refs().items() if ref.snapshot_id != current.snapshot_id]
    for tag in [name for name in others if table.refs()[name].snapshot_ref_type == SnapshotRefType.TAG]:
        with table.manage_snapshots() as refs:
            refs.remove_tag(tag).create_tag(current.snapshot_id, tag)
    old = [snapshot.snapshot_id for snapshot in table.metadata.snapshots if snapshot.snapshot_id != current.snapshot_id]
    if old:
        table.maintenance.expire_snapshots().by_ids(old).commit()


def _describes_deleted_files(table: Table) -> bool:
    snapshot = table.current_snapshot()
    entries = (
        entry
        for manifest in (snapshot.manifests(table.io) if snapshot else ())
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    )
    return any(entry.status == ManifestEntryStatus.DELETED for entry in entries)


def unreachable(table: Table, files: LakeFiles, listed: Iterable[LakeFile]) -> list[LakeFile]:
    """Return those of the listed files to which neither the metadata of the table nor a snapshot refers. Each manifest is read once."""
    metadata = table.metadata
    reached = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    for snapshot in metadata.snapshots:
        reached.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in reached:
                reached.add(manifest.manifest_path)
                reached |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)}
    reached |= {statistics.statistics_path for statistics in metadata.statistics}
    known = {files.place(location) for location in reached}
    return [file for file in listed if file.former or file.place not in known]
