"""Hash chain of a ledger stream.

The hash of each row covers the row and the previous hash. Changing, removing or inserting a row changes every later hash.
"""

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
    """Return the ledger entry for `row` at position `seq`, with its hash.

    `previous` is the hash of the preceding entry, or `GENESIS` for the first one. `epoch` is the lease epoch of the writer.
    """
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
    """Check the hash chain of one stream. `entries` must start at row 1.

    Raises `Permanent` at the first entry whose sequence number, previous hash or own hash does not match.
    """
    previous = GENESIS
    for seq, entry in enumerate(entries, 1):
        row = Row(kind=entry.kind, key=entry.key, data=entry.data)
        if entry.seq != seq or entry.previous != previous or entry.hash != _hash(entry.stream, seq, row, entry.at, entry.epoch, previous):
            raise Permanent(f"the ledger was changed: row {seq} of {entry.stream} does not match the hash chain; restore a backup")
        previous = entry.hash
