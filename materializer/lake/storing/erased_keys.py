"""What the deduplication index knows of erased traces, in the database of the ledger if that is Postgres.

The index is built again from the lake if it is lost, but the lake does not have these rows any more. Hashes only, no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ratchet.runtime.sql_store import StoreDatabase, StoreLayout

LAYOUT = StoreLayout(
    "erased",
    ("traces", "names"),
    create=(
        "CREATE TABLE IF NOT EXISTS traces (version INTEGER, key BLOB, batch BLOB NOT NULL, content BLOB NOT NULL, stated INTEGER, "
        "sender BLOB, kept INTEGER, PRIMARY KEY (version, key))",
        "CREATE TABLE IF NOT EXISTS names (version INTEGER, key BLOB, content INTEGER NOT NULL, trace BLOB NOT NULL, "
        "PRIMARY KEY (version, key))",
    ),
)
"""The tables of the index, with its version. In Postgres, the schema of the line NAME is `ratchet_erased_NAME`."""


class ErasedKeys:
    """The rows of the index of one version that erased traces have left. Methods raise Retryable if the database cannot be reached."""

    def __init__(self, database: StoreDatabase, version: int) -> None:
        self._store = database.store(LAYOUT, None)
        self._version = version

    def add(self, traces: Sequence[tuple[Any, ...]], names: Sequence[tuple[Any, ...]]) -> None:
        """Store rows of the tables `traces` and `names` of the index. Known keys stay as they are."""
        if not traces and not names:
            return
        with self._store.changing() as connection:
            for table, rows in (("traces", traces), ("names", names)):
                marks = ", ".join("?" * (7 if table == "traces" else 4))
                query = f"INSERT INTO {table} VALUES ({marks}) ON CONFLICT DO NOTHING"  # noqa: S608
                connection.executemany(query, [(self._version, *row) for row in rows])

    def all(self) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """Return the rows of `traces` and of `names`."""
        with self._store.reading() as connection:
            if connection is None:
                return [], []
            traces = connection.execute("SELECT key, batch, content, stated, sender, kept FROM traces WHERE version = ?", (self._version,))
            found = [tuple(row) for row in traces.fetchall()]
            names = connection.execute("SELECT key, content, trace FROM names WHERE version = ?", (self._version,))
            return found, [tuple(row) for row in names.fetchall()]
