"""Recognises what a file contains by its first bytes. The name decides only where the bytes leave it open."""

from __future__ import annotations

import contextlib
import io
import re
import struct
import zlib
from dataclasses import dataclass
from typing import Literal, TypeAlias

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.values import parse_json
from ratchet.materializer.lake.arrow import pa

HEAD = 1 << 16
"""Bytes of a file by which its content is recognised."""
MAX_MESSAGE = 64 << 20
"""Largest message of a collector's file, in bytes."""

Compression: TypeAlias = Literal["", "gzip", "zstd"]
Form: TypeAlias = Literal["lines", "json", "csv", "parquet", "frames", "message", "unknown"]
"""lines: JSON Lines. json: one JSON value, or an array of records. frames: messages with their length in front, as the collector's file
exporter writes them for protobuf and with compression. message: one protobuf request, as the collector's S3 exporter writes it."""

_OTHERS = (
    (b"PK\x03\x04", "a zip archive"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"\xff\x06\x00\x00sNaPpY", "snappy"),
    (b"Obj\x01", "Avro"),
    (b"ORC", "ORC"),
    (b"ARROW1", "an Arrow file"),
    (b"SQLite format 3\x00", "a SQLite database"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "a picture"),
)
_LINE_ENDINGS = re.compile(r"\.(jsonl|ndjson)(\.\d+)?(\.(gz|zst))?$|\.jsonl\.", re.IGNORECASE)
_JSON_ENDINGS = re.compile(r"\.json(\.\d+)?(\.(gz|zst))?$", re.IGNORECASE)
_CSV_ENDINGS = re.compile(r"\.csv(\.(gz|zst))?$", re.IGNORECASE)
_SPACE = b" \t\r\n"


@dataclass(frozen=True)
class Content:
    """What a file contains."""

    form: Form
    compression: Compression = ""
    inner: Compression = ""
    """Compression of the single messages of `frames`."""
    why: str = ""
    """How it was recognised, or why not, for messages."""


def recognise(head: bytes, name: str) -> Content:
    """Return the content of a file that begins with `head` (up to HEAD bytes) and is called `name`."""
    if head.startswith(b"PAR1"):
        return Content("parquet", why="begins with the mark of Parquet")
    compression: Compression = "gzip" if head.startswith(b"\x1f\x8b") else "zstd" if head.startswith(b"\x28\xb5\x2f\xfd") else ""
    plain = _decompressed(head, compression)
    if plain is None:
        by_name = _by_name(name)
        return Content(by_name, compression, why=f"damaged {compression}") if by_name else Content("unknown", why=f"damaged {compression}")
    found = _plain(plain, name)
    return Content(found.form, compression, found.inner, found.why + (f", compressed with {compression}" if compression else ""))


def _by_name(name: str) -> Form | None:
    if _CSV_ENDINGS.search(name):
        return "csv"
    if _JSON_ENDINGS.search(name):
        return "json"
    return "lines" if _LINE_ENDINGS.search(name) else None


def _plain(head: bytes, name: str) -> Content:
    named = _by_name(name)
    other = next((what for mark, what in _OTHERS if head.startswith(mark)), None)
    if other:
        return Content("unknown", why=other)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip(_SPACE)
    if text[:1] in (b"{", b"[") and named != "csv":
        form = named if named == "lines" else "lines" if _first_line_is_whole(text) else "json"
        return Content(form, why="begins with a JSON value")
    inner = _frames(head)
    if inner is not None:
        return Content("frames", inner=inner, why="has messages with their length in front")
    if head[:1] == b"\x0a" and _message(head) is not None:
        return Content("message", why="begins with a protobuf message")
    if named == "csv" and b"\x00" not in head:
        return Content("csv", why="has the name of a CSV file")
    if named:  # broken lines are quarantined one by one
        return Content(named, why="has the name of a JSON file")
    return Content("unknown", why="empty" if not head else "unknown content")


def _first_line_is_whole(text: bytes) -> bool:
    """Return whether the first line is a complete JSON object, or is so long that it does not end within the head."""
    line, end, _ = text.partition(b"\n")
    if text[:1] == b"[":
        return False
    if not end and len(text) >= HEAD // 2:
        return True
    try:
        return isinstance(parse_json(line), dict)
    except Rejected:
        return False


def _decompressed(head: bytes, compression: Compression) -> bytes | None:
    """Return the first decompressed bytes; None if there are none, because the stream is damaged."""
    if not compression:
        return head
    try:
        if compression == "gzip":
            return zlib.decompressobj(31).decompress(head, HEAD)
        found, stream = b"", pa.CompressedInputStream(pa.BufferReader(head), "zstd")
        while len(found) < HEAD:
            piece = stream.read(1024)
            if not piece:
                break
            found += piece
    except (zlib.error, OSError):
        return (found or None) if compression == "zstd" else None
    return found


def _frames(head: bytes) -> Compression | None:
    """Return the compression of the messages, if the head begins with the length of a message and with the message."""
    if len(head) < 8:
        return None
    size = struct.unpack(">I", head[:4])[0]
    if not 0 < size <= MAX_MESSAGE:
        return None
    body = head[4 : 4 + size]
    if body.startswith(b"\x28\xb5\x2f\xfd"):
        return "zstd"
    if body[:1] in (b"{", b"\x0a") and (len(body) < size or body[:1] == b"{" or kind_of_message(body)):
        return ""
    return None


def _message(head: bytes) -> str | None:
    if len(head) < HEAD // 2:
        return kind_of_message(head)
    return "traces" if re.match(rb"\x0a[\x80-\xff]{0,4}[\x00-\x7f]\x0a", head) else None  # the whole message is checked when it is read


def kind_of_message(body: bytes) -> Literal["traces", "logs"] | None:
    """Return which request a protobuf message is; None for neither.

    Requests for traces and logs have the same outer form. A span begins with two ids of fixed lengths, a log record has a time there.
    """
    with contextlib.suppress(DecodeError, ValueError):
        spans = [s for r in ExportTraceServiceRequest.FromString(body).resource_spans for scope in r.scope_spans for s in scope.spans]
        if spans and all(len(span.trace_id) == 16 and len(span.span_id) == 8 for span in spans):
            return "traces"
    with contextlib.suppress(DecodeError, ValueError):
        logs = [s for r in ExportLogsServiceRequest.FromString(body).resource_logs for scope in r.scope_logs for s in scope.log_records]
        if logs and all(record.time_unix_nano or record.observed_time_unix_nano for record in logs):
            return "logs"
    return None


def read_head(stream: io.BufferedIOBase) -> bytes:
    """Return the first HEAD bytes of a stream, or all if there are fewer."""
    found = b""
    while len(found) < HEAD:
        piece = stream.read(HEAD - len(found))
        if not piece:
            break
        found += piece
    return found
