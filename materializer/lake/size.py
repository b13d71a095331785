"""Reads how much is in a lake from the files of its catalog, without the libraries that read its rows."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from ratchet.contracts.data.datasets import Cursor
from ratchet.contracts.errors import Retryable

CATALOG = "catalog.sqlite"
"""Name of the catalog's database in the folder of the lake."""


def lake_cursor(root: Path) -> Cursor:
    """Return the row counts of the lake in the folder `root` and the time of its newest commit of rows. Nothing is created.

    Raises Retryable if its catalog cannot be read.
    """
    traces, newest = table_size(root, "traces")
    feedback, newest_feedback = table_size(root, "feedback")
    times = [time for time in (newest, newest_feedback) if time is not None]
    return Cursor(traces=traces, feedback=feedback, newest=max(times, default=None), consent=table_size(root, "consent")[0])


def table_size(root: Path, name: str) -> tuple[int, datetime | None]:
    """Return (number of rows, time of the newest commit of rows) of a table of the lake in `root`; (0, None) for one that does not exist.

    Merging files and deleting rows are no such commits, unless there is no other one any more. Raises Retryable as `lake_cursor`.
    """
    file = _tables(root.resolve()).get(name)
    return _size(file) if file else (0, None)


def here(root: Path, location: str) -> Path:
    """Return the metadata file that a catalog names, in the folder where the lake is now.

    The catalog has absolute paths. After the folder was moved or copied, they lead to its former place until the lake is opened.
    """
    return root / "warehouse" / location.rpartition("/warehouse/")[2]


def _tables(root: Path) -> dict[str, Path]:
    """Return the current metadata file of each table; none if there is no lake yet."""
    catalog = root / CATALOG
    if not catalog.exists():
        return {}
    try:
        with closing(sqlite3.connect(f"{catalog.as_uri()}?mode=rw", uri=True, timeout=30)) as connection:
            rows = connection.execute("SELECT table_name, metadata_location FROM iceberg_tables").fetchall()
    except sqlite3.Error as error:
        raise Retryable(f"the catalog of the lake {catalog} cannot be read: {error}") from error
    return {name: here(root, str(file)) for name, file in rows}


def _size(file: Path) -> tuple[int, datetime | None]:
    """Return (number of rows, time of the newest commit of rows) of the table with this metadata file."""
    try:
        metadata = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise Retryable(f"the metadata of the lake {file} cannot be read ({type(error).__name__}); try again") from error
    snapshots = metadata.get("snapshots") or ()
    current = next((one for one in snapshots if one["snapshot-id"] == metadata.get("current-snapshot-id")), None)
    if current is None:
        return 0, None
    appends = [one["timestamp-ms"] for one in snapshots if one.get("summary", {}).get("operation") == "append"]
    newest = max(appends, default=current["timestamp-ms"])
    return int(current.get("summary", {}).get("total-records", 0)), datetime.fromtimestamp(newest / 1000, UTC)
