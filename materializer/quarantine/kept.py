"""What the quarantine stores outside the lake's table: masked bytes of records, cut records, and counts of ingested batches.

A table of the lake keeps deleted values in the files of its older snapshots. This store deletes them when they expire, when their user
withdraws, or when their record has been stored. A SQLite file overwrites them. Postgres frees the space of deleted rows soon (autovacuum),
but their bytes stay in the files of the database until other rows are written there or `VACUUM FULL` is run; its write-ahead log, replicas
and backups keep them, too. If the store is lost, only these bytes are lost.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ratchet.contracts.data.quarantine import QuarantineCounts
from ratchet.materializer.lake.places.place import LakePlace, place_of
from ratchet.runtime.sql_store import Statements, StoreLayout

FILE = "quarantine.sqlite"
"""Name of the file in the folder of a lake without a database."""


def _add_sealed(connection: Statements) -> None:
    """Add the column that files of older releases lack."""
    if "sealed" not in {row[1] for row in connection.execute("PRAGMA table_info(kept)")}:
        connection.execute("ALTER TABLE kept ADD COLUMN sealed BLOB")


LAYOUT = StoreLayout(
    "quarantine",
    ("kept", "cut", "batches"),
    create=(
        'CREATE TABLE IF NOT EXISTS kept (id TEXT PRIMARY KEY, content BLOB NOT NULL, truncated INTEGER NOT NULL, "user" TEXT, '
        "expires INTEGER NOT NULL, size INTEGER NOT NULL, sealed BLOB)",
        # the database may be large, and each ingest asks for these
        'CREATE INDEX IF NOT EXISTS kept_user ON kept ("user")',
        "CREATE INDEX IF NOT EXISTS kept_expires ON kept (expires)",
        "CREATE INDEX IF NOT EXISTS kept_size ON kept (size)",
        "CREATE TABLE IF NOT EXISTS cut (id TEXT PRIMARY KEY, source TEXT NOT NULL, origin TEXT NOT NULL, place INTEGER NOT NULL, "
        "length INTEGER NOT NULL, digest TEXT, position TEXT NOT NULL, reason TEXT NOT NULL) WITHOUT ROWID",
        "CREATE TABLE IF NOT EXISTS batches (batch TEXT PRIMARY KEY, at INTEGER NOT NULL, read INTEGER NOT NULL, "
        "quarantined INTEGER NOT NULL, reasons TEXT NOT NULL) WITHOUT ROWID",
    ),
    postgres=(
        "CREATE FUNCTION instr(bytea, bytea) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT position($2 IN $1)'",  # as in SQLite
        "ALTER TABLE kept SET (autovacuum_vacuum_threshold = 0, autovacuum_vacuum_scale_factor = 0, "  # their space is used again soon
        "toast.autovacuum_vacuum_threshold = 0, toast.autovacuum_vacuum_scale_factor = 0)",
    ),
    pragmas=("secure_delete = ON",),
    upgrade=_add_sealed,
    holds_texts=True,
)
"""In Postgres, the schema of the line NAME is `ratchet_quarantine_NAME`."""
_CHUNK = 500
"""Values per statement. SQLite limits the number of parameters."""


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
    """The records of one lake; a path is the folder of a local one.

    The process that holds the lake's write lock changes them; others only read.
    """

    def __init__(self, where: LakePlace | Path) -> None:
        self._store = place_of(where).store(LAYOUT, FILE)

    def keep(self, records: Mapping[str, Bytes], most: int) -> set[str]:
        """Store the bytes of entries by their ids, up to a total of `most` bytes. Return the ids of those that are stored."""
        if not records:
            return set()
        rows = list[tuple[object, ...]]()
        with self._store.changing() as connection:
            total = connection.execute("SELECT coalesce(sum(size), 0) FROM kept").fetchone()[0]
            known = {
                identity: size
                for some, marks in _chunks(records)
                for identity, size in connection.execute(f"SELECT id, size FROM kept WHERE id IN ({marks})", some)  # noqa: S608
            }
            for identity, one in records.items():
                size = len(one.content) + len(one.sealed or b"")
                more = size - known.get(identity, 0)
                if total + more > most:
                    continue
                total += more
                rows.append((identity, one.content, int(one.truncated), one.user, one.expires, size, one.sealed))
            names = 'id, content, truncated, "user", expires, size, sealed'
            connection.executemany(
                f"INSERT INTO kept ({names}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "  # noqa: S608
                'content = excluded.content, truncated = excluded.truncated, "user" = excluded."user", expires = excluded.expires, '
                "size = excluded.size, sealed = excluded.sealed",
                rows,
            )
        return {str(row[0]) for row in rows}

    def get(self, identity: str) -> Bytes | None:
        """Return the bytes of an entry; None if none are kept."""
        with self._store.reading() as connection:
            row = None if connection is None else connection.execute("SELECT * FROM kept WHERE id = ?", (identity,)).fetchone()
        if row is None:
            return None
        _, content, truncated, user, expires, _, *sealed = row  # a file of an older release has no sealed records
        return Bytes(content, bool(truncated), user, expires, *sealed)

    def expire(self, now: int) -> int:
        """Delete the bytes that expired before `now`, in microseconds since the epoch. Return the number of records."""
        return self._delete("expires <= ?", [(now,)])

    def end(self, identities: Collection[str]) -> None:
        """Delete what is stored of entries that are resolved."""
        for table in ("kept", "cut"):
            self._delete_by("id", identities, table)

    def forget_users(self, users: Collection[str]) -> int:
        """Delete the bytes of all records of users, which are named by their pseudonyms. Return the number of records."""
        return self._delete_by('"user"', users)

    def forget_people(self, people: Collection[str]) -> int:
        """Delete the bytes that contain one of these pseudonyms, and those of nobody, which may contain texts of anybody.

        Return the number of records.
        """
        named = [(one, one.encode()) for one in people]
        return self._delete('"user" IS NULL OR "user" = ? OR instr(content, ?) > 0', named)

    def _delete_by(self, column: str, values: Collection[str], table: str = "kept") -> int:
        return sum(self._delete(f"{column} IN ({marks})", [some], table) for some, marks in _chunks(values))

    def _delete(self, where: str, values: Sequence[Sequence[object]], table: str = "kept") -> int:
        if not values:
            return 0
        with self._store.reading() as connection:
            if connection is None:
                return 0
        with self._store.changing() as connection:
            return sum(connection.execute(f"DELETE FROM {table} WHERE {where}", value).rowcount for value in values)  # noqa: S608

    def watch(self, source: str, origin: str, records: Iterable[Cut]) -> None:
        """Remember open entries whose record was cut by the end of the file `origin`."""
        rows = [(one.id, source, origin, one.offset, one.length, one.digest, one.position, one.reason) for one in records]
        if rows:
            with self._store.changing() as connection:
                connection.executemany(
                    "INSERT INTO cut VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET source = excluded.source, "
                    "origin = excluded.origin, place = excluded.place, length = excluded.length, digest = excluded.digest, "
                    "position = excluded.position, reason = excluded.reason",
                    rows,
                )

    def cut(self, source: str, origin: str) -> list[Cut]:
        """Return the open entries whose record was cut by the end of the file `origin`."""
        with self._store.reading() as connection:
            if connection is None:
                return []
            query = "SELECT id, place, length, digest, position, reason FROM cut WHERE source = ? AND origin = ? ORDER BY place"
            return [Cut(*row) for row in connection.execute(query, (source, origin))]

    def count(self, batch: str, at: int, counts: QuarantineCounts, since: int) -> None:
        """Record the counts of an ingested batch, once, and forget those from before `since`. Times are microseconds since the epoch."""
        with self._store.changing() as connection:
            connection.execute("DELETE FROM batches WHERE at < ?", (since,))
            row = (batch, at, counts.read, counts.quarantined, json.dumps(counts.reasons, sort_keys=True))
            connection.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", row)

    def counts(self, since: int) -> QuarantineCounts:
        """Return the sum of the counts since a time, in microseconds since the epoch."""
        reasons: Counter[str] = Counter()
        read = quarantined = 0
        with self._store.reading() as connection:
            query = "SELECT read, quarantined, reasons FROM batches WHERE at >= ?"
            for row in connection.execute(query, (since,)) if connection else ():
                read, quarantined = read + row[0], quarantined + row[1]
                reasons.update(json.loads(row[2]))
        return QuarantineCounts(read=read, quarantined=quarantined, reasons=dict(sorted(reasons.items())))


def _chunks(values: Iterable[str]) -> Iterator[tuple[list[str], str]]:
    """Yield the values in parts, each with as many question marks."""
    every = list(values)
    for at in range(0, len(every), _CHUNK):
        some = every[at : at + _CHUNK]
        yield some, ",".join("?" * len(some))
