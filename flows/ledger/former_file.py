"""The SQLite file from which the rows of a store were copied to a schema of Postgres.

Triggers in the file refuse every change from then on: a former release, which knows nothing of the copy, would otherwise decide again what
the database has decided. The table `moved_to_postgres` names the schemas to which the rows were copied. A mark is complete after the
database has stored the copy. It is put in before, so that nobody writes to the file in between.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.runtime.sql_store import SqliteStore, Statements, StoreLayout

_MARKS: Final = "moved_to_postgres"
_CREATE_MARKS: Final = f"CREATE TABLE IF NOT EXISTS {_MARKS} (schema TEXT PRIMARY KEY, copy TEXT NOT NULL, is_complete INTEGER NOT NULL)"
_REFUSED: Final = "these rows are in the database of RATCHET_LEDGER_URL; a release that does not read them there must not decide anew"
_CHANGES: Final = ("insert", "update", "delete")
_COPIED: Final = 2_000
"""Rows that are copied at once."""


class Mark(NamedTuple):
    """That rows of the file were copied."""

    copy: str
    """Identity of the copy, which the database stores with the rows."""
    is_complete: bool
    """Whether the database is known to have stored the copy."""


class FormerFile:
    """The file of a store, whose rows are for the schema `schema`. Methods raise Retryable if the file cannot be used."""

    def __init__(self, layout: StoreLayout, file: Path, schema: str) -> None:
        self._store = SqliteStore(layout, file)
        self._layout = layout
        self._file = file
        self._schema = schema

    def exists(self) -> bool:
        """Return whether there is a file."""
        return self._file.exists()

    def reading(self) -> AbstractContextManager[Statements | None]:
        """Begin reading the rows of the file. Yields None if there is no file."""
        return self._store.reading()

    def mark(self) -> Mark | None:
        """Return the mark of the schema; None without a file or a mark."""
        with self._errors("copied"), self._store.reading() as connection:
            return None if connection is None else self._mark(connection)

    def check_not_moved(self) -> None:
        """Raise ConfigError if the rows are in the schema, which the caller has not found. The rows of the file are old by now."""
        mark = self.mark()
        if mark is None or not mark.is_complete:
            return
        again = f"DELETE FROM {_MARKS} WHERE schema = '{self._schema}'"  # noqa: S608
        raise ConfigError(
            f"the database of RATCHET_LEDGER_URL has no complete schema {self._schema}, to which the rows of {self._file} were moved, and "
            "the file lacks what was stored since; restore the schema from the backup of the database (pg_dump without -t, or with "
            f"-n {self._schema}). If its state is lost and you accept that, either begin with the old rows of the file "
            f'(sqlite3 {self._file} "{again}"), or delete the file to begin without any'
        )

    @contextmanager
    def moving(self, copy: str, line: str) -> Iterator[Iterator[tuple[str, tuple[str, ...], list[Any]]]]:
        """Yield the rows of the line in parts, with table and names of columns. Nobody else can write to the file until the block ends.

        At the end, the file is marked with the copy. Nothing in it is changed if the block fails.
        """
        with ExitStack() as stack:
            with self._errors("copied"):
                connection = stack.enter_context(self._store.changing())  # completes the tables of earlier releases
            yield self._parts(connection, line)
            with self._errors("marked"):
                self._refuse(connection)
                connection.execute(f"INSERT OR REPLACE INTO {_MARKS} VALUES (?, ?, 0)", (self._schema, copy))  # noqa: S608
                stack.close()

    def complete(self) -> None:
        """Remember that the database has stored the copy."""
        with self._errors("marked"), self._store.changing() as connection:
            connection.execute(f"UPDATE {_MARKS} SET is_complete = 1 WHERE schema = ?", (self._schema,))  # noqa: S608

    def erase(self) -> None:
        """Delete the file, if it is marked. Its rows are overwritten first."""
        with self._errors("deleted"):
            with self._store.changing() as connection:
                if self._mark(connection) is None:  # a former release has begun another one
                    return
                for table in self._layout.tables:
                    for change in _CHANGES:
                        connection.execute(f"DROP TRIGGER IF EXISTS {_MARKS}_{table}_{change}")
                    connection.execute(f"DELETE FROM {table}")  # noqa: S608
                self._refuse(connection)  # another process may have the file open
            self._file.unlink(missing_ok=True)

    def _parts(self, connection: Statements, line: str) -> Iterator[tuple[str, tuple[str, ...], list[Any]]]:
        for table in self._layout.tables:
            is_mixed = table in self._layout.of_a_line
            with self._errors("copied"):
                found = connection.execute(f"SELECT * FROM {table}{' WHERE line = ?' * is_mixed}", (line,) * is_mixed)  # noqa: S608
            names = tuple(column[0] for column in found.description)
            while some := self._part(found):
                yield table, names, some

    def _part(self, found: Any) -> list[Any]:
        with self._errors("copied"):
            return list(found.fetchmany(_COPIED))

    def _mark(self, connection: Statements) -> Mark | None:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (_MARKS,)).fetchone():
            return None
        row = connection.execute(f"SELECT copy, is_complete FROM {_MARKS} WHERE schema = ?", (self._schema,)).fetchone()  # noqa: S608
        return Mark(row[0], bool(row[1])) if row else None

    def _refuse(self, connection: Statements) -> None:
        connection.execute(_CREATE_MARKS)
        for table in self._layout.tables:
            for change in _CHANGES:
                connection.execute(
                    f"CREATE TRIGGER IF NOT EXISTS {_MARKS}_{table}_{change} BEFORE {change} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, '{_REFUSED}'); END"
                )

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise Retryable(f"the rows of {self._file} are not {what} ({error}); free space or fix permissions") from error
