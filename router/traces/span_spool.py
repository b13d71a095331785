"""An append-only spool of spans on disk, so that a killed router loses no trace of an answer that its caller has received.

The spool is a folder of segments. A record in a segment is its length and its CRC-32, both as four bytes in network order, and then the
span as protobuf. A write reaches the kernel before `append` returns, so that it survives the death of the process. `syncs` writes
segments to the disk; a power failure loses the spans that were appended since.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ratchet.runtime.artifacts import sync

log = logging.getLogger("ratchet.router")
SPOOL_BYTES = 256 << 20
"""Maximum size of all segments. Further spans are dropped and counted."""
_SEGMENT_BYTES = 1 << 20
"""Size after which a segment is closed. The exporter reads whole segments."""
_HEAD = struct.Struct(">II")
_ENDING = ".spans"


class SpanSpool:
    """The spool in `folder`. One process at a time appends to it and reads it. `most` is its maximum size in bytes."""

    def __init__(self, folder: Path, most: int = SPOOL_BYTES) -> None:
        self._folder = folder
        self._most = most
        self._numbers = itertools.count()
        self._active: tuple[Path, int] | None = None
        self._active_bytes = 0
        self._unsynced: set[Path] = set()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._segments = {path: path.stat().st_size for path in sorted(folder.glob(f"*{_ENDING}"))}
        self.dropped: Counter[str] = Counter()
        """Reason -> number of spans that are lost: `full`, `disk`, `damaged`, or `rejected` by the receiver."""

    @property
    def size(self) -> int:
        """Size of the spool in bytes."""
        return sum(self._segments.values()) + self._active_bytes

    def drop(self, reason: str) -> None:
        """Count a lost span, and log the first one and every thousandth."""
        self.dropped[reason] += 1
        if self.dropped[reason] % 1000 == 1:
            log.error("%d traces are lost so far: %s", self.dropped[reason], reason)

    def append(self, span: bytes) -> None:
        """Store a span. If the spool is full or the disk fails, the span is dropped and counted."""
        record = _HEAD.pack(len(span), zlib.crc32(span)) + span
        if self.size + len(record) > self._most:
            self.drop("full")
            return
        try:
            self._write(record)
        except OSError as error:
            log.error("cannot write to %s: %s", self._folder, error.strerror)
            self.drop("disk")

    def _write(self, record: bytes) -> None:
        if self._active is None:
            path = self._folder / f"{time.time_ns():020d}-{os.getpid()}-{next(self._numbers):06d}{_ENDING}"
            self._active = path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
            self._active_bytes = 0
        path, handle = self._active
        try:
            written = os.write(handle, record)
            if written < len(record):
                raise OSError(28, "the record was written in part")
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, self._active_bytes)
            self._seal()  # if the truncation failed, too, the torn record is the last one of its segment
            raise
        self._active_bytes += len(record)
        self._unsynced.add(path)
        if self._active_bytes >= _SEGMENT_BYTES:
            self._seal()

    def _seal(self) -> None:
        """Close the active segment. What follows goes into a new one."""
        if self._active is not None:
            path, handle = self._active
            os.close(handle)
            if self._active_bytes:
                self._segments[path] = self._active_bytes
            self._active, self._active_bytes = None, 0

    def syncs(self) -> Sequence[Callable[[], None]]:
        """Return a function that writes what was appended since the last call to the disk; nothing if there is nothing to write."""
        paths, self._unsynced = self._unsynced, set()
        return (partial(_sync, paths),) if paths else ()

    def oldest(self) -> Path | None:
        """Return the oldest segment that has spans, and close it. None if the spool is empty."""
        if not self._segments and self._active_bytes:
            self._seal()
        return next(iter(self._segments), None)

    def read(self, segment: Path) -> list[bytes]:
        """Return the spans of a segment. A damaged record is skipped and counted, and so is a torn one at the end."""
        try:
            content = segment.read_bytes()
        except OSError as error:
            log.error("cannot read %s: %s", segment, error.strerror)
            self.drop("damaged")
            return []
        spans, at = [], 0
        while at < len(content):
            head = content[at : at + _HEAD.size]
            length, checksum = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0)
            span = content[at + _HEAD.size : at + _HEAD.size + length]
            if length == 0 or len(span) < length:
                self.drop("damaged")
                break
            if zlib.crc32(span) == checksum:
                spans.append(span)
            else:
                self.drop("damaged")
            at += _HEAD.size + length
        return spans

    def remove(self, segment: Path) -> None:
        """Delete a segment, whose spans the receiver has on its disk."""
        segment.unlink(missing_ok=True)
        self._segments.pop(segment, None)

    def close(self) -> None:
        """Close the active segment."""
        self._seal()


def _sync(segments: set[Path]) -> None:
    """Write segments and their folder entries to the disk. May run in a thread. An error of the disk is logged."""
    try:
        for path in segments:
            with contextlib.suppress(FileNotFoundError):  # sent and deleted in the meantime
                sync(path)
                sync(path.parent)
    except OSError as error:
        log.error("cannot sync the spool of traces: %s", error.strerror)
