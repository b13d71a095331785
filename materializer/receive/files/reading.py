"""Reads a file as records: chooses the reader by the content of the file and the kind of its source."""

from __future__ import annotations

import gzip
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, cast

from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.decode import DAMAGE_FRAME, DAMAGE_LINE
from ratchet.materializer.dialects.values import parse_json
from ratchet.materializer.receive.files.content import Content, read_head, recognise
from ratchet.materializer.receive.files.storage import StoredFile
from ratchet.materializer.receive.files.streams import (
    collector_frames,
    dumped,
    frames_hold_json,
    json_lines,
    line_of,
    stream_of,
    table_rows,
)

MAX_LINE = 64 << 20
"""Longest line that is converted, in bytes. A longer one is passed on, so that the decoder quarantines it."""

Convert = Callable[[dict[str, Any]], dict[str, Any]]
"""Turns a record of another tool into one that a dialect of Ratchet reads. Never raises."""


def content_of(file: StoredFile) -> Content:
    """Return what a file contains. Raises OSError if it cannot be read."""
    with file.open() as stream:
        return recognise(read_head(cast(Any, stream)), file.name)


def seekable(stream: BinaryIO) -> BinaryIO:
    """Return the stream, or a temporary copy if it cannot be read at any place. A Parquet file has its description at the end."""
    if stream.seekable():
        return stream
    copy = tempfile.TemporaryFile()  # noqa: SIM115 -- the caller closes it
    with stream:
        shutil.copyfileobj(stream, copy, 1 << 20)
    copy.seek(0)
    return cast(BinaryIO, copy)


def rows_of(file: StoredFile, content: Content) -> Iterator[dict[str, Any] | bytes]:
    """Yield the records of a file of JSON, CSV or Parquet. A line that is no JSON object is yielded as it is.

    Raises EOFError where a damaged file ends, and OSError if it cannot be read.
    """
    if content.form in ("parquet", "csv"):
        with file.open() as raw, seekable(raw) if content.form == "parquet" else raw as stream:
            yield from table_rows(stream, content)
        return
    with file.open() as raw, json_lines(raw, content) as stream:
        while line := stream.readline(MAX_LINE + 1):
            if not line.strip():
                continue
            try:
                value = parse_json(line.removeprefix(b"\xef\xbb\xbf")) if len(line) <= MAX_LINE else None
            except Rejected:
                value = None
            yield value if isinstance(value, dict) else line


def converted(rows: Iterable[dict[str, Any] | bytes], convert: Convert) -> Iterator[bytes]:
    """Yield each record, converted, as a line of JSON. Lines that are no records are passed on for the decoder to reject."""
    for row in rows:
        if isinstance(row, dict):
            yield line_of(convert(row))
        else:
            yield row if row.endswith(b"\n") else row + b"\n"


def open_records(file: StoredFile, content: Content, convert: Convert | None = None) -> BinaryIO:
    """Open a file as a stream of one JSON record per line, converted if `convert` is given."""
    if convert is not None:
        return stream_of(converted(rows_of(file, content), convert))
    if content.form in ("parquet", "csv"):
        return stream_of(dumped(row for row in rows_of(file, content) if isinstance(row, dict)))
    return json_lines(file.open(), content)


def open_requests(file: StoredFile, content: Content) -> BinaryIO:
    """Open a file of OTLP requests as a stream of lines of JSON, or of framed protobuf requests (`requests_format`)."""
    if content.form in ("frames", "message"):
        stream = file.open()
        return stream_of(collector_frames(stream, content), stream.close)
    return json_lines(file.open(), content)


def requests_format(file: StoredFile, content: Content) -> str:
    """Return the format of the batch that `open_requests` opens."""
    if content.form == "message":
        return "otlp-proto"
    return "otlp-proto" if content.form == "frames" and not frames_hold_json(file.open(), content) else "otlp-json"


def joined(openers: Iterable[Callable[[], BinaryIO]], lines: bool) -> BinaryIO:
    """Return one stream of several files. With `lines`, a missing end of line at the end of a file is added.

    A damaged file does not affect the others. A line or frame reports it to the decoder.
    """
    return stream_of(_joined(openers, lines))


def _joined(openers: Iterable[Callable[[], BinaryIO]], lines: bool) -> Iterator[bytes]:
    for opener in openers:
        with opener() as stream:
            last = b"\n"
            try:
                while piece := stream.read1(1 << 20):  # type: ignore[attr-defined]
                    yield piece
                    last = piece
                damage = b""
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                damage = str(error).encode()
            if lines and not last.endswith(b"\n"):
                yield b"\n"
            if damage:
                yield DAMAGE_LINE + damage + b"\n" if lines else DAMAGE_FRAME + struct.pack(">I", len(damage)) + damage
