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
from typing import Any, BinaryIO, NamedTuple, cast

from ratchet.contracts.ids import Digest

CHUNK = 32 << 20
"""Bytes of lines after which a chunk ends, at the end of a line."""
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


def chunks_of(open_whole: Callable[[], BinaryIO], size: int = CHUNK) -> Iterator[Chunk]:
    """Read a stream of lines once, and yield its chunks of `size` bytes or more. An empty stream is one chunk.

    Chunks that are opened and read in their order read the stream once more in all.
    """
    parts = _Parts(open_whole)
    begin, at, first, lines, ended, digest = 0, 0, 1, 0, False, hashlib.sha256()

    def chunk(length: int | None) -> Chunk:
        return Chunk(begin, length, first, digest.hexdigest(), partial(parts.open, begin, length))

    with open_whole() as stream:
        for block in _blocks(stream):
            while block:
                if at - begin >= size and ended:
                    yield chunk(at - begin)
                    begin, first, digest = at, lines + 1, hashlib.sha256()
                cut = _end_of_chunk(block, size - (at - begin))
                piece, block = block[:cut], block[cut:]
                digest.update(piece)
                lines += piece.count(b"\n")
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
            return cast(BinaryIO, io.BufferedReader(_Part(self, stream, offset, length), _BLOCK))
        data = stream.read(length)
        self.leave(offset + len(data), stream)
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

    def leave(self, at: int, stream: BinaryIO) -> None:
        """Keep the stream for the part that begins at `at`."""
        if self._left is not None:
            self._left[1].close()
        self._left = at, stream


class _Part(io.RawIOBase):
    def __init__(self, parts: _Parts, stream: BinaryIO, offset: int, length: int | None) -> None:
        self._parts, self._stream, self._offset, self._length = parts, stream, offset, length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Skip to a later place of the part. Raises OSError for an earlier one."""
        target = offset if whence == io.SEEK_SET else self._at + offset if whence == io.SEEK_CUR else -1
        if target < self._at:
            raise io.UnsupportedOperation("the part can only be read forwards")
        while self._at < target and self._take(min(target - self._at, _BLOCK)):
            pass
        return self._at

    def readinto(self, buffer: Any) -> int:
        taken = self._take(len(buffer))
        buffer[: len(taken)] = taken
        return len(taken)

    def _take(self, most: int) -> bytes:
        wanted = most if self._length is None else min(most, self._length - self._at)
        data: bytes = self._stream.read1(wanted) if wanted > 0 else b""  # type: ignore[attr-defined]
        self._at += len(data)
        return data

    def close(self) -> None:
        if not self.closed:
            if self._length is not None and self._at == self._length:
                self._parts.leave(self._offset + self._at, self._stream)
            else:
                self._stream.close()
        super().close()
