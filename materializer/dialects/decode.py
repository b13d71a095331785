"""Reads a batch, which has lines of JSON or framed protobuf messages, and passes each record to its dialect.

The dialect of a record is the installed dialect that recognises it, otherwise the one that the format of the batch names. A batch is
read once. An unreadable line or message does not affect the others. A damaged frame or gzip stream ends the batch, because
the position of the next record is unknown.

Frames (`otlp-proto`): one byte `T` (trace request) or `L` (log request), four bytes length (big-endian), the protobuf message.
"""

from __future__ import annotations

import gzip
import hashlib
import struct
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, BinaryIO

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ratchet.contracts.data.datasets import RawBatch
from ratchet.contracts.data.decoding import Decoded, Kind, Limits, Place
from ratchet.contracts.errors import ConfigError, Rejected, Retryable
from ratchet.contracts.ports import Dialect
from ratchet.materializer.dialects.admission import Admission
from ratchet.materializer.dialects.exports.langfuse_export import LangfuseDialect
from ratchet.materializer.dialects.exports.litellm import LitellmDialect
from ratchet.materializer.dialects.jsonl import JsonlDialect
from ratchet.materializer.dialects.otlp import OtlpDialect
from ratchet.materializer.dialects.otlp_protobuf import json_form
from ratchet.materializer.dialects.plain.traces import PlainTraces
from ratchet.materializer.dialects.record_blocks import Blocks, Found
from ratchet.materializer.dialects.screening.rating_scales import refuse_unclear
from ratchet.materializer.dialects.values import parse_json

MAX_RECORD = 64 << 20
"""Maximum size of one line or frame, in bytes."""

_PIECE = 1 << 20
_BOM = b"\xef\xbb\xbf"
DAMAGE_LINE = b"\x00damaged "
"""Begin of a line that stands for the rest of a damaged file. The other files that were joined to the batch follow."""
DAMAGE_FRAME = b"D"
"""Mark of a frame that does. Its body says what is damaged."""
REQUESTS: dict[bytes, tuple[Kind, type[Message]]] = {
    b"T": ("traces", ExportTraceServiceRequest),
    b"L": ("feedback", ExportLogsServiceRequest),
}
"""Frame mark -> the record kind under which a bad frame is counted, and the type of its message."""


BUILT_IN: Mapping[str, Dialect] = {
    dialect.name: dialect for dialect in (OtlpDialect(), JsonlDialect(), LangfuseDialect(), LitellmDialect())
}
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
    decoded, plain = decode_in_columns(batch, limits, dialects, admission)
    decoded.traces = plain.among(decoded.traces, range(len(plain)))
    return decoded


def decode_in_columns(
    batch: RawBatch,
    limits: Limits,
    dialects: Mapping[str, Dialect] = BUILT_IN,
    admission: Admission | None = None,
) -> tuple[Decoded, PlainTraces]:
    """Do what `decode` does, but return the traces of plain records as columns. The other result has all the rest."""
    named = _NAMED.get(batch.format, batch.format)
    if named not in dialects:
        known = sorted({*_NAMED, *dialects} - set(_NAMED.values()))
        raise ConfigError(f"batch {batch.origin} has the unknown format {batch.format!r}; known: {', '.join(known)}")
    into, rules = Decoded(), admission or Admission(batch.sender)
    others = [dialect for name, dialect in dialects.items() if name != named and name not in BUILT_IN]
    read = _otlp_frames if batch.format == "otlp-proto" else _json_lines
    blocks = Blocks(dialects[named], others, limits, rules, into)
    try:
        with batch.open() as stream:
            for found in read(stream, batch):
                blocks.add(found)
            blocks.finish()
        if limits.rating_scale is None:
            refuse_unclear(into)
    except OSError as error:
        raise Retryable(f"batch {batch.origin} cannot be read: {error}; restore the file, then ingest again") from error
    return into, blocks.plain


def _json_lines(stream: BinaryIO, batch: RawBatch) -> Iterator[Found]:
    number, offset = batch.first - 1, batch.offset
    while True:
        number += 1
        position, begin = f"line {number}", offset
        try:
            line = stream.readline(MAX_RECORD + 1)
            offset += len(line)
            while len(line) > MAX_RECORD and not line.endswith(b"\n"):
                digest = hashlib.sha256(line)
                line, skipped = _rest_of_line(stream, digest)
                offset += skipped
                too_long = Rejected("too_large", f"a line is longer than {MAX_RECORD} bytes")
                yield Found(position, Place(begin, offset - begin, digest.hexdigest()), b"", parse_json, error=too_long)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            yield Found(position, Place(begin, 0, cut=True), b"", parse_json, error=Rejected("damaged_file", str(error)))
            return
        if line[:1] == b"{" and line[-1:] == b"\n":  # nothing else is to be found out about most lines
            data = line.rstrip(b"\r\n")
            yield Found(position, Place(begin, len(data)), data, parse_json)
            continue
        if not line:
            return
        if number == 1 and line.startswith(_BOM):
            line, begin = line.removeprefix(_BOM), begin + len(_BOM)
        if line.startswith(DAMAGE_LINE):
            detail = line.removeprefix(DAMAGE_LINE).decode(errors="replace").strip()
            yield Found(position, Place(begin, 0, cut=True), b"", parse_json, error=Rejected("damaged_file", detail))
        elif line.strip():
            data = line.rstrip(b"\r\n")
            yield Found(position, Place(begin, len(data), cut=not line.endswith(b"\n")), data, parse_json)


def _rest_of_line(stream: BinaryIO, digest: hashlib._Hash) -> tuple[bytes, int]:
    """Skip the rest of a line that is too long, and add its bytes to `digest`.

    Return an empty line in its place, or nothing at the end of the stream, and the number of bytes.
    """
    skipped = 0
    while piece := stream.readline(_PIECE):
        skipped += len(piece)
        digest.update(piece)
        if piece.endswith(b"\n"):
            return b"\n", skipped
    return b"", skipped


def _otlp_frames(stream: BinaryIO, batch: RawBatch) -> Iterator[Found]:
    number, offset = batch.first - 1, batch.offset
    while True:
        number += 1
        position = f"frame {number}"
        try:
            head = stream.read(5)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            yield Found(position, Place(offset, 0, cut=True), b"", parse_json, error=Rejected("damaged_file", str(error)))
            return
        if not head:
            return
        size = struct.unpack(">I", head[1:])[0] if len(head) == 5 else -1
        body = stream.read(size) if 0 <= size <= MAX_RECORD and head[:1] in (*REQUESTS, DAMAGE_FRAME) else b""
        if head[:1] == DAMAGE_FRAME and len(body) == size:
            damage = Rejected("damaged_file", body.decode(errors="replace"))
            yield Found(position, Place(offset, 0, cut=True), b"", parse_json, error=damage)
            offset += len(head) + size
            continue
        if len(head) < 5 or head[:1] not in REQUESTS or len(body) != size:
            damaged = Rejected("damaged_file", "a frame is truncated, is too large or has an unknown mark")
            yield Found(position, Place(offset, len(head) + len(body), cut=True), b"", parse_json, error=damaged)
            return  # the start of the next frame is unknown
        kind, message = REQUESTS[head[:1]]
        yield Found(position, Place(offset, len(head) + size), head + body, partial(_frame_as_json, message), kind)
        offset += len(head) + size


def _frame_as_json(message: type[Message], frame: bytes) -> dict[str, Any]:
    return as_json(message, frame[5:])


def record_of(form: str, data: bytes) -> Any:
    """Return the record in these bytes, a line or a frame of a batch with the format `form`. Raises Rejected if it cannot be parsed."""
    if form != "otlp-proto":
        return parse_json(data)
    _, message = REQUESTS[data[:1]]
    return as_json(message, data[5:])


def as_json(message: type[Message], body: bytes) -> dict[str, Any]:
    """Convert a protobuf request to its JSON form, with ids in base64. Raises Rejected `malformed_protobuf`."""
    try:
        parsed = message.FromString(body)
        return json_form(parsed)
    except (DecodeError, ValueError, RecursionError, UnicodeDecodeError) as error:
        raise Rejected("malformed_protobuf", str(error)) from None
