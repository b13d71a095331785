"""Reads how much is in a lake from the files of its catalog, without the libraries that read its rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from ratchet.contracts.data.datasets import Cursor
from ratchet.contracts.errors import Retryable
from ratchet.materializer.lake.places.place import LakePlace, place_of


def lake_cursor(where: LakePlace | Path) -> Cursor:
    """Return the row counts of a lake and the time of its newest commit of rows. Nothing is created.

    Raises Retryable if its catalog cannot be read.
    """
    place = place_of(where)
    tables = place.tables()
    traces, newest = _table_size(place, tables, "traces")
    feedback, newest_feedback = _table_size(place, tables, "feedback")
    times = [time for time in (newest, newest_feedback) if time is not None]
    consent, _ = _table_size(place, tables, "consent")
    return Cursor(traces=traces, feedback=feedback, newest=max(times, default=None), consent=consent)


def table_size(where: LakePlace | Path, name: str) -> tuple[int, datetime | None]:
    """Return (number of rows, time of the newest commit of rows) of a table of a lake; (0, None) for one that does not exist.

    Merging files and deleting rows are no such commits, unless there is no other one any more. Raises Retryable as `lake_cursor`.
    """
    place = place_of(where)
    return _table_size(place, place.tables(), name)


def here(root: Path, location: str) -> Path:
    """Return the metadata file that a catalog names, in the folder where the lake is now.

    The catalog has absolute paths. After the folder was moved or copied, they lead to its former place until the lake is opened.
    """
    return root / "warehouse" / location.rpartition("/warehouse/")[2]


def _table_size(place: LakePlace, tables: Mapping[str, str], name: str) -> tuple[int, datetime | None]:
    location = tables.get(name)
    if location is None:
        return 0, None
    if place.is_shared:
        return _stored_size(location)
    file = here(place.folder.resolve(), location)
    try:
        return _size(file.read_bytes())
    except (OSError, ValueError) as error:
        raise Retryable(f"the metadata of the lake {file} cannot be read ({type(error).__name__}); try again") from error


@lru_cache(maxsize=256)
def _stored_size(location: str) -> tuple[int, datetime | None]:
    """Return what `_size` returns for a metadata file in a bucket. Such a file never changes."""
    from ratchet.materializer.lake.places.files import bucket_of

    name, _, key = location.removeprefix("s3://").partition("/")
    content = bucket_of(f"s3://{name}").get(key)
    if content is None:
        raise Retryable(f"the metadata of the lake {location} was replaced or is lost; try again")
    try:
        return _size(content)
    except ValueError as error:
        raise Retryable(f"the metadata of the lake {location} cannot be read ({type(error).__name__}); try again") from error


def _size(content: bytes) -> tuple[int, datetime | None]:
    """Return (number of rows, time of the newest commit of rows) of the table with this metadata."""
    metadata: dict[str, Any] = json.loads(content)
    snapshots = metadata.get("snapshots") or ()
    current = next((one for one in snapshots if one["snapshot-id"] == metadata.get("current-snapshot-id")), None)
    if current is None:
        return 0, None
    appends = [one["timestamp-ms"] for one in snapshots if one.get("summary", {}).get("operation") == "append"]
    newest = max(appends, default=current["timestamp-ms"])
    return int(current.get("summary", {}).get("total-records", 0)), datetime.fromtimestamp(newest / 1000, UTC)
