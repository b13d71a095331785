"""Remembers which generations each trace of Langfuse has, and which files of scores wait for one. Ids and times only, in a SQLite file.

Losing the file repeats work: the observations are read again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.values import moment
from ratchet.materializer.receive.files.storage import StoredFile

_SCHEMA = """
CREATE TABLE IF NOT EXISTS generations (trace TEXT, begin INTEGER, id TEXT, PRIMARY KEY (trace, begin, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS indexed (file TEXT PRIMARY KEY, version TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS waiting (file TEXT, trace TEXT, given INTEGER, PRIMARY KEY (file, trace)) WITHOUT ROWID;
"""


class Generations:
    """The generations by trace."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "generations.sqlite"

    @contextmanager
    def writing(self, file: StoredFile) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Yield a function that notes an observation (in the names of the API). At the end, the file counts as noted."""
        rows: list[tuple[str, int, str]] = []

        def note(record: dict[str, Any]) -> None:
            trace, identity = record.get("traceId"), record.get("id")
            if record.get("type") != "GENERATION" or not isinstance(trace, str) or not isinstance(identity, str):
                return
            try:
                rows.append((trace, moment(record.get("startTime")), identity))
            except Rejected:
                return  # the decoder quarantines the observation
            if len(rows) >= 1000:
                self._add(rows)

        yield note
        self._add(rows)
        with closing(self._open()) as connection, connection:
            connection.execute("INSERT OR REPLACE INTO indexed VALUES (?, ?)", (file.name, file.version))

    def _add(self, rows: list[tuple[str, int, str]]) -> None:
        with closing(self._open()) as connection, connection:
            connection.executemany("INSERT OR IGNORE INTO generations VALUES (?, ?, ?)", rows)
        rows.clear()

    def add(self, records: Collection[dict[str, Any]]) -> None:
        """Note observations in the names of the API, for example those of a page."""
        with self.writing(StoredFile("", "", 0, "", open=_nothing, identity=_nothing)) as note:
            for record in records:
                note(record)

    def has(self, file: StoredFile) -> bool:
        """Return whether the observations of a file are noted."""
        with closing(self._open()) as connection:
            found = connection.execute("SELECT version FROM indexed WHERE file = ?", (file.name,)).fetchone()
        return found is not None and found[0] == file.version

    def before(self, trace: str, time: Any) -> str | None:
        """Return the last generation of a trace that began before `time`; None if there is none, or if the time cannot be read."""
        limit = _moment(time)
        query = "SELECT id FROM generations WHERE trace = ? AND begin <= ? ORDER BY begin DESC, id LIMIT 1"
        with closing(self._open()) as connection:
            found = connection.execute(query, (trace, limit)).fetchone()
        return None if found is None else str(found[0])

    def wait(self, file: str, traces: Mapping[str, Any]) -> None:
        """Note the traces for whose generations scores of a file wait: trace -> time of the score."""
        rows = [(file, trace, _moment(time)) for trace, time in traces.items()]
        with closing(self._open()) as connection, connection:
            connection.execute("DELETE FROM waiting WHERE file = ?", (file,))
            connection.executemany("INSERT INTO waiting VALUES (?, ?, ?)", rows)

    def answered(self) -> set[str]:
        """Return the files with scores whose generation has arrived since they were read."""
        query = "SELECT DISTINCT file FROM waiting JOIN generations USING (trace) WHERE begin <= given"
        with closing(self._open()) as connection:
            return {str(file) for (file,) in connection.execute(query)}

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=30)
        connection.executescript(_SCHEMA)
        return connection


def _moment(time: Any) -> int:
    """Return a time in microseconds; 0, which is before any generation, if it cannot be read."""
    try:
        return moment(time)
    except Rejected:
        return 0


def _nothing() -> Any:
    raise OSError("no file")
