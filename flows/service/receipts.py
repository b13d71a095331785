"""Receipts of erasures: what was removed, which versions rest on it, and what could not be reached. They name pseudonyms only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from pydantic import Field

from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import Digest, digest
from ratchet.contracts.model import Frozen
from ratchet.contracts.schema import parse, stamped
from ratchet.flows.config.home import Home
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.sql_store import Statements, StoreLayout

LAYOUT = StoreLayout(
    "receipts", ("receipts",), create=("CREATE TABLE IF NOT EXISTS receipts (id TEXT PRIMARY KEY, content TEXT NOT NULL)",)
)
"""In Postgres, the schema is `ratchet_receipts`. A receipt names people of all lines, so that no line has it alone."""
_NAME = re.compile("[0-9a-f]{16}")
"""Name of the file of a receipt, without its ending. Other files in the folder are not read."""
_GET = "SELECT content FROM receipts WHERE id = ?"


class RecalledVersion(Frozen):
    """A version that was trained on erased rows, and what can be done about it."""

    tag: str
    reason: str
    champion: bool
    """Whether it serves now."""
    clean: str
    """Tag of the newest champion that was not trained on them."""


class LineErased(Frozen):
    """What an erasure removed from one line."""

    line: str
    run: str = ""
    """Identity of the newest run that removed something. A run that continues after an interruption keeps it, and counts its rows once."""
    rows: dict[str, int] = Field(default_factory=dict)
    """Table, or `artifacts` -> number of rows."""
    files: dict[str, int] = Field(default_factory=dict)
    """Place -> number of deleted or replaced files."""
    bytes: int = 0
    """Bytes of the deleted files."""
    recalled: tuple[RecalledVersion, ...] = ()
    cycle: str | None = None
    """The open cycle that was ended."""
    left: tuple[str, ...] = ()
    """What could not be reached, and why."""


class Receipt(Frozen):
    """The result of an erasure. A repeated erasure of the same people gives the same receipt unless it removes something."""

    id: Digest
    people: tuple[str, ...]
    """Pseudonyms of the users and sessions, in all versions of their key."""
    found: dict[str, int] = Field(default_factory=dict)
    """Pseudonym -> number of stored rows that named the person when the erasure began. A person without a row is missing."""
    begun: datetime
    finished: datetime | None = None
    """When the last run that removed something ended. None: the erasure is not complete; repeat it."""
    lines: tuple[LineErased, ...] = ()
    left: tuple[str, ...] = ()
    """What no erasure reaches."""


def receipt_id(people: Iterable[str]) -> Digest:
    """Return the id of the receipt for these pseudonyms."""
    return digest(sorted(people))


class Receipts:
    """The receipts of an installation: files in its home folder and, if the ledger is in Postgres, rows in its database.

    With a database, each file is a copy. Of two states of a receipt, the one counts that was finished later: a lost volume takes the files,
    and a database that was restored from a backup lacks the newest rows. Methods raise Retryable if the database cannot be reached, or if a
    file cannot be written.
    """

    def __init__(self, home: Home) -> None:
        self._folder = home.erasures
        database = home.database()
        self._store = None if database is None else database.store(LAYOUT, None)

    def get(self, key: Digest) -> Receipt | None:
        """Return a stored receipt, or None."""
        return _newer(self._row(key), _of_file(self._folder / f"{key[:16]}.json"))

    def all(self) -> list[Receipt]:
        """Return all stored receipts, the oldest first."""
        found = {receipt.id: receipt for receipt in self._files()}
        for row in self._rows():
            found[row.id] = _newer(row, found.get(row.id)) or row
        return sorted(found.values(), key=lambda receipt: (receipt.begun, receipt.id))

    def store(self, receipt: Receipt) -> None:
        """Store a receipt in place of its former state: as a row, if there is a database, and as JSON and as text."""
        if self._store is not None:
            with self._store.changing() as connection:
                _put(connection, receipt)
        write_atomic(self._folder / f"{receipt.id[:16]}.json", stamped(receipt))
        write_atomic(self._folder / f"{receipt.id[:16]}.txt", receipt_text(receipt).encode())

    def copy_files(self) -> None:
        """Copy the files to the database, if there is one, unless it has the same state or a later one. The files stay."""
        if self._store is None:
            return
        rows = {row.id: row for row in self._rows()}
        missing = [receipt for receipt in self._files() if not self._is_stored(rows.get(receipt.id), receipt)]
        if not missing:
            return
        with self._store.changing() as connection:
            for receipt in missing:
                known = connection.execute(_GET, (receipt.id,)).fetchone()
                if not self._is_stored(_of_row(known[0]) if known else None, receipt):
                    _put(connection, receipt)

    @staticmethod
    def _is_stored(row: Receipt | None, file: Receipt) -> bool:
        return row is not None and _newer(row, file) is row

    def _row(self, key: Digest) -> Receipt | None:
        found = self._select(_GET, key)
        return _of_row(found[0]) if found else None

    def _select(self, query: str, *values: str) -> list[str]:
        if self._store is None:
            return []
        with self._store.reading() as connection:
            return [] if connection is None else [content for (content,) in connection.execute(query, values).fetchall()]

    def _rows(self) -> list[Receipt]:
        return [_of_row(content) for content in self._select("SELECT content FROM receipts")]

    def _files(self) -> list[Receipt]:
        found = (_of_file(path) for path in sorted(self._folder.glob("*.json")) if _NAME.fullmatch(path.stem))
        return [receipt for receipt in found if receipt is not None]


def _put(connection: Statements, receipt: Receipt) -> None:
    query = "INSERT INTO receipts VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET content = excluded.content"
    connection.execute(query, (receipt.id, stamped(receipt).decode()))


def _of_row(content: str) -> Receipt:
    try:
        return parse(Receipt, content.encode())
    except ValueError as error:
        raise Retryable("a receipt in the schema ratchet_receipts cannot be read; restore its row from a backup") from error


def _of_file(path: Path) -> Receipt | None:
    """Return the receipt in a file; None if there is none. Raises Retryable if it cannot be read."""
    try:
        return parse(Receipt, path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Retryable(f"the receipt {path} cannot be read; restore it from a backup, or move it to another folder") from error


def _newer(one: Receipt | None, other: Receipt | None) -> Receipt | None:
    """Return the state of a receipt that was finished later, and the first one if both were finished at the same time."""
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda receipt: (receipt.finished is not None, receipt.finished or receipt.begun))


def merged(before: LineErased | None, now: LineErased) -> LineErased:
    """Return what two runs removed together. Facts about the present come from the later one."""
    if before is None:
        return now
    known = {version.tag: version for version in (*before.recalled, *now.recalled)}
    return now.model_copy(
        update={
            "rows": _most(before.rows, now.rows) if before.run == now.run else _sum(before.rows, now.rows),
            "files": _sum(before.files, now.files),
            "bytes": before.bytes + now.bytes,
            "recalled": tuple(known.values()),
            "cycle": now.cycle or before.cycle,
        }
    )


def _sum(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in sorted(one.keys() | other.keys())}


def _most(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in sorted(one.keys() | other.keys())}


def receipt_text(receipt: Receipt) -> str:
    """Return a receipt for people."""
    done = f"{receipt.finished:%Y-%m-%d %H:%M:%S} UTC" if receipt.finished else "NOT COMPLETE: run `ratchet erase` again"
    lines = [
        f"Receipt {receipt.id[:16]}",
        f"begun     {receipt.begun:%Y-%m-%d %H:%M:%S} UTC",
        f"finished  {done}",
        f"people    {', '.join(receipt.people)}",
    ]
    without = len(set(receipt.people) - receipt.found.keys())
    named = [f"  {name}  {rows} rows" for name, rows in sorted(receipt.found.items())]
    lines += ["found", *(named or ["  no row"]), *([f"  {without} pseudonyms without a row"] if without and named else [])]
    for one in receipt.lines:
        rows = ", ".join(f"{name} {count}" for name, count in one.rows.items() if count) or "none"
        files = ", ".join(f"{name} {count}" for name, count in one.files.items() if count) or "none"
        lines += ["", f"Line {one.line}", f"  rows removed: {rows}", f"  files deleted or replaced: {files} ({one.bytes} bytes)"]
        if one.cycle:
            lines.append(f"  ended as recalled: {one.cycle}")
        for version in one.recalled:
            lines += [f"  recalled: {version.tag}{' (champion)' if version.champion else ''}: {version.reason}", f"    {_remedy(version)}"]
        lines += [f"  not reached: {text}" for text in one.left]
    return "\n".join([*lines, "", "Not reached by any erasure:", *(f"  - {text}" for text in receipt.left), ""])


def _remedy(version: RecalledVersion) -> str:
    if not version.champion:
        return f"it does not serve; the next candidate is compared with {version.clean}"
    retrain = f"it serves until a candidate replaces it. To retrain without the rows, open a cycle, which compares with {version.clean}"
    return f"{retrain}. To stop it now, run the erasure again with --roll-back"
