"""Where a store keeps its rows: in a SQLite file of its own, or in the database of the ledger.

A store writes its SQL once, with question marks for values, in the part of SQL that SQLite and Postgres share, with the types of SQLite.
A Postgres database is behind `StoreDatabase`, because only the service connects to one.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

_BUSY_SECONDS = 60
"""Seconds to wait for another writer of a file."""


class Statements(Protocol):
    """The statements of one transaction."""

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Any:
        """Execute a statement and return its cursor. Its rows may be in memory together: read large tables in parts."""
        ...

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> Any:
        """Execute a statement for each of the rows, without waiting for each."""
        ...


class SqlStore(Protocol):
    """The rows of a store."""

    def changing(self) -> AbstractContextManager[Statements]:
        """Begin a transaction that is stored at the end of the block, or not at all. One process at a time is inside.

        Creates what is missing.
        """
        ...

    def reading(self) -> AbstractContextManager[Statements | None]:
        """Begin reading. Yields None if nothing was ever stored. Nothing is created or changed."""
        ...

    def held(self) -> AbstractContextManager[SqlStore]:
        """Return the same store for many short transactions of one caller."""
        ...


@dataclass(frozen=True)
class StoreLayout:
    """The tables of a store."""

    name: str
    """Name of the store, which no other store of the line has."""
    tables: tuple[str, ...]
    """Names of the tables."""
    create: tuple[str, ...]
    """Statements that create what is missing."""
    sqlite: tuple[str, ...] = ()
    """Further statements for a SQLite file, after `create`."""
    postgres: tuple[str, ...] = ()
    """Further statements for Postgres, after `create`."""
    pragmas: tuple[str, ...] = ()
    """Settings of a connection to a SQLite file."""
    upgrade: Callable[[Statements], None] | None = None
    """Completes the tables of a SQLite file that an earlier release has created."""
    holds_texts: bool = False
    """Whether rows contain texts. A file whose rows were copied to a database must then not stay."""
    of_a_line: tuple[str, ...] = ()
    """Tables of a SQLite file of all lines that have the column `line`. A database gets the rows of its line only."""
    idle_seconds: int = 60
    """Longest time between two statements of a change in a database. A process that is suspended holds up others for this time."""


class StoreDatabase(Protocol):
    """The database in which the stores of a line keep their rows."""

    def store(self, layout: StoreLayout, file: Path | None) -> SqlStore:
        """Return a store. The rows of a SQLite `file`, in which it was before, are copied once, before the first change.

        None: it was never in such a file.
        """
        ...


def open_store(layout: StoreLayout, file: Path, database: StoreDatabase | None) -> SqlStore:
    """Return a store in the database, or without one in the SQLite file."""
    return SqliteStore(layout, file) if database is None else database.store(layout, file)


class SqliteStore:
    """A store in a SQLite file, which only its owner can read. Methods raise sqlite3.Error and OSError."""

    def __init__(self, layout: StoreLayout, file: Path) -> None:
        self._layout = layout
        self._file = file

    @contextmanager
    def changing(self) -> Iterator[Statements]:
        """Begin a transaction that locks the file at once."""
        with self._opened() as connection, _transaction(connection, self._layout):
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Statements | None]:
        """Yield a connection that cannot write; None if the file does not exist, or if its first change is not stored yet."""
        if not self._file.exists():
            yield None
            return
        with closing(sqlite3.connect(self._file, timeout=_BUSY_SECONDS)) as connection:
            connection.execute("PRAGMA query_only = ON")
            query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
            exists = connection.execute(query, (self._layout.tables[0],)).fetchone()
            yield None if exists is None else connection

    @contextmanager
    def held(self) -> Iterator[SqlStore]:
        """Return the store with one connection, which stays open: with a write-ahead log, closing the last one costs time."""
        with self._opened() as connection:
            yield _Held(self, connection, self._layout)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self._file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        opened = sqlite3.connect(self._file, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        with closing(opened) as connection:
            for pragma in self._layout.pragmas:
                connection.execute(f"PRAGMA {pragma}")
            yield connection


class _Held:
    """A SQLite store whose changes use one connection."""

    def __init__(self, store: SqliteStore, connection: sqlite3.Connection, layout: StoreLayout) -> None:
        self.reading = store.reading
        self.held = store.held
        self._connection = connection
        self._layout = layout

    @contextmanager
    def changing(self) -> Iterator[Statements]:
        """Begin a transaction that locks the file at once."""
        with _transaction(self._connection, self._layout):
            yield self._connection


@contextmanager
def _transaction(connection: sqlite3.Connection, layout: StoreLayout) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in (*layout.create, *layout.sqlite):
            connection.execute(statement)
        if layout.upgrade is not None:
            layout.upgrade(connection)
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have ended it
            connection.execute("ROLLBACK")
        raise
