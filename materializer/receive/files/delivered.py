"""Remembers which files of a source the lake has, so that unchanged ones are not read again. Losing it repeats work and changes nothing.

It has names and versions of files only, in a SQLite file in the folder of the source.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from ratchet.materializer.receive.files.storage import StoredFile


class Delivered:
    """The files that the lake has, by name and version."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "delivered.sqlite"

    def versions(self) -> dict[str, str]:
        """Return name -> version of all delivered files."""
        if not self._path.exists():
            return {}
        with closing(self._open()) as connection:
            return dict(connection.execute("SELECT name, version FROM files"))

    def add(self, files: Iterable[StoredFile]) -> None:
        """Remember files."""
        with closing(self._open()) as connection, connection:
            connection.executemany("INSERT OR REPLACE INTO files VALUES (?, ?)", [(file.name, file.version) for file in files])

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=30)
        connection.execute("CREATE TABLE IF NOT EXISTS files (name TEXT PRIMARY KEY, version TEXT NOT NULL)")
        return connection
