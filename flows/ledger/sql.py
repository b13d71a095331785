"""Implements the port `Ledger` with SQLAlchemy Core: one table of rows and one of leases. Every append is one transaction.

The primary key (stream, seq) prevents two writers from writing the same row. The lease row is read for update in the same transaction,
so that a writer that lost its lease cannot write. On SQLite, BEGIN IMMEDIATE gives the same guarantees.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import DBAPIError, IntegrityError

from ratchet.contracts.cycle import Append, Entry, Head, Lease
from ratchet.contracts.errors import ConfigError, Conflict, Fenced, Retryable, Unwritable
from ratchet.contracts.hash_chain import GENESIS, seal_row
from ratchet.contracts.ids import Digest
from ratchet.contracts.schema import check_version
from ratchet.flows.ledger.stored_rows import WRITABLE, entry_of, values_of
from ratchet.runtime.file_errors import unwritable

_meta = sa.MetaData()
_rows = sa.Table(
    "ratchet_rows",
    _meta,
    sa.Column("stream", sa.String(200), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.String(40), nullable=False),
    sa.Column("key", sa.String(200), nullable=False),
    sa.Column("data", sa.Text, nullable=False),
    sa.Column("at", sa.String(40), nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("schema_version", sa.Integer, nullable=False),
    sa.Column("previous", sa.String(64), nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)
_leases = sa.Table(
    "ratchet_leases",
    _meta,
    sa.Column("name", sa.String(200), primary_key=True),
    sa.Column("holder", sa.String(200), nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("expires", sa.String(40), nullable=False),
)

_LENGTHS = (  # built once, because the service asks it twice a second
    sa.select(_rows.c.stream, sa.func.max(_rows.c.seq))
    .where(_rows.c.stream.in_(sa.bindparam("streams", expanding=True)))
    .group_by(_rows.c.stream)
)
_UNWRITABLE = ("attempt to write a readonly database", "unable to open database file")
"""Texts of SQLite that last until an operator changes permissions or places."""
_READS = "ratchet_reads"
"""Execution option of connections that only read."""


class SqlLedger:
    """A ledger in the database at a SQLAlchemy URL.

    Opening it creates missing tables. Every method raises Retryable if the database cannot be reached or is busy. Opening raises Permanent
    for an invalid URL or a missing driver.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = engine_at(url)
        self._reader = self._engine.execution_options(**{_READS: True})
        try:
            self._create()
        except Retryable:  # another process may have created the tables at the same time
            self._create()

    def _create(self) -> None:
        with self._errors():
            _meta.create_all(self._engine)

    def read(self, stream: str, after: int = 0) -> list[Entry]:
        """Return the stream's rows with seq > `after`, in order; empty for an unknown stream.

        Raises NewerRelease if a newer release wrote one of these rows, and Permanent for a row that was changed to invalid content.
        """
        query = sa.select(_rows).where(_rows.c.stream == stream, _rows.c.seq > after).order_by(_rows.c.seq)
        with self._errors(), self._reader.connect() as connection:
            return [entry_of(dict(row)) for row in connection.execute(query).mappings()]

    def streams(self, prefix: str) -> list[str]:
        """Return the names of the streams that begin with `prefix`, sorted."""
        query = sa.select(_rows.c.stream).where(_rows.c.seq == 1, _rows.c.stream.startswith(prefix, autoescape=True))
        with self._errors(), self._reader.connect() as connection:
            found = connection.execute(query).scalars().all()
        return sorted(stream for stream in found if stream.startswith(prefix))  # SQLite's LIKE ignores case

    def lengths(self, streams: Collection[str]) -> dict[str, int]:
        """Return the number of rows of each of these streams that exists, in one query on the primary key."""
        with self._errors(), self._reader.connect() as connection:
            return {stream: int(seq) for stream, seq in connection.execute(_LENGTHS, {"streams": list(streams)})}

    def heads(self) -> list[Head]:
        """Return the last row of every stream, sorted by stream, in one query. Streams without row 1 are included."""
        last = sa.select(_rows.c.stream, sa.func.max(_rows.c.seq).label("seq")).group_by(_rows.c.stream).subquery()
        query = sa.select(_rows.c.stream, _rows.c.seq, _rows.c.hash).join(
            last, (_rows.c.stream == last.c.stream) & (_rows.c.seq == last.c.seq)
        )
        with self._errors(), self._reader.connect() as connection:
            found = [Head(stream=row.stream, seq=row.seq, hash=row.hash) for row in connection.execute(query)]
        return sorted(found, key=lambda head: head.stream)

    def append(self, appends: Sequence[Append], lease: Lease | None, at: datetime) -> list[Entry]:
        """Write all appends in one transaction and return the new rows.

        Raises Conflict if a stream does not end at its `after`, Fenced if `lease` is no longer the current one, and NewerRelease if a
        newer release wrote the last row of a stream.
        """
        with self._errors(), self._engine.begin() as connection:
            if lease is not None:
                current = self._lease(connection, lease.name, lock=True)
                if current is None or current.epoch != lease.epoch:
                    raise Fenced(f"the lease {lease.name!r} (epoch {lease.epoch}) has passed to another process; this one stops writing")
            return [entry for append in appends for entry in self._append(connection, append, lease.epoch if lease else 0, at)]

    def _append(self, connection: Connection, append: Append, epoch: int, at: datetime) -> list[Entry]:
        seq, previous = self._tail(connection, append.stream)
        if seq != append.after:
            raise Conflict(f"{append.stream} has moved on to row {seq} (expected {append.after}); read it again and decide again")
        entries = []
        for row in append.rows:
            seq += 1
            entry = seal_row(append.stream, seq, row, at, epoch, previous)
            previous = entry.hash
            connection.execute(sa.insert(_rows).values(values_of(entry)))
            entries.append(entry)
        return entries

    def _tail(self, connection: Connection, stream: str) -> tuple[int, Digest]:
        query = (
            sa.select(_rows.c.seq, _rows.c.hash, _rows.c.schema_version)
            .where(_rows.c.stream == stream)
            .order_by(_rows.c.seq.desc())
            .limit(1)
        )
        row = connection.execute(query).first()
        if row:
            check_version(row.schema_version, f"row {row.seq} of {stream}")
        return (row.seq, row.hash) if row else (0, GENESIS)

    def _lease(self, connection: Connection, name: str, lock: bool = False) -> Lease | None:
        query = sa.select(_leases).where(_leases.c.name == name)
        row = connection.execute(query.with_for_update() if lock else query).mappings().first()
        return (
            Lease(name=row["name"], holder=row["holder"], epoch=row["epoch"], expires=datetime.fromisoformat(row["expires"]))
            if row
            else None
        )

    def acquire(self, name: str, holder: str, ttl: float, now: datetime) -> Lease | None:
        """Return the lease with a new epoch, valid for `ttl` seconds; None while another holder's lease has not ended."""
        try:
            return self._acquire(name, holder, ttl, now)
        except Conflict:  # another process inserted the lease's first row and thus holds the lease
            return None

    def _acquire(self, name: str, holder: str, ttl: float, now: datetime) -> Lease | None:
        with self._errors(), self._engine.begin() as connection:
            current = self._lease(connection, name, lock=True)
            if current is not None and current.holder != holder and not current.has_ended(ttl, now):
                return None
            lease = Lease(name=name, holder=holder, epoch=(current.epoch if current else 0) + 1, expires=now + timedelta(seconds=ttl))
            values = {"holder": holder, "epoch": lease.epoch, "expires": lease.expires.isoformat()}
            if current is None:
                connection.execute(sa.insert(_leases).values(name=name, **values))
            else:
                connection.execute(sa.update(_leases).where(_leases.c.name == name).values(**values))
            return lease

    def holder(self, name: str) -> Lease | None:
        """Return the newest lease of that name, expired or not; None for an unknown name."""
        with self._errors(), self._reader.connect() as connection:
            return self._lease(connection, name)

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
        mine = (_leases.c.name == lease.name) & (_leases.c.epoch == lease.epoch)
        with self._errors(), self._engine.begin() as connection:
            return connection.execute(sa.update(_leases).where(mine).values(expires=expires.isoformat())).rowcount == 1

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Translate database errors into Ratchet's errors: Conflict for a duplicate row, otherwise Retryable."""
        try:
            yield
        except IntegrityError as error:
            raise Conflict(f"another process wrote the same row of the ledger first ({_where(self.url)}); read it again") from error
        except DBAPIError as error:
            if (told := str(error.orig).splitlines()[0]) in _UNWRITABLE:
                raise Unwritable(f"cannot write the ledger at {_where(self.url)}: {told}; {WRITABLE}") from error
            raise Retryable(f"the ledger at {_where(self.url)} is not available: {told}") from error


def _where(url: str) -> str:
    return make_url(url).render_as_string(hide_password=True)


def engine_at(url: str) -> Engine:
    """Return connections to the database at a SQLAlchemy URL. Raises ConfigError for an invalid URL or a missing driver."""
    try:
        parsed = make_url(url)
    except sa.exc.ArgumentError as error:
        raise ConfigError(
            "RATCHET_LEDGER_URL is not a SQLAlchemy URL; use sqlite:///PATH or postgresql+psycopg://USER@HOST/NAME"
        ) from error
    if parsed.get_backend_name() != "sqlite":
        try:
            return sa.create_engine(parsed, pool_pre_ping=True, connect_args=_patience(parsed))
        except (ImportError, sa.exc.NoSuchModuleError) as error:
            raise ConfigError(
                f"RATCHET_LEDGER_URL: no driver for {_where(url)} is installed: {error}; for Postgres, install ratchet[postgres]"
            ) from error
    if parsed.database:
        try:
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(f"create the ledger's folder {Path(parsed.database).parent}", error) from error
    engine = sa.create_engine(parsed, connect_args={"timeout": 30})
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _begin)
    return engine


def _patience(url: URL) -> dict[str, object]:
    """Return how long to wait for the server, where the URL does not say it: by default, a quarter of an hour for a lost machine."""
    if url.get_driver_name() not in ("psycopg", "psycopg2"):
        return {}
    wanted = {
        "connect_timeout": 10,
        "tcp_user_timeout": 60_000,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
    }
    return {name: value for name, value in wanted.items() if name not in url.query}


def prompt(url: str) -> str:
    """Return the URL of a Postgres database with short limits, for requests that must fail rather than wait."""
    parsed = make_url(url)
    options = " ".join(filter(None, [str(parsed.query.get("options", "")), "-c statement_timeout=8000"]))
    limits = {"connect_timeout": "5", "tcp_user_timeout": "8000", "options": options}
    return parsed.update_query_dict(limits).render_as_string(hide_password=False)


def _begin(connection: Connection) -> None:
    """Begin a SQLite transaction. A writer locks at once, so that it never has to upgrade; a reader locks nothing (WAL)."""
    connection.exec_driver_sql("BEGIN" if connection.get_execution_options().get(_READS) else "BEGIN IMMEDIATE")


def _on_connect(connection: Any, _record: Any) -> None:
    """Configure a SQLite connection: explicit transactions only, WAL, and FULL, so that a commit survives a power loss."""
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()
