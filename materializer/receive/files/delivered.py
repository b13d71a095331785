"""Remembers which files of a source the lake has, and which cannot be read, so that unchanged ones are not opened again at each look.

It has names and versions of files, and why they cannot be read, in a SQLite file in the folder of the source. Losing it repeats work and
changes nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from ratchet.materializer.receive.files.storage import StoredFile

_FIRST, _MOST = 60.0, 86_400.0
"""Seconds until a file that could not be read is tried again: at first, and at most."""


def next_try(tries: int) -> float:
    """Return after how many seconds a file is tried again that could not be read `tries` times."""
    return float(min(_FIRST * 2 ** min(tries - 1, 20), _MOST))


class Known(NamedTuple):
    """A file that could not be read."""

    version: str
    why: str
    tries: int
    again: float
    """When it is tried again, in seconds since the epoch."""

    def waits(self, version: str, now: float) -> bool:
        """Return whether a file of this version is not tried again yet. `now` is in seconds since the epoch."""
        return self.version == version and now < self.again


class Delivered:
    """The files that the lake has, and those that cannot be read, by name and version."""

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
            pairs = [(file.name, file.version) for file in files]
            connection.executemany("INSERT OR REPLACE INTO files VALUES (?, ?)", pairs)
            connection.executemany("DELETE FROM unreadable WHERE name = ?", [(name,) for name, _ in pairs])

    def unreadable(self) -> dict[str, Known]:
        """Return name -> what is known of the files that could not be read."""
        if not self._path.exists():
            return {}
        with closing(self._open()) as connection:
            return {row[0]: Known(*row[1:]) for row in connection.execute("SELECT name, version, why, tries, again FROM unreadable")}

    def add_unreadable(self, file: StoredFile, why: str, before: Known | None, now: float) -> None:
        """Remember that a file could not be read at the time `now` (seconds since the epoch). `before` is what was known of it."""
        tries = before.tries + 1 if before is not None and before.version == file.version else 1
        row = (file.name, file.version, why, tries, now + next_try(tries))
        with closing(self._open()) as connection, connection:
            connection.execute("INSERT OR REPLACE INTO unreadable VALUES (?, ?, ?, ?, ?)", row)

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=30)
        connection.execute("CREATE TABLE IF NOT EXISTS files (name TEXT PRIMARY KEY, version TEXT NOT NULL)")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS unreadable (name TEXT PRIMARY KEY, version TEXT NOT NULL, why TEXT NOT NULL,"
            " tries INTEGER NOT NULL, again REAL NOT NULL)"
        )
        return connection
