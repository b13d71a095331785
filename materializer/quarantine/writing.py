"""Makes the quarantine rows of a batch, and the masked bytes that are kept of its bad records."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, BinaryIO

from ratchet.contracts.data.datasets import RawBatch
from ratchet.contracts.data.decoding import Bad, Decoded, Limits, Place
from ratchet.contracts.errors import Rejected
from ratchet.contracts.ids import digest
from ratchet.contracts.loop import QuarantineSettings
from ratchet.materializer.dialects.decode import MAX_RECORD, record_of
from ratchet.materializer.dialects.values import dump
from ratchet.materializer.quarantine.excerpt import Hide, Mask, is_kept, masked_part, masked_text, part_of, parts_of, user_of
from ratchet.materializer.quarantine.kept import Bytes, Cut
from ratchet.materializer.quarantine.shown import shown, shown_text

DAY_US = 86_400_000_000
_MOST_TIMES = 16
"""A part that is larger than this many times `max_bytes` is not masked, because that takes too long, and keeps no bytes."""

_LONGEST = MAX_RECORD + 5
"""Bytes of the largest record that is read again: a frame with its head."""


@cache
def release() -> str:
    """Return the release of Ratchet that runs."""
    return importlib.metadata.version("ratchet")


@dataclass(frozen=True)
class Keeping:
    """What ingest needs to keep bytes of quarantined records."""

    settings: QuarantineSettings
    mask: Callable[[], Mask]
    """Returns the masking of one record."""
    seal: Callable[[bytes], bytes]
    """Encrypts the masked bytes of one record."""


@dataclass
class Written:
    """Quarantine rows of a batch, without the columns that are the same for all of its rows."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    kept: dict[str, Bytes] = field(default_factory=dict)
    cut: list[Cut] = field(default_factory=list)


def entry_id(batch: RawBatch, position: str, place: Place | None) -> str:
    """Return the identity of a bad part.

    A file that grows is a new batch each time, so a record of a file is identified by its place and its bytes.
    """
    if batch.sender is None and place is not None and place.digest is not None:
        return digest([batch.source, batch.origin, place.offset, place.digest, parts_of(position)[1]])[:16]
    return digest([batch.source, batch.digest, position])[:16]


def origin_of(batch: RawBatch) -> str:
    """Return where the records of a batch come from, for people."""
    return batch.origin if batch.sender is None else f"received by {batch.sender.label}"


def write_entries(bad: Iterable[Bad], batch: RawBatch, limits: Limits, keeping: Keeping, hide: Hide) -> Written:
    """Return the rows of the bad parts of a batch, and the bytes to keep. Reads the bad records again from the batch."""
    made = Written()
    ordered = sorted(bad, key=lambda one: -1 if one.place is None else one.place.offset)
    reader = _Reader(batch)
    try:
        for one in ordered:
            data = reader.read(one.place)
            if data is not None and one.place is not None and one.place.digest is None:
                one = replace(one, place=one.place._replace(digest=hashlib.sha256(data).hexdigest()))
            _add(made, one, data, reader, batch, limits, keeping, hide)
    finally:
        reader.close()
    return made


def _add(
    made: Written, bad: Bad, data: bytes | None, reader: _Reader, batch: RawBatch, limits: Limits, keeping: Keeping, hide: Hide
) -> None:
    identity = entry_id(batch, bad.position, bad.place)
    part, user, content = None, None, None
    if data is not None and bad.count == 1:
        try:
            part = part_of(reader.record(data), parts_of(bad.position)[1])
        except Rejected:
            content = _unreadable(data, keeping, hide, bad.place)
        else:
            user = user_of(part, batch.format, limits, hide)
            content = _readable(part, batch.format, limits, keeping, hide)
    if content is not None and keeping.settings.keep_days:
        most = keeping.settings.max_bytes
        expires = limits.now + int(keeping.settings.keep_days * DAY_US)
        clear, masked = content
        whole = max(len(clear), len(masked)) <= most  # an erasure finds a sealed record by the pseudonyms in clear
        made.kept[identity] = Bytes(clear[:most], not whole, user, expires, keeping.seal(masked) if whole else None)
    place = bad.place or Place(0, 0)
    made.rows.append(
        {
            "position": bad.position,
            "reason": bad.reason,
            "detail": bad.detail,
            "id": identity,
            "kind": bad.kind,
            "origin": origin_of(batch),
            "format": batch.format,
            "offset": place.offset if bad.place else None,
            "length": place.length if bad.place else None,
            "digest": place.digest,
            "cut": place.cut,
            "parts": bad.count,
            "user": user,
            "expires": made.kept[identity].expires if identity in made.kept else None,
            "state": None,
            "release": release(),
        }
    )
    if place.cut and batch.sender is None:
        made.cut.append(Cut(identity, place.offset, place.length, place.digest, bad.position, bad.reason))


def _readable(part: Any, form: str, limits: Limits, keeping: Keeping, hide: Hide) -> tuple[bytes, bytes] | None:
    """Return what of a part is stored in clear, and the masked part.

    None if its consent does not allow to keep it, or if it is too large or cannot be masked.
    """
    try:
        if not is_kept(part, form, limits) or not _fits(part, keeping.settings.max_bytes * _MOST_TIMES):
            return None
        masked = masked_part(part, limits, hide, keeping.mask())
        return dump(shown(masked)).encode(), dump(masked).encode()
    except Rejected:
        return None


def _fits(value: Any, most: int) -> bool:
    """Return whether the texts of a JSON value have at most `most` characters together."""
    left, waiting = most, [value]
    while waiting and left >= 0:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += one.values()
            left -= sum(map(len, one))
        elif isinstance(one, list):
            waiting += one
        else:
            left -= len(one) if isinstance(one, str) else 1
    return left >= 0


def _unreadable(data: bytes, keeping: Keeping, hide: Hide, place: Place | None) -> tuple[bytes, bytes] | None:
    if not keeping.settings.keep_unreadable or place is None or len(data) > keeping.settings.max_bytes * _MOST_TIMES:
        return None
    try:
        masked = masked_text(data, hide, keeping.mask())
        return shown_text(masked).encode(), masked.encode()
    except Exception:  # nothing is kept that was not searched
        return None


class _Reader:
    """Reads single records of a batch again, in the order of their offsets."""

    def __init__(self, batch: RawBatch) -> None:
        self._batch = batch
        self._stream: BinaryIO | None = None
        self._last: tuple[Place, bytes | None] | None = None
        self._parsed: tuple[bytes, Any] | None = None

    def read(self, place: Place | None) -> bytes | None:
        """Return the bytes of a record; None if they are too many, cannot be read, or are no longer those that were decoded."""
        if place is None or not 0 < place.length <= _LONGEST or (place.digest is None and place.cut):
            return None
        if self._last is None or self._last[0] != place:
            self._last = place, self._bytes(place)
        return self._last[1]

    def record(self, data: bytes) -> Any:
        """Return the record in these bytes. Many bad parts may be in one record, which is parsed once. Raises Rejected."""
        if self._parsed is None or self._parsed[0] is not data:
            self._parsed = data, record_of(self._batch.format, data)
        return self._parsed[1]

    def _bytes(self, place: Place) -> bytes | None:
        try:
            self._stream = self._stream or self._batch.open()
            self._stream.seek(place.offset - self._batch.offset, io.SEEK_SET)
            data = self._stream.read(place.length)
        except (OSError, EOFError, ValueError, zlib.error):  # a file that has changed; its place is recorded anyway
            return None
        same = len(data) == place.length and place.digest in (None, hashlib.sha256(data).hexdigest())
        return data if same else None

    def close(self) -> None:
        """Close the stream."""
        if self._stream is not None:
            self._stream.close()


def ended_cuts(cut: Iterable[Cut], decoded: Decoded, batch: RawBatch) -> list[tuple[Cut, str, str]]:
    """Return (cut record, state, detail) of those that this batch, a newer version of their file, contains with more bytes.

    The state is `resolved` if the whole record was read, or `replaced` if it is an entry of its own.
    """
    waiting = [one for one in cut if one.offset >= batch.offset]
    if not waiting:
        return []
    bad = {one.place.offset for one in decoded.bad if one.place is not None}
    found = []
    try:
        with batch.open() as stream:
            for one in waiting:
                stream.seek(one.offset - batch.offset, io.SEEK_SET)
                data = stream.read(one.length + 1)
                same = one.digest in (None, hashlib.sha256(data[: one.length]).hexdigest())
                if len(data) > one.length and same and one.offset in bad and data[one.length :] != b"\n":
                    found.append((one, "replaced", "more of the record has arrived, and is an entry of its own"))
                elif len(data) > one.length and same and one.offset not in bad:
                    found.append((one, "resolved", "the whole record has arrived in the file"))
    except (OSError, EOFError, ValueError, zlib.error):
        return found
    return found


def ended_row(cut: Cut, state: str, detail: str, batch: RawBatch) -> dict[str, Any]:
    """Return the row that ends an entry whose record was cut."""
    return {
        "position": cut.position,
        "reason": cut.reason,
        "detail": detail,
        "id": cut.id,
        "kind": "traces",
        "origin": origin_of(batch),
        "format": batch.format,
        "offset": cut.offset,
        "length": cut.length,
        "digest": cut.digest,
        "cut": True,
        "parts": 1,
        "user": None,
        "expires": None,
        "state": state,
        "release": release(),
    }
