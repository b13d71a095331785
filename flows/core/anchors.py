"""Exports of the ledger's heads, and the comparison of the ledger with them. Pure: signing and storage are in `flows/ledger/anchors.py`.

A hash chain alone shows only a naive change. Someone who can write to the database can also compute a new chain, delete a stream or cut
off its end. A signed export of all heads (stream, number and hash of its last row) fixes everything up to these rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from ratchet.contracts.cycle import Entry, Head
from ratchet.contracts.errors import Permanent
from ratchet.contracts.hash_chain import verify_chain
from ratchet.contracts.ids import Digest
from ratchet.contracts.model import Frozen

FIRST_PREVIOUS: Digest = "0" * 64
"""`previous` of the first export."""


class Export(Frozen):
    """The heads of all streams of a ledger at one time. Streams are never deleted, so this is also the index of all streams."""

    number: int
    """Position in the chain of exports, starting at 1."""
    previous: Digest
    """Digest of the file of the previous export. For the first export, 64 zeros."""
    at: datetime
    """Time of the export, in UTC."""
    heads: tuple[Head, ...]
    """Last row of each stream, sorted by stream."""


class Damage(Frozen):
    """One contradiction that a verification found."""

    what: str
    """chain | changed | deleted | truncated | export_missing | export_forged | export_damaged."""
    where: str
    """Stream or file."""
    text: str
    """Description for users."""


class Unanchored(Frozen):
    """Rows of a stream that are newer than the last export. Nothing shows a change of them that comes with a new chain."""

    stream: str
    first: int
    """Number of the first of these rows."""
    rows: int


def chain_damage(stream: str, entries: Sequence[Entry]) -> list[Damage]:
    """Verify the hash chain of a stream. `entries` are all of its rows."""
    try:
        verify_chain(entries)
    except Permanent as error:
        return [Damage(what="chain", where=stream, text=str(error))]
    return []


def anchor_damage(hashes: Mapping[str, Sequence[Digest]], exports: Sequence[Export]) -> list[Damage]:
    """Compare the ledger with all exports and return one finding per damaged stream, sorted by stream.

    `hashes` contains the hashes of all rows of each stream, in order, whose chains are valid. Every export is compared, not only the
    newest: a change between two exports is contained in the newer one.
    """
    found: dict[str, Damage] = {}
    for export in exports:
        for head in export.heads:
            if head.stream not in found and (text := _contradiction(hashes.get(head.stream, ()), head)):
                what, said = text
                when = f"export {export.number} of {export.at:%Y-%m-%d %H:%M:%S} UTC"
                found[head.stream] = Damage(what=what, where=head.stream, text=f"{head.stream}: {said} ({when})")
    return [found[stream] for stream in sorted(found)]


def _contradiction(hashes: Sequence[Digest], head: Head) -> tuple[str, str] | None:
    if not hashes:
        return "deleted", f"the stream was deleted; it had {head.seq} rows"
    if len(hashes) < head.seq:
        return "truncated", f"rows {len(hashes) + 1} to {head.seq} were deleted"
    if hashes[head.seq - 1] != head.hash:
        return "changed", f"a row up to row {head.seq} was changed and the hash chain computed again"
    return None


def unanchored(heads: Sequence[Head], newest: Export | None) -> list[Unanchored]:
    """Return the rows that are newer than the newest export, one element per stream. Without an export these are all rows."""
    known = {head.stream: head.seq for head in newest.heads} if newest else {}
    return list(_newer(heads, known))


def _newer(heads: Sequence[Head], known: Mapping[str, int]) -> Iterator[Unanchored]:
    for head in heads:
        seq = known.get(head.stream, 0)
        if head.seq > seq:
            yield Unanchored(stream=head.stream, first=seq + 1, rows=head.seq - seq)
