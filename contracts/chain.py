"""The hash chain of a ledger stream: each row's hash covers the row and the hash before it, so that no row can be
changed, dropped or put in later without every later hash changing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from contracts.cycle import Entry, Row
from contracts.errors import Permanent
from contracts.ids import Digest, digest

GENESIS: Final[Digest] = "0" * 64


def _hash(stream: str, seq: int, row: Row, at: datetime, epoch: int, previous: Digest) -> Digest:
    return digest([stream, seq, row.kind, row.key, row.data, at.isoformat(), epoch, previous])


def seal(stream: str, seq: int, row: Row, at: datetime, epoch: int, previous: Digest) -> Entry:
    """A row with its place and its hash."""
    return Entry(
        stream=stream,
        seq=seq,
        kind=row.kind,
        key=row.key,
        data=row.data,
        at=at,
        epoch=epoch,
        previous=previous,
        hash=_hash(stream, seq, row, at, epoch, previous),
    )


def verify(entries: Sequence[Entry]) -> None:
    """Permanent if the entries of one stream, from row 1, are not the unbroken chain that was written."""
    previous = GENESIS
    for seq, entry in enumerate(entries, 1):
        row = Row(kind=entry.kind, key=entry.key, data=entry.data)
        if entry.seq != seq or entry.previous != previous or entry.hash != _hash(entry.stream, seq, row, entry.at, entry.epoch, previous):
            raise Permanent(f"the ledger was changed: row {seq} of {entry.stream} does not follow from the rows before; restore a backup")
        previous = entry.hash
