"""Hash chain of a ledger stream.

The hash of each row covers the row and the previous hash. Changing, removing or inserting a row changes every later hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from ratchet.contracts.cycle import Entry, Row
from ratchet.contracts.errors import Permanent
from ratchet.contracts.ids import Digest, digest
from ratchet.contracts.schema import SCHEMA_VERSION

GENESIS: Final[Digest] = "0" * 64


def _hash(stream: str, seq: int, row: Row, at: datetime, epoch: int, previous: Digest, schema_version: int) -> Digest:
    return digest([schema_version, stream, seq, row.kind, row.key, row.data, at.isoformat(), epoch, previous])


def seal_row(stream: str, seq: int, row: Row, at: datetime, epoch: int, previous: Digest, schema_version: int = SCHEMA_VERSION) -> Entry:
    """Return the ledger entry for `row` at position `seq`, with its hash.

    `previous` is the hash of the preceding entry, or `GENESIS` for the first one. `epoch` is the lease epoch of the writer. A
    row of this release has the default `schema_version`.
    """
    return Entry(
        stream=stream,
        seq=seq,
        kind=row.kind,
        key=row.key,
        data=row.data,
        at=at,
        epoch=epoch,
        schema_version=schema_version,
        previous=previous,
        hash=_hash(stream, seq, row, at, epoch, previous, schema_version),
    )


def verify_chain(entries: Sequence[Entry]) -> None:
    """Check the hash chain of one stream. `entries` must start at row 1.

    Raises `Permanent` at the first entry whose sequence number, previous hash or own hash does not match.
    """
    previous = GENESIS
    for seq, entry in enumerate(entries, 1):
        row = Row(kind=entry.kind, key=entry.key, data=entry.data)
        expected = _hash(entry.stream, seq, row, entry.at, entry.epoch, previous, entry.schema_version)
        if entry.seq != seq or entry.previous != previous or entry.hash != expected:
            raise Permanent(f"the ledger was changed: row {seq} of {entry.stream} does not match the hash chain; restore a backup")
        previous = entry.hash
