"""Receipts of erasures: what was removed, which versions rest on it, and what could not be reached. They name pseudonyms only."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from pydantic import Field

from ratchet.contracts.ids import Digest, digest
from ratchet.contracts.model import Frozen
from ratchet.contracts.schema import parse, stamped
from ratchet.runtime.artifacts import write_atomic


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


def read_receipt(folder: Path, key: Digest) -> Receipt | None:
    """Return a stored receipt, or None."""
    try:
        return parse(Receipt, (folder / f"{key[:16]}.json").read_bytes())
    except FileNotFoundError:
        return None


def store_receipt(folder: Path, receipt: Receipt) -> Path:
    """Store a receipt as JSON and as text, and return the path of the text."""
    write_atomic(folder / f"{receipt.id[:16]}.json", stamped(receipt))
    path = folder / f"{receipt.id[:16]}.txt"
    write_atomic(path, receipt_text(receipt).encode())
    return path


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
