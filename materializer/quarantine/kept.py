"""What the quarantine stores outside the lake's table: masked bytes of records, cut records, and counts of ingested batches.

A table of the lake keeps deleted values in the files of its older snapshots. This database overwrites them, so that bytes are gone when
they expire, when their user withdraws, or when their record has been stored. If the file is lost, only these bytes are lost.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from ratchet.contracts.data.quarantine import QuarantineCounts

FILE = "quarantine.sqlite"
"""Name of the database in the folder of a lake."""


class Bytes(NamedTuple):
    """Masked bytes of a record or of a part of it, as JSON or, for an unreadable record, as text."""

    content: bytes
    """What may be stored in clear, cut to the maximum number of bytes."""
    truncated: bool
    """Whether the content was cut."""
    user: str | None
    """Pseudonym of the user."""
    expires: int
    """Microseconds since the epoch."""
    sealed: bytes | None = None
    """The whole masked record, encrypted, for a replay. None if it or the content is larger than the maximum. Entries of older
    releases have none, and their content is whole unless it is truncated."""


class Cut(NamedTuple):
    """An open entry whose record was cut by the end of its file."""

    id: str
    offset: int
    length: int
    digest: str | None
    position: str
    reason: str


class KeptRecords:
    """The database in the folder of one lake. The process that holds the lake's write lock changes it; others only read."""

    def __init__(self, root: Path) -> None:
        self._path = root / FILE

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self._path, timeout=30)) as connection, connection:
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS kept (id TEXT PRIMARY KEY, content BLOB NOT NULL, truncated INTEGER NOT NULL, user TEXT, "
                "expires INTEGER NOT NULL, size INTEGER NOT NULL)"
            )
            if "sealed" not in {row[1] for row in connection.execute("PRAGMA table_info(kept)")}:
                connection.execute("ALTER TABLE kept ADD COLUMN sealed BLOB")
            for column in ("user", "expires", "size"):  # the database may be large, and each ingest asks for these
                connection.execute(f"CREATE INDEX IF NOT EXISTS kept_{column} ON kept ({column})")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS cut (id TEXT PRIMARY KEY, source TEXT NOT NULL, origin TEXT NOT NULL, place INTEGER NOT NULL, "
                "length INTEGER NOT NULL, digest TEXT, position TEXT NOT NULL, reason TEXT NOT NULL) WITHOUT ROWID"
            )
            connection.execute(
                "CREATE TABLE IF NOT EXISTS batches (batch TEXT PRIMARY KEY, at INTEGER NOT NULL, read INTEGER NOT NULL, "
                "quarantined INTEGER NOT NULL, reasons TEXT NOT NULL) WITHOUT ROWID"
            )
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """Yield a connection that cannot write; None if nothing was ever stored."""
        if not self._path.exists():
            yield None
            return
        with closing(sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as connection:
            yield connection

    def keep(self, records: Mapping[str, Bytes], most: int) -> set[str]:
        """Store the bytes of entries by their ids, up to a total of `most` bytes. Return the ids of those that are stored."""
        stored: set[str] = set()
        if not records:
            return stored
        with self._changing() as connection:
            total = connection.execute("SELECT coalesce(sum(size), 0) FROM kept").fetchone()[0]
            for identity, one in records.items():
                known = connection.execute("SELECT size FROM kept WHERE id = ?", (identity,)).fetchone()
                size = len(one.content) + len(one.sealed or b"")
                more = size - (known[0] if known else 0)
                if total + more > most:
                    continue
                total += more
                row = (identity, one.content, one.truncated, one.user, one.expires, size, one.sealed)
                names = "id, content, truncated, user, expires, size, sealed"
                connection.execute(f"INSERT OR REPLACE INTO kept ({names}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)  # noqa: S608
                stored.add(identity)
        return stored

    def get(self, identity: str) -> Bytes | None:
        """Return the bytes of an entry; None if none are kept."""
        with self._reading() as connection:
            if connection is None:
                return None
            has_sealed = "sealed" in {row[1] for row in connection.execute("PRAGMA table_info(kept)")}
            query = f"SELECT content, truncated, user, expires, {'sealed' if has_sealed else 'NULL'} FROM kept WHERE id = ?"  # noqa: S608
            row = connection.execute(query, (identity,)).fetchone()
        return Bytes(row[0], bool(row[1]), row[2], row[3], row[4]) if row else None

    def expire(self, now: int) -> int:
        """Delete the bytes that expired before `now`, in microseconds since the epoch. Return the number of records."""
        return self._delete("expires <= ?", [(now,)])

    def end(self, identities: Collection[str]) -> None:
        """Delete what is stored of entries that are resolved."""
        values = [(one,) for one in identities]
        self._delete("id = ?", values)
        self._delete("id = ?", values, "cut")

    def forget_users(self, users: Collection[str]) -> int:
        """Delete the bytes of all records of users, which are named by their pseudonyms. Return the number of records."""
        return self._delete("user = ?", [(one,) for one in users])

    def forget_people(self, people: Collection[str]) -> int:
        """Delete the bytes that contain one of these pseudonyms, and those of nobody, which may contain texts of anybody.

        Return the number of records.
        """
        return self._delete("user IS NULL OR user = ?1 OR instr(content, CAST(?1 AS BLOB)) > 0", [(one,) for one in people])

    def _delete(self, where: str, values: Sequence[tuple[object]], table: str = "kept") -> int:
        if not values or not self._path.exists():
            return 0
        with self._changing() as connection:
            return sum(connection.execute(f"DELETE FROM {table} WHERE {where}", value).rowcount for value in values)  # noqa: S608

    def watch(self, source: str, origin: str, records: Iterable[Cut]) -> None:
        """Remember open entries whose record was cut by the end of the file `origin`."""
        rows = [(one.id, source, origin, one.offset, one.length, one.digest, one.position, one.reason) for one in records]
        if rows:
            with self._changing() as connection:
                connection.executemany("INSERT OR REPLACE INTO cut VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def cut(self, source: str, origin: str) -> list[Cut]:
        """Return the open entries whose record was cut by the end of the file `origin`."""
        with self._reading() as connection:
            if connection is None:
                return []
            query = "SELECT id, place, length, digest, position, reason FROM cut WHERE source = ? AND origin = ? ORDER BY place"
            return [Cut(*row) for row in connection.execute(query, (source, origin))]

    def count(self, batch: str, at: int, counts: QuarantineCounts, since: int) -> None:
        """Record the counts of an ingested batch, once, and forget those from before `since`. Times are microseconds since the epoch."""
        with self._changing() as connection:
            connection.execute("DELETE FROM batches WHERE at < ?", (since,))
            row = (batch, at, counts.read, counts.quarantined, json.dumps(counts.reasons, sort_keys=True))
            connection.execute("INSERT OR IGNORE INTO batches VALUES (?, ?, ?, ?, ?)", row)

    def counts(self, since: int) -> QuarantineCounts:
        """Return the sum of the counts since a time, in microseconds since the epoch."""
        reasons: Counter[str] = Counter()
        read = quarantined = 0
        with self._reading() as connection:
            query = "SELECT read, quarantined, reasons FROM batches WHERE at >= ?"
            for row in connection.execute(query, (since,)) if connection else ():
                read, quarantined = read + row[0], quarantined + row[1]
                reasons.update(json.loads(row[2]))
        return QuarantineCounts(read=read, quarantined=quarantined, reasons=dict(sorted(reasons.items())))
