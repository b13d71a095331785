"""Turns the bytes of a file into a stream of lines of JSON or of framed protobuf requests, with a bounded use of memory.

Frames (`otlp-proto`) are those of `dialects.decode`. A damaged or suspicious stream raises EOFError at the place where it ends; the
decoder then quarantines the rest of the batch as `damaged_file`.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import sqlite3
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, BinaryIO, cast

import orjson

from ratchet.contracts.errors import RatchetError, Rejected
from ratchet.materializer.dialects.values import parse_json
from ratchet.materializer.lake.arrow import pa, pq
from ratchet.materializer.receive.files.array_elements import array_elements
from ratchet.materializer.receive.files.content import MAX_MESSAGE, Compression, Content, kind_of_message

MAX_WHOLE = 32 << 20
"""Largest file that is read as one JSON value, in decompressed bytes. A larger one is read line by line. An array has no limit."""
MAX_RATIO = 300
"""How many times larger than its compressed bytes a stream may become. Texts become about ten times larger; a file that was made to fill
the memory a thousand times."""
_FREE = 64 << 20
"""Decompressed bytes from which on the ratio counts."""
ROWS = 256
"""Rows of a table that are in memory at a time."""
_TOO_DEEP = b"[" * 2000 + b"]" * 2000 + b"\n"
"""Stands for a record that nests too deeply to be written. The decoder cannot parse it either, and says why."""
_NO_JSON = b'"this record cannot be written as JSON"\n'
"""Stands for a record that cannot be written for another reason. A text is no record, so that the dialect rejects it as `wrong_type`."""
_TOLD = (OSError, RatchetError, sqlite3.Error, MemoryError)
"""Errors that say nothing about the content, such as those of a network: the batch must be read again later."""


class _Counted(io.RawIOBase):
    """Counts the bytes that are read from a stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.count = stream, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        self.count += len(data)
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


class _Pieces(io.RawIOBase):
    """A stream of the bytes that an iterator yields.

    An unexpected error of the iterator becomes EOFError, so that content costs its own file and does not stop the source.
    """

    def __init__(self, pieces: Iterator[bytes], close: Callable[[], None]) -> None:
        self._pieces, self._close, self._rest = pieces, close, memoryview(b"")
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Skip to a later place. Raises OSError for an earlier one, because the pieces are made only once."""
        target = offset if whence == io.SEEK_SET else self._at + offset if whence == io.SEEK_CUR else -1
        if target < self._at:
            raise io.UnsupportedOperation("the stream can only be read forwards")
        while self._at < target and self._fill():
            self._take(target - self._at)
        return self._at

    def readinto(self, buffer: Any) -> int:
        if not self._fill():
            return 0
        taken = self._take(len(buffer))
        buffer[: len(taken)] = taken
        return len(taken)

    def _fill(self) -> bool:
        while not self._rest:
            try:
                piece = next(self._pieces, None)
            except (EOFError, *_TOLD):
                raise
            except Exception as error:
                raise EOFError(f"the rest of the file cannot be read: {type(error).__name__}") from error  # a message may quote a user
            if piece is None:
                return False
            self._rest = memoryview(piece)
        return True

    def _take(self, size: int) -> memoryview:
        taken, self._rest = self._rest[:size], self._rest[size:]
        self._at += len(taken)
        return taken

    def close(self) -> None:
        if not self.closed:
            self._close()
        super().close()


def stream_of(pieces: Iterable[bytes], close: Callable[[], None] = lambda: None) -> BinaryIO:
    """Return a stream of `pieces`. `close` is called when it is closed."""
    return cast(BinaryIO, io.BufferedReader(_Pieces(iter(pieces), close), 1 << 20))


def decompressed(stream: BinaryIO, compression: Compression) -> BinaryIO:
    """Return the decompressed bytes of a stream, which must not become suspiciously large."""
    return stream_of(_decompressed(stream, compression), stream.close) if compression else stream


def _decompressed(stream: BinaryIO, compression: Compression) -> Iterator[bytes]:
    counted = _Counted(stream)
    source = io.BufferedReader(counted, 1 << 16)
    opened: Any = gzip.GzipFile(fileobj=source) if compression == "gzip" else None
    opened = opened or pa.CompressedInputStream(pa.PythonFile(source, "r"), "zstd")
    made = 0
    while True:
        try:
            piece = opened.read1(1 << 18) if compression == "gzip" else opened.read(1 << 16)  # nothing before a damage is lost
        except (EOFError, zlib.error, gzip.BadGzipFile, pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise EOFError(f"the {compression} stream is damaged") from error
        if not piece:
            return
        made += len(piece)
        if made > max(_FREE, MAX_RATIO * counted.count):
            raise EOFError(f"the stream becomes more than {MAX_RATIO} times larger when it is decompressed")
        yield bytes(piece)


def json_lines(stream: BinaryIO, content: Content) -> BinaryIO:
    """Return the records of a JSON file, one per line. An array has a record per element; any other value is one record."""
    plain = decompressed(stream, content.compression)
    if content.form != "json":
        return plain
    try:
        data = plain.read(MAX_WHOLE + 1)
    except EOFError:
        return stream_of(_damaged(), plain.close)
    if data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"[":
        return stream_of(array_elements(stream_of(_and_then(data, plain), plain.close)), plain.close)
    if len(data) > MAX_WHOLE:
        return stream_of(_and_then(data, plain), plain.close)
    try:
        parse_json(data.removeprefix(b"\xef\xbb\xbf"))
    except Rejected:
        return stream_of([data], plain.close)  # JSON Lines or malformed: the decoder reports errors per line
    return stream_of([data.replace(b"\n", b" ").replace(b"\r", b" ")], plain.close)  # JSON strings contain no unescaped line breaks


def _damaged() -> Iterator[bytes]:
    raise EOFError("the compressed stream is damaged")
    yield b""


def _and_then(data: bytes, stream: BinaryIO) -> Iterator[bytes]:
    yield data
    while piece := stream.read(1 << 20):
        yield piece


def collector_frames(stream: BinaryIO, content: Content) -> Iterator[bytes]:
    """Yield the requests of a file of the collector as framed protobuf, or as lines if they are JSON inside."""
    plain = decompressed(stream, content.compression)
    if content.form == "message":
        body = plain.read(MAX_MESSAGE + 1)
        yield _framed(body)
        return
    while head := plain.read(4):
        size = struct.unpack(">I", head)[0] if len(head) == 4 else -1
        body = plain.read(size) if 0 <= size <= MAX_MESSAGE else b""
        if len(body) != size:
            raise EOFError("a message of the file is cut or too large")
        yield _framed(_message(body, content.inner))


def _message(body: bytes, inner: Compression) -> bytes:
    if not inner:
        return body
    with decompressed(io.BytesIO(body), inner) as stream:
        found = stream.read(MAX_MESSAGE + 1)
    if len(found) > MAX_MESSAGE:
        raise EOFError("a message of the file is too large")
    return found


def _framed(body: bytes) -> bytes:
    if body[:1] == b"{":
        return body.replace(b"\n", b" ") + b"\n"
    mark = b"L" if kind_of_message(body) == "logs" else b"T"
    return mark + struct.pack(">I", len(body)) + body


def frames_hold_json(stream: BinaryIO, content: Content) -> bool:
    """Return whether the first message of a file with frames is JSON. Reads it, and closes the stream."""
    with stream:
        try:
            return next(collector_frames(stream, content), b"")[:1] == b"{"
        except EOFError:
            return False


def table_rows(stream: BinaryIO, content: Content) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet or CSV file as JSON objects. Raises EOFError if it is damaged."""
    return _parquet_rows(stream) if content.form == "parquet" else _csv_rows(decompressed(stream, content.compression))


def _parquet_rows(stream: BinaryIO) -> Iterator[dict[str, Any]]:
    try:
        file = pq.ParquetFile(stream)
        for batch in file.iter_batches(batch_size=ROWS):
            for row in batch.to_pylist():
                yield {key: _jsonable(value) for key, value in row.items()}
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise EOFError(f"the Parquet file is damaged: {str(error)[:120]}") from error


def _csv_rows(stream: BinaryIO) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(min(sys.maxsize, MAX_MESSAGE))
    try:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        head = text.readline(MAX_MESSAGE)
        delimiter = max(",;\t|", key=head.count)  # spreadsheets of some countries write semicolons
        for row in csv.DictReader(itertools.chain([head], text), delimiter=delimiter):
            yield {key: value if value != "" else None for key, value in row.items() if isinstance(key, str)}
    except (csv.Error, UnicodeDecodeError) as error:
        raise EOFError(f"the CSV file is damaged: {str(error)[:120]}") from error


def _jsonable(value: Any) -> Any:
    """Return a value of a table as JSON: times as ISO 8601, decimals as numbers, maps as objects."""
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):  # a map
            return {str(key): _jsonable(item) for key, item in value}
        return [_jsonable(item) for item in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return float(value)
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def dumped(rows: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """Yield rows as lines of JSON. A value that JSON does not have becomes its text."""
    for row in rows:
        yield line_of(row)


def line_of(record: Any) -> bytes:
    """Return a record as a line of JSON. Never raises: a record that cannot be written becomes a line that the decoder quarantines.

    A value that JSON does not have becomes its text. JSON that can be read may nest too deeply to be written.
    """
    try:
        return orjson.dumps(record, default=str) + b"\n"
    except (TypeError, RecursionError) as error:  # the errors of orjson are TypeErrors
        return _TOO_DEEP if "recursion" in str(error).lower() else _NO_JSON
