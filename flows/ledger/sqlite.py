"""Implements the port `Ledger` on a SQLite file, with the module of the standard library: a command reads the ledger within milliseconds.

The tables are those of sql.py. Every append is one transaction. BEGIN IMMEDIATE lets one writer at a time check the ends of its streams
and its lease, and write; a reader locks nothing (WAL). The primary key (stream, seq) is the last guard against two writers.
"""

from __future__ import annotations

import json
import sqlite3
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from ratchet.contracts.cycle import Append, Entry, Head, Lease
from ratchet.contracts.errors import Conflict, Fenced, Permanent, RatchetError, Retryable, Unwritable
from ratchet.contracts.hash_chain import GENESIS, seal_row
from ratchet.contracts.ids import Digest
from ratchet.contracts.schema import check_version
from ratchet.flows.ledger.stored_rows import WRITABLE, entry_of, values_of
from ratchet.runtime.file_errors import unwritable

_BUSY_SECONDS: Final = 30
"""Seconds to wait for another writer."""
_COLUMNS: Final = ("stream", "seq", "kind", "key", "data", "at", "epoch", "schema_version", "previous", "hash")
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS ratchet_rows (
    stream VARCHAR(200) NOT NULL, seq INTEGER NOT NULL, kind VARCHAR(40) NOT NULL, "key" VARCHAR(200) NOT NULL, data TEXT NOT NULL,
    at VARCHAR(40) NOT NULL, epoch INTEGER NOT NULL, schema_version INTEGER NOT NULL, previous VARCHAR(64) NOT NULL,
    hash VARCHAR(64) NOT NULL, PRIMARY KEY (stream, seq)
);
CREATE TABLE IF NOT EXISTS ratchet_leases (
    name VARCHAR(200) NOT NULL, holder VARCHAR(200) NOT NULL, epoch INTEGER NOT NULL, expires VARCHAR(40) NOT NULL, PRIMARY KEY (name)
);
"""
_HAS_TABLES: Final = "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name IN ('ratchet_rows', 'ratchet_leases')"
_READ: Final = "SELECT * FROM ratchet_rows WHERE stream = ? AND seq > ? ORDER BY seq"
_STREAMS: Final = "SELECT stream FROM ratchet_rows WHERE seq = 1 AND substr(stream, 1, ?) = ? ORDER BY stream"
_LENGTHS: Final = "SELECT stream, MAX(seq) FROM ratchet_rows WHERE stream IN (SELECT value FROM json_each(?)) GROUP BY stream"
_HEADS: Final = "SELECT stream, MAX(seq), hash FROM ratchet_rows GROUP BY stream ORDER BY stream"
"""SQLite takes `hash` from the row with the largest seq."""
_TAIL: Final = "SELECT seq, hash, schema_version FROM ratchet_rows WHERE stream = ? ORDER BY seq DESC LIMIT 1"
_INSERT: Final = (
    "INSERT INTO ratchet_rows (stream, seq, kind, key, data, at, epoch, schema_version, previous, hash) "
    "VALUES (:stream, :seq, :kind, :key, :data, :at, :epoch, :schema_version, :previous, :hash)"
)
_UNWRITABLE: Final = ("attempt to write a readonly database", "unable to open database file")


class SqliteLedger:
    """A ledger in the SQLite file `file`.

    Opening it creates the file and missing tables. Every method raises Retryable if the file is busy, and Unwritable if its permissions
    do not allow what is asked. Opening raises Permanent if the file is not a database.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._idle: deque[sqlite3.Connection] = deque()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(f"create the ledger's folder {file.parent}", error) from error
        try:
            self._create()
        except Retryable as error:  # another process may have created the tables at the same time
            if isinstance(error, Unwritable):
                raise
            self._create()

    def _create(self) -> None:
        with self._connection() as connection:
            try:
                (found,) = connection.execute(_HAS_TABLES).fetchone()
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                raise Permanent(f"{self.file} cannot be read as a ledger: {error}; restore a backup") from error
            if found < 2:
                connection.execute("PRAGMA journal_mode=WAL")  # stays in the file
                connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")

    def read(self, stream: str, after: int = 0) -> list[Entry]:
        """Return the stream's rows with seq > `after`, in order; empty for an unknown stream.

        Raises NewerRelease if a newer release wrote one of these rows, and Permanent for a row that was changed to invalid content.
        """
        with self._connection() as connection:
            return [entry_of(dict(row)) for row in connection.execute(_READ, (stream, after))]

    def streams(self, prefix: str) -> list[str]:
        """Return the names of the streams that begin with `prefix`, sorted."""
        with self._connection() as connection:
            return [row["stream"] for row in connection.execute(_STREAMS, (len(prefix), prefix))]

    def lengths(self, streams: Collection[str]) -> dict[str, int]:
        """Return the number of rows of each of these streams that exists, in one query on the primary key."""
        with self._connection() as connection:
            return dict(connection.execute(_LENGTHS, (json.dumps(list(streams)),)).fetchall())

    def heads(self) -> list[Head]:
        """Return the last row of every stream, sorted by stream, in one query. Streams without row 1 are included."""
        with self._connection() as connection:
            return [Head(stream=stream, seq=seq, hash=digest) for stream, seq, digest in connection.execute(_HEADS)]

    def append(self, appends: Sequence[Append], lease: Lease | None, at: datetime) -> list[Entry]:
        """Write all appends in one transaction and return the new rows.

        Raises Conflict if a stream does not end at its `after`, Fenced if `lease` is no longer the current one, and NewerRelease if a
        newer release wrote the last row of a stream.
        """
        with self._writing() as connection:
            if lease is not None:
                current = _lease(connection, lease.name)
                if current is None or current.epoch != lease.epoch:
                    raise Fenced(f"the lease {lease.name!r} (epoch {lease.epoch}) has passed to another process; this one stops writing")
            return [entry for append in appends for entry in _append(connection, append, lease.epoch if lease else 0, at)]

    def acquire(self, name: str, holder: str, ttl: float, now: datetime) -> Lease | None:
        """Return the lease with a new epoch, valid for `ttl` seconds; None while another holder's lease has not ended."""
        with self._writing() as connection:
            current = _lease(connection, name)
            if current is not None and current.holder != holder and not current.has_ended(ttl, now):
                return None
            lease = Lease(name=name, holder=holder, epoch=(current.epoch if current else 0) + 1, expires=now + timedelta(seconds=ttl))
            values = (name, holder, lease.epoch, lease.expires.isoformat())
            connection.execute("INSERT OR REPLACE INTO ratchet_leases (name, holder, epoch, expires) VALUES (?, ?, ?, ?)", values)
            return lease

    def holder(self, name: str) -> Lease | None:
        """Return the newest lease of that name, expired or not; None for an unknown name."""
        with self._connection() as connection:
            return _lease(connection, name)

    def renew(self, lease: Lease, ttl: float, now: datetime) -> Lease:
        """Extend the lease to `ttl` seconds from `now`, with the same epoch. Raises Fenced if another process has it."""
        renewed = lease.model_copy(update={"expires": now + timedelta(seconds=ttl)})
        if not self._expire_at(lease, renewed.expires):
            raise Fenced(f"the lease {lease.name!r} (epoch {lease.epoch}) has passed to another process; this one stops writing")
        return renewed

    def release(self, lease: Lease) -> None:
        """End the lease now. Does nothing if it is no longer the current one."""
        self._expire_at(lease, datetime.fromtimestamp(0, UTC))

    def _expire_at(self, lease: Lease, expires: datetime) -> bool:
        with self._writing() as connection:
            values = (expires.isoformat(), lease.name, lease.epoch)
            return connection.execute("UPDATE ratchet_leases SET expires = ? WHERE name = ? AND epoch = ?", values).rowcount == 1

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection, which one thread uses at a time. After an error of SQLite it is closed. Translates the errors."""
        try:
            connection = self._idle.pop() if self._idle else self._open()
        except IndexError:  # another thread was faster
            connection = self._open()
        try:
            yield connection
        except sqlite3.Error as error:
            connection.close()
            raise self._translated(error) from error
        except BaseException:
            self._give_back(connection)
            raise
        self._give_back(connection)

    def _give_back(self, connection: sqlite3.Connection) -> None:
        if connection.in_transaction:
            with suppress(sqlite3.Error):
                connection.rollback()
        self._idle.append(connection)

    def _open(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(self.file, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise self._translated(error) from error
        connection.row_factory = sqlite3.Row
        return connection

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection in a transaction that locks the file at once, so that it never has to upgrade its lock."""
        with self._connection() as connection:
            connection.execute("PRAGMA synchronous=FULL")  # a commit survives a power loss
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    def _translated(self, error: sqlite3.Error) -> RatchetError:
        if isinstance(error, sqlite3.IntegrityError):
            return Conflict(f"another process wrote the same row of the ledger first ({self.file}); read it again")
        if str(error) in _UNWRITABLE:
            return Unwritable(f"cannot write the ledger {self.file}: {error}; {WRITABLE}")
        return Retryable(f"the ledger at {self.file} is not available: {error}")


def _append(connection: sqlite3.Connection, append: Append, epoch: int, at: datetime) -> Iterator[Entry]:
    seq, previous = _tail(connection, append.stream)
    if seq != append.after:
        raise Conflict(f"{append.stream} has moved on to row {seq} (expected {append.after}); read it again and decide again")
    for number, row in enumerate(append.rows, seq + 1):
        entry = seal_row(append.stream, number, row, at, epoch, previous)
        previous = entry.hash
        connection.execute(_INSERT, values_of(entry))
        yield entry


def _tail(connection: sqlite3.Connection, stream: str) -> tuple[int, Digest]:
    row = connection.execute(_TAIL, (stream,)).fetchone()
    if row is None:
        return 0, GENESIS
    check_version(row["schema_version"], f"row {row['seq']} of {stream}")
    return row["seq"], row["hash"]


def _lease(connection: sqlite3.Connection, name: str) -> Lease | None:
    row = connection.execute("SELECT name, holder, epoch, expires FROM ratchet_leases WHERE name = ?", (name,)).fetchone()
    return Lease(**{**dict(row), "expires": datetime.fromisoformat(row["expires"])}) if row else None
