"""Upkeep of the lake of a line, for the service and for `ratchet gc`: merges small files and expires old snapshots in short steps."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

from pydantic import Field

from ratchet.contracts.model import Frozen
from ratchet.materializer.lake.places.place import LakePlace, place_of
from ratchet.materializer.lake.tables import TABLES, Lake
from ratchet.materializer.lake.upkeep import keep, pending, state


class LakeTable(Frozen):
    """What the upkeep of a table did, or would do. Sizes are those of the current snapshot; files that it does not need are not in them."""

    table: str
    files: tuple[int, int]
    """Number of data files before and after. In a dry run, the second number is the first."""
    bytes: tuple[int, int]
    """Their size, likewise."""
    snapshots: tuple[int, int]
    """Number of snapshots before and after, likewise."""
    merged: int = Field(ge=0)
    """Number of files that were merged. A file that was merged twice counts twice. In a dry run: that would be merged first."""

    @property
    def is_changed(self) -> bool:
        """Whether anything was done, or would be."""
        return bool(self.merged) or self.snapshots[0] != self.snapshots[1]


def keep_lake(where: LakePlace | Path, today: date, goes_on: Callable[[], bool] = lambda: True, dry_run: bool = False) -> list[LakeTable]:
    """Keep a lake in order, and return the work done on its tables. Nothing is done if there is no lake.

    `today` is a day in UTC. `goes_on` is asked after each step, which takes seconds at most, whether another one may begin. With
    `dry_run`, nothing is changed. Raises Retryable if the storage or the catalog fails.
    """
    place = place_of(where)
    if not place.exists():
        return []
    lake = Lake(place)
    before = {name: state(lake, name) for name in TABLES}
    merged = {name: pending(lake, name, today) if dry_run else 0 for name in TABLES}
    if not dry_run:
        for step in keep(lake, today):
            merged[step.table] += step.files
            if not goes_on():
                break
    after = before if dry_run else {name: state(lake, name) for name in TABLES}
    return [
        LakeTable(
            table=name,
            files=(before[name].files, after[name].files),
            bytes=(before[name].bytes, after[name].bytes),
            snapshots=(before[name].snapshots, after[name].snapshots),
            merged=merged[name],
        )
        for name in TABLES
    ]
