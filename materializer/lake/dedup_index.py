"""Deduplication index of the lake: key -> (batch, content hash). A batch is checked against it without reading the lake.

The index is a derived copy. It stores the last Iceberg snapshot that it has read, and it adds the rows appended since then. A crash
between a commit and the index update therefore loses nothing. A lost index is rebuilt from the lake.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from contracts.data.records import FeedbackKind
from materializer.lake.tables import Lake, TableName

Key = bytes

_COLUMNS: dict[TableName, tuple[str, ...]] = {
    "traces": ("source", "id", "batch", "response_id", "messages", "answer", "model", "status", "consent", "verified"),
    "feedback": ("source", "trace_id", "response_id", "rater", "kind", "time", "batch", "value", "text", "sender"),
    "quarantine": ("batch", "position", "reason"),
}
_TABLE = "CREATE TABLE IF NOT EXISTS {} (key BLOB PRIMARY KEY, batch BLOB NOT NULL, content BLOB NOT NULL) WITHOUT ROWID"
_CHUNK = 500


class Known(NamedTuple):
    """The stored row of a key: the batch that wrote it and the hash of its content."""

    batch: str
    content: bytes


def hashed(*parts: object) -> bytes:
    """Return a 128-bit hash of the parts. None and the empty string give different hashes."""
    plain = "\x1f".join("\x00" if part is None else str(part) for part in parts)
    return hashlib.blake2b(plain.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def trace_key(source: str, identity: str) -> Key:
    """Return the key that identifies a trace."""
    return hashed("t", source, identity)


def verified_key(source: str, identity: str) -> Key:
    """Return the key that identifies a trace whose span the router has signed."""
    return hashed("v", source, identity)


def response_key(source: str, response: str) -> Key:
    """Return the key by which feedback without a trace id finds its trace."""
    return hashed("r", source, response)


def key_of(table: TableName, row: dict[str, Any]) -> Key:
    """Return the key that identifies a row of `table`.

    A verified trace has a key of its own. Otherwise a sender that knows the id of a call could keep out the router's trace of it.
    Feedback is identified by (trace, source, rater, kind, time, sender), with `time` in microseconds since the epoch. Otherwise one sender
    could keep out the feedback of another one. Without a sender, the key is that of earlier releases.
    """
    if table == "traces":
        return verified_key(row["source"], row["id"]) if row["verified"] else trace_key(row["source"], row["id"])
    if table == "feedback":
        subject = row["trace_id"] if row["trace_id"] is not None else row["response_id"]
        sender = () if row["sender"] is None else (row["sender"],)
        return hashed("f", row["source"], row["trace_id"] is not None, subject, row["rater"], row["kind"], row["time"], *sender)
    return hashed("q", row["batch"], row["position"], row["reason"])


def content_of(table: TableName, row: dict[str, Any]) -> bytes:
    """Return the content hash of a row. Two rows with equal keys are the same record if their content hashes are equal."""
    if table == "traces":
        return hashed(row["messages"], row["answer"], row["model"], row["status"])
    if table == "feedback":
        return hashed(row["value"] if row["kind"] == FeedbackKind.RATING else row["text"])
    return b""


def _named(trace: dict[str, Any]) -> list[tuple[Key, bool]]:
    """Return the keys by which feedback finds a trace, with whether its content is stored."""
    kept = trace["messages"] is not None
    keys = [trace_key(trace["source"], trace["id"])]
    keys += [response_key(trace["source"], trace["response_id"])] if trace["response_id"] else []
    return [(key, kept) for key in keys]


class DedupIndex:
    """The deduplication index in the folder of a lake. Only the process that holds the lake's write lock may use it."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.lake.root / "seen.sqlite", timeout=30)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        for table in _COLUMNS:
            connection.execute(_TABLE.format(table))
        connection.execute("CREATE TABLE IF NOT EXISTS responses (key BLOB PRIMARY KEY, consent INTEGER NOT NULL) WITHOUT ROWID")
        connection.execute("CREATE TABLE IF NOT EXISTS covered (name TEXT PRIMARY KEY, snapshot INTEGER NOT NULL)")
        return connection

    def catch_up(self, table: TableName) -> None:
        """Add the rows that were appended to `table` since the previous call."""
        current = self.lake.snapshot(table)
        with closing(self._open()) as connection, connection:
            row = connection.execute("SELECT snapshot FROM covered WHERE name = ?", (table,)).fetchone()
            if current is None or (row and row[0] == current):
                return
            rows = self._added(table, row[0] if row else None)
            keyed = [(key_of(table, item), item["batch"].encode(), content_of(table, item)) for item in rows]
            connection.executemany(f"INSERT OR IGNORE INTO {table} VALUES (?, ?, ?)", keyed)  # noqa: S608
            if table == "traces":
                # A copy that is not signed, and comes after the router's trace, is a duplicate of it.
                copies = [
                    (trace_key(item["source"], item["id"]), item["batch"].encode(), content_of(table, item))
                    for item in rows
                    if item["verified"]
                ]
                connection.executemany("INSERT OR IGNORE INTO traces VALUES (?, ?, ?)", copies)
                signed = [found for item in rows if item["verified"] for found in _named(item)]
                connection.executemany("INSERT OR REPLACE INTO responses VALUES (?, ?)", signed)
                others = [found for item in rows if not item["verified"] for found in _named(item)]
                connection.executemany("INSERT OR IGNORE INTO responses VALUES (?, ?)", others)
            connection.execute("INSERT OR REPLACE INTO covered VALUES (?, ?)", (table, current))

    def forget(self, table: TableName) -> None:
        """Remove the rows of `table`, whose keys have changed. The next `catch_up` adds them again from the lake."""
        with closing(self._open()) as connection, connection:
            connection.execute(f"DELETE FROM {table}")  # noqa: S608
            connection.execute("DELETE FROM covered WHERE name = ?", (table,))

    def _added(self, table: TableName, since: int | None) -> list[dict[str, Any]]:
        frame = self.lake.added(table, since, _COLUMNS[table])
        if table == "feedback":
            frame = frame.with_columns(frame["time"].dt.epoch("us"))
        return frame.to_dicts()

    def lookup(self, table: TableName, keys: Sequence[Key]) -> dict[Key, Known]:
        """Return the stored row of each of `keys` that exists in `table`."""
        rows = self._select(f"SELECT key, batch, content FROM {table} WHERE key IN", keys)  # noqa: S608
        return {key: Known(batch.decode(), content) for key, batch, content in rows}

    def subjects(self, keys: Sequence[Key]) -> dict[Key, bool]:
        """Map each of `keys` that belongs to a stored trace to whether the content of that trace is stored.

        A key is the result of `trace_key` or `response_key`. Keys of unknown traces are left out.
        """
        return {key: bool(kept) for key, kept in self._select("SELECT key, consent FROM responses WHERE key IN", keys)}

    def _select(self, query: str, keys: Sequence[Key]) -> Iterable[tuple[Any, ...]]:
        with closing(self._open()) as connection:
            for begin in range(0, len(keys), _CHUNK):
                chunk = keys[begin : begin + _CHUNK]
                yield from connection.execute(f"{query} ({','.join('?' * len(chunk))})", chunk).fetchall()
