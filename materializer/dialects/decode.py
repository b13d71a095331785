"""Reads a batch, which has lines of JSON or framed protobuf messages, and passes each record to its dialect.

The dialect of a record is the installed dialect that recognises it, otherwise the one that the format of the batch names. A batch is
read once. An unreadable line or message does not affect the others. A damaged frame or gzip stream ends the batch, because
the position of the next record is unknown.

Frames (`otlp-proto`): one byte `T` (trace request) or `L` (log request), four bytes length (big-endian), the protobuf message.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from contracts.data.datasets import RawBatch
from contracts.data.decoding import Decoded, Kind, Limits
from contracts.errors import ConfigError, Rejected, Retryable
from contracts.ports import Dialect
from materializer.dialects.admission import Admission
from materializer.dialects.jsonl import JsonlDialect
from materializer.dialects.otlp import OtlpDialect
from materializer.dialects.record_dialect import decode_with
from materializer.dialects.values import parse_json

MAX_RECORD = 64 << 20
"""Maximum size of one line or frame, in bytes."""

_BOM = b"\xef\xbb\xbf"
REQUESTS: dict[bytes, tuple[Kind, type[Message]]] = {
    b"T": ("traces", ExportTraceServiceRequest),
    b"L": ("feedback", ExportLogsServiceRequest),
}
"""Frame mark -> the record kind under which a bad frame is counted, and the type of its message."""


BUILT_IN: Mapping[str, Dialect] = {dialect.name: dialect for dialect in (OtlpDialect(), JsonlDialect())}
"""The dialects of this package by name."""

_NAMED = {"otlp-json": "otlp", "otlp-proto": "otlp"}
"""Format of a batch -> its dialect, where the names differ."""


def decode(
    batch: RawBatch,
    limits: Limits,
    dialects: Mapping[str, Dialect] = BUILT_IN,
    admission: Admission | None = None,
) -> Decoded:
    """Decode all records of `batch`. `dialects` are the installed dialects by name, `admission` the rules for the decoded rows.

    Raises ConfigError for an unknown format and Retryable if the batch cannot be read. Bad content does not raise; it is quarantined.
    """
    named = _NAMED.get(batch.format, batch.format)
    if named not in dialects:
        known = sorted({*_NAMED, *dialects} - set(_NAMED.values()))
        raise ConfigError(f"batch {batch.origin} has the unknown format {batch.format!r}; known: {', '.join(known)}")
    into, rules = Decoded(), admission or Admission(batch.sender)
    others = [dialect for name, dialect in dialects.items() if name != named and name not in BUILT_IN]
    read = _otlp_frames if batch.format == "otlp-proto" else _json_lines
    try:
        with batch.open() as stream:
            for position, record in read(stream, into):
                decode_with(dialects[named], others, record, position, limits, rules, into)
    except OSError as error:
        raise Retryable(f"batch {batch.origin} cannot be read: {error}; restore the file, then ingest again") from error
    return into


def _json_lines(stream: BinaryIO, into: Decoded) -> Iterator[tuple[str, Any]]:
    for position, line in _lines(stream, into):
        try:
            yield position, parse_json(line)
        except Rejected as error:
            into.reject("traces", position, error)


def _lines(stream: BinaryIO, into: Decoded) -> Iterator[tuple[str, bytes]]:
    number = 0
    while True:
        number += 1
        position = f"line {number}"
        try:
            line = stream.readline(MAX_RECORD + 1)
            while len(line) > MAX_RECORD and not line.endswith(b"\n"):
                into.reject("traces", position, Rejected("too_large", f"a line is longer than {MAX_RECORD} bytes"))
                line = _rest_of_line(stream)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            into.reject("traces", position, Rejected("damaged_file", str(error)))
            return
        if not line:
            return
        if number == 1:
            line = line.removeprefix(_BOM)
        if line.strip():
            yield position, line


def _rest_of_line(stream: BinaryIO) -> bytes:
    """Skip the rest of a line that is too long. Returns an empty line in its place, or nothing at the end of the stream."""
    while piece := stream.readline(MAX_RECORD):
        if piece.endswith(b"\n"):
            return b"\n"
    return b""


def _otlp_frames(stream: BinaryIO, into: Decoded) -> Iterator[tuple[str, Any]]:
    number = 0
    while head := stream.read(5):
        number += 1
        position = f"frame {number}"
        size = struct.unpack(">I", head[1:])[0] if len(head) == 5 else -1
        body = stream.read(size) if 0 <= size <= MAX_RECORD and head[:1] in REQUESTS else b""
        if len(head) < 5 or head[:1] not in REQUESTS or len(body) != size:
            into.reject("traces", position, Rejected("damaged_file", "a frame is truncated, is too large or has an unknown mark"))
            return  # the start of the next frame is unknown
        kind, message = REQUESTS[head[:1]]
        try:
            yield position, as_json(message, body)
        except Rejected as error:
            into.reject(kind, position, error)


def as_json(message: type[Message], body: bytes) -> dict[str, Any]:
    """Convert a protobuf request to its JSON form, with ids in base64. Raises Rejected `malformed_protobuf`."""
    try:
        parsed = message.FromString(body)
        return dict(MessageToDict(parsed, use_integers_for_enums=True))
    except (DecodeError, ValueError, RecursionError, UnicodeDecodeError) as error:
        raise Rejected("malformed_protobuf", str(error)) from None
