"""Divides a large file of lines into chunks, so that each is a batch: decoded, committed and recorded on its own.

Memory then depends on the size of a chunk and not on that of the file, and after a crash the chunks that the lake has are not read again. A
chunk is identified by its bytes, so those of a file that has grown stay the same batches.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import BinaryIO, NamedTuple

from ratchet.contracts.ids import Digest
from ratchet.materializer.receive.files.streams import stream_of

CHUNK = 32 << 20
"""Bytes of lines after which a chunk ends, at the end of a line."""
LINES = 50_000
"""Lines after which a chunk ends. The rows of tiny records need many times the memory of their lines."""
_KEPT = 2 * CHUNK
"""Largest part, in bytes, that is kept in memory. One is larger if a line is."""
_BLOCK = 1 << 20


class Chunk(NamedTuple):
    """A part of a stream of lines."""

    offset: int
    """Its first byte."""
    length: int | None
    """Its number of bytes; None for the last one, which ends with the stream."""
    first: int
    """Number of its first line, from 1."""
    digest: Digest
    """SHA-256 of its bytes."""
    open: Callable[[], BinaryIO]


def chunks_of(open_whole: Callable[[], BinaryIO], size: int = CHUNK, most: int = LINES) -> Iterator[Chunk]:
    """Read a stream of lines once, and yield its chunks of `size` bytes or more, or of `most` lines. An empty stream is one chunk.

    Chunks that are opened and read in their order read the stream once more in all.
    """
    parts = _Parts(open_whole)
    begin, at, first, lines, ended, digest = 0, 0, 1, 0, False, hashlib.sha256()

    def chunk(length: int | None) -> Chunk:
        return Chunk(begin, length, first, digest.hexdigest(), partial(parts.open, begin, length))

    with open_whole() as stream:
        for block in _blocks(stream):
            while block:
                if ended and (at - begin >= size or lines - first + 1 >= most):
                    yield chunk(at - begin)
                    begin, first, digest = at, lines + 1, hashlib.sha256()
                found = block.count(b"\n")
                cut, wanted = _end_of_chunk(block, size - (at - begin)), most - (lines - first + 1)
                if found >= wanted:
                    cut = min(cut, _end_of_lines(block, wanted))
                piece, block = block[:cut], block[cut:]
                digest.update(piece)
                lines += found if not block else piece.count(b"\n")
                at, ended = at + len(piece), piece.endswith(b"\n")
    yield chunk(None)


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    try:
        while block := stream.read1(_BLOCK):  # type: ignore[attr-defined]
            yield block
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return  # the last chunk reaches the damage when it is decoded


def _end_of_chunk(block: bytes, wanted: int) -> int:
    """Return after how many bytes of `block` the chunk ends that still wants `wanted` bytes; all of them if it does not end there."""
    if wanted > len(block):
        return len(block)
    return block.find(b"\n", max(wanted - 1, 0)) + 1 or len(block)


def _end_of_lines(block: bytes, wanted: int) -> int:
    """Return after how many bytes of `block`, which has so many lines, its line with the number `wanted` ends."""
    at = -1
    for _ in range(wanted):
        at = block.find(b"\n", at + 1)
    return at + 1


class _Parts:
    """Opens parts of a stream. A part that begins where the last one was read to its end goes on with the same stream.

    The bytes of the part that was opened last are kept, because the quarantine opens it again for its bad records.
    """

    def __init__(self, open_whole: Callable[[], BinaryIO]) -> None:
        self._open_whole = open_whole
        self._left: tuple[int, BinaryIO] | None = None
        self._kept: tuple[int, bytes] | None = None

    def open(self, offset: int, length: int | None) -> BinaryIO:
        """Open a part as a stream that can be read forwards."""
        if self._kept is not None and self._kept[0] == offset:
            return io.BytesIO(self._kept[1])
        self._kept = None
        stream = self._at(offset)
        if length is None or length > _KEPT:
            return self._streamed(stream, offset, length)
        data = stream.read(length)
        self._leave(offset + len(data), stream)
        self._kept = offset, data
        return io.BytesIO(data)

    def _at(self, offset: int) -> BinaryIO:
        left, self._left = self._left, None
        if left is not None and left[0] == offset:
            return left[1]
        if left is not None:
            left[1].close()
        stream = self._open_whole()
        stream.seek(offset)
        return stream

    def _streamed(self, stream: BinaryIO, offset: int, length: int | None) -> BinaryIO:
        """Return a part that is too large to be kept, or whose length is not known."""
        taken = 0

        def pieces() -> Iterator[bytes]:
            nonlocal taken
            while length is None or taken < length:
                piece: bytes = stream.read1(_BLOCK if length is None else min(_BLOCK, length - taken))  # type: ignore[attr-defined]
                if not piece:
                    return
                taken += len(piece)
                yield piece

        def close() -> None:
            if taken == length:
                self._leave(offset + taken, stream)
            else:
                stream.close()

        return stream_of(pieces(), close)

    def _leave(self, at: int, stream: BinaryIO) -> None:
        """Keep the stream for the part that begins at `at`."""
        if self._left is not None:
            self._left[1].close()
        self._left = at, stream
