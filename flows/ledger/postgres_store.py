"""Stores of a line in the Postgres database of the ledger, each in a schema of its own.

A changing transaction holds an advisory lock of its schema: what it has read does not change until it ends, and another process decides
after it. A process that is suspended inside loses its transaction after a time, and nothing of it is stored.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from ratchet.contracts.errors import Retryable
from ratchet.flows.ledger.former_file import FormerFile
from ratchet.runtime.sql_store import SqlStore, Statements, StoreLayout

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

_TYPES: Final = {" WITHOUT ROWID": "", " BLOB": " BYTEA", " INTEGER": " BIGINT", " REAL": " DOUBLE PRECISION", " TEXT": ' TEXT COLLATE "C"'}
_SETTINGS: Final = (
    "SELECT set_config('search_path', %s, true), set_config('lock_timeout', '30s', true), "
    "set_config('idle_in_transaction_session_timeout', %s, true), set_config('tcp_keepalives_idle', '30', true), "
    "set_config('tcp_keepalives_interval', '10', true), set_config('tcp_keepalives_count', '3', true)"
)
"""They end with the transaction. That of a lost machine ends within a minute."""
_FIND: Final = (
    "SELECT has_schema_privilege(pg_namespace.oid, 'USAGE'), "
    "EXISTS (SELECT 1 FROM pg_class WHERE relnamespace = pg_namespace.oid AND relname = %s) FROM pg_namespace WHERE nspname = %s"
)
"""Not by the search path, which leaves out a schema that the user may not use."""
_MAY_CREATE: Final = "SELECT current_user, has_database_privilege(current_database(), 'CREATE')"


@dataclass(frozen=True)
class PostgresDatabase:
    """The schemas of a line in the database at a SQLAlchemy URL. Connections are made at first use."""

    url: str = field(repr=False)
    line: str
    """Empty: the schemas of what concerns all lines."""

    def store(self, layout: StoreLayout, file: Path | None) -> PostgresStore:
        """Return a store. The rows of a SQLite `file`, in which it was before, are copied once, before the first change."""
        name = f"ratchet_{layout.name}_{self.line}" if self.line else f"ratchet_{layout.name}"
        return PostgresStore(self.url, name, layout, file, self.line)


class PostgresStore:
    """A store in a schema. Methods raise Retryable if the database cannot be reached or refuses, and ConfigError without a driver."""

    def __init__(self, url: str, schema: str, layout: StoreLayout, file: Path | None, line: str) -> None:
        self._url = url
        self._schema = schema
        self._layout = layout
        self._line = line
        self._former = None if file is None else FormerFile(layout, file, schema)
        self._is_moved = False

    @contextmanager
    def changing(self) -> Iterator[Statements]:
        """Begin a transaction, when no other process is in one. The first one creates the tables and copies the rows of the file.

        Raises ConfigError if the file says that its rows are in the schema, and there is none.
        """
        with self._errors(), _engine(self._url, os.getpid()).begin() as connection:
            # with another default of the user, the transaction would see the state from before it got the lock
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            self._enter(connection)
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (self._schema,))
            statements = _Statements(connection)
            exists = self._exists(connection)
            if not exists:
                if self._former is not None:
                    self._former.check_not_moved()
                self._create(connection)
            is_moving = not exists or self._may_have_rows()
            with self._moving(self._former, statements) if self._former is not None and is_moving else nullcontext():
                yield statements
        self._end_move()

    @contextmanager
    def reading(self) -> Iterator[Statements | None]:
        """Begin a transaction that sees one state and cannot write. Until the rows of a file are copied, it reads the file.

        Raises ConfigError if the file says that its rows are in the schema, and there is none.
        """
        with self._errors(), _engine(self._url, os.getpid()).connect() as connection:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            self._enter(connection)
            if self._exists(connection):
                yield _Statements(connection)
                return
        if self._former is None:
            yield None
            return
        self._former.check_not_moved()
        with self._former.reading() as found:
            yield found

    def held(self) -> AbstractContextManager[SqlStore]:
        """Return the store itself: a connection is lent for each transaction, so that none is idle in between."""
        return nullcontext(self)

    def _enter(self, connection: Connection) -> None:
        connection.exec_driver_sql(_SETTINGS, (f'"{self._schema}"', f"{self._layout.idle_seconds}s"))

    def _exists(self, connection: Connection) -> bool:
        """Return whether the tables exist. Raises Retryable if the user has no right to know."""
        found = connection.exec_driver_sql(_FIND, (self._layout.tables[0], self._schema)).fetchone()
        if found is not None and not found[0]:
            raise Retryable(
                f"the user of the database of RATCHET_LEDGER_URL has no right to use the schema {self._schema}; as its owner, "
                f'grant USAGE, CREATE on schema "{self._schema}" to the user of the database, and the rights on its tables'
            )
        return found is not None and bool(found[1])

    def _create(self, connection: Connection) -> None:
        known = connection.exec_driver_sql("SELECT 1 FROM pg_namespace WHERE nspname = %s", (self._schema,)).scalar()
        if known is None:  # an administrator may have created it, for a role that must not
            user, may = connection.exec_driver_sql(_MAY_CREATE).one()
            if not may:
                raise Retryable(
                    f"the user {user} of the database of RATCHET_LEDGER_URL has no right to create the schema {self._schema}; as "
                    f'the owner of the database, run: CREATE SCHEMA "{self._schema}" AUTHORIZATION "{user}"'
                )
            connection.exec_driver_sql(f'CREATE SCHEMA "{self._schema}"')
        for statement in self._layout.create:
            connection.exec_driver_sql(reduce(lambda text, word: text.replace(*word), _TYPES.items(), statement))
        for statement in self._layout.postgres:
            connection.exec_driver_sql(statement)

    def _may_have_rows(self) -> bool:
        """Return whether a file may have rows that are not copied.

        One with texts is deleted after the copy, but a former release may have begun another one.
        """
        return self._former is not None and (self._layout.holds_texts or not self._is_moved) and self._former.exists()

    @contextmanager
    def _moving(self, former: FormerFile, statements: Statements) -> Iterator[None]:
        """Copy the rows of the file, unless it is marked with a copy that the database has. Rows of the database stay as they are.

        The caller's transaction stores them, so that this happens once, and wholly. Until it ends, nobody else writes to the file.
        """
        mark = former.mark()
        if not former.exists() or (mark is not None and (mark.is_complete or self._has_copy(statements, mark.copy))):
            yield
            return
        copy = secrets.token_hex(16)
        with former.moving(copy, self._line) as parts:
            for table, columns, rows in parts:
                names, marks = ", ".join(f'"{column}"' for column in columns), ", ".join("?" * len(columns))
                statements.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks}) ON CONFLICT DO NOTHING", rows)  # noqa: S608
            statements.execute("CREATE TABLE IF NOT EXISTS copies (copy TEXT PRIMARY KEY)")
            statements.execute("INSERT INTO copies VALUES (?)", (copy,))
            yield

    def _has_copy(self, statements: Statements, copy: str) -> bool:
        """Return whether the database has stored a copy. A process may have died between the mark in the file and the end of its change."""
        if statements.execute("SELECT to_regclass('copies')").fetchone()[0] is None:
            return False
        return statements.execute("SELECT 1 FROM copies WHERE copy = ?", (copy,)).fetchone() is not None

    def _end_move(self) -> None:
        """Say in the file that the database has its rows, or delete one with texts."""
        if self._former is None or not self._may_have_rows():
            self._is_moved = True
            return
        mark = self._former.mark()
        if mark is not None and self._layout.holds_texts:
            self._former.erase()
        elif mark is not None and not mark.is_complete:
            self._former.complete()
        self._is_moved = mark is not None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except SQLAlchemyError as error:
            told, *_ = str(getattr(error, "orig", None) or error).splitlines() or [type(error).__name__]  # without statement and values
            raise Retryable(f"the database of RATCHET_LEDGER_URL does not store or return {self._schema}: {told}") from error


def database_time(url: str) -> datetime:
    """Return the time of the Postgres server at a SQLAlchemy URL. Raises Retryable if it cannot be reached."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with _engine(url, os.getpid()).connect() as connection:
            return cast(datetime, connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()).astimezone(UTC)
    except SQLAlchemyError as error:
        raise Retryable(f"the database of RATCHET_LEDGER_URL does not tell its time: {type(error).__name__}") from error


class _Statements:
    """Statements with question marks, for Postgres."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Any:
        """Execute a statement and return its result."""
        return self._connection.exec_driver_sql(sql.replace("?", "%s"), _sent(values) or None)

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> None:
        """Execute a statement for each of the rows; the driver sends them together."""
        if found := [_sent(row) for row in rows]:
            self._connection.exec_driver_sql(sql.replace("?", "%s"), found)


def _sent(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return values as Postgres accepts them: its texts have no NUL, which those of SQLite may have."""
    return tuple(value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in values)


@lru_cache(maxsize=4)
def _engine(url: str, process: int) -> Engine:  # noqa: ARG001 -- a forked process must not use the connections of its parent
    """Return the connections of a process."""
    from ratchet.flows.ledger.sql import engine_at

    return engine_at(url)
