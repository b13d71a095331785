"""OTLP/HTTP receiver: accepts trace and log requests and answers 200 only after they are on disk.

It decodes a request only to check that it can be read; ingest interprets the content. One process serves all lines of an installation,
each on a port of its own. Run: `python -m ratchet.materializer.receive.receiver --help`.

Source: OTLP 1.x, section OTLP/HTTP (error responses carry a google.rpc.Status).
"""

from __future__ import annotations

import argparse
import logging
import struct
import zlib
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ratchet.contracts.data.senders import Sender
from ratchet.contracts.errors import Rejected, Retryable
from ratchet.contracts.ids import canonical
from ratchet.materializer.dialects.values import parse_json
from ratchet.materializer.receive.credentials import CredentialFile
from ratchet.materializer.receive.settings import DRAIN_SECONDS, ReceiverLine
from ratchet.materializer.receive.spool import FolderSpool, Spool
from ratchet.runtime.http_limits import App, HttpLimits
from ratchet.runtime.serving.line_server import Kind, LineServer

JSON, PROTO = "application/json", "application/x-protobuf"
MAX_BODY = 16 << 20
"""Maximum size of a request in bytes, both before and after decompression."""

MAX_MEMBERS = 16
"""Maximum number of members of a gzip body."""

MAX_RECORDS = 50_000
"""Maximum number of spans or log records of a request. Exporters send 512 by default."""

ROOM = 64 << 20
"""Disk space in bytes that must stay free."""

RETRY_SECONDS = 30
"""Value of the Retry-After header of a 503 response, in seconds."""

_PATHS: dict[str, tuple[bytes, str, type[Message]]] = {
    "/v1/traces": (b"T", "resourceSpans", ExportTraceServiceResponse),
    "/v1/logs": (b"L", "resourceLogs", ExportLogsServiceResponse),
}
_REQUESTS: dict[bytes, type[Message]] = {b"T": ExportTraceServiceRequest, b"L": ExportLogsServiceRequest}
"""Frame mark -> type of the message, as in materializer/dialects/decode.py, which needs more memory."""
_CODES = {400: 3, 401: 16, 408: 4, 411: 3, 413: 8, 415: 3, 503: 14}
"""HTTP status -> google.rpc.Code."""

log = logging.getLogger(__name__)


class Refused(Exception):
    """A request that gets the error response `status` with `message`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def create_app(spool: Spool, sender_of: Callable[[str], Sender | None], max_body: int = MAX_BODY, room: int = ROOM) -> Starlette:
    """Return the receiver as an ASGI app. Every request except /healthz needs `Authorization: Bearer <token>`.

    `sender_of` returns the sender to which a token belongs, or None for an invalid token. It raises Retryable if that is not known yet.
    `max_body` and `room` are in bytes.
    """

    async def healthz(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def export(request: Request) -> Response:
        kind = PROTO if _content_type(request) == PROTO else JSON
        mark, field, answer = _PATHS[request.url.path]
        try:
            sender = _authorised(request, sender_of)
            body = await _read(request, max_body)
            await run_in_threadpool(_store, spool, sender, kind, mark, field, body, room)
        except Refused as refused:
            return _error(kind, refused.status, refused.message)
        return Response(answer().SerializeToString() if kind == PROTO else b"{}", media_type=kind)

    return Starlette(routes=[Route("/healthz", healthz), *(Route(path, export, methods=["POST"]) for path in _PATHS)])


def _authorised(request: Request, sender_of: Callable[[str], Sender | None]) -> Sender:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    try:
        sender = sender_of(token) if scheme == "Bearer" and token else None
    except Retryable as error:  # senders drop a batch that is answered with 401
        raise Refused(503, f"{error}; send again later") from error
    if sender is None:
        raise Refused(401, "the bearer token is missing, wrong or revoked")
    return sender


def _content_type(request: Request) -> str:
    """Return the media type without parameters. Media types are case-insensitive (RFC 9110, section 8.3.1)."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _read(request: Request, most: int) -> bytes:
    """Return the decompressed body. Raises Refused 413 as soon as it is larger than `most` bytes."""
    kind = _content_type(request)
    if kind not in (JSON, PROTO):
        raise Refused(415, f"content type {kind[:80]!r} is not supported; send {PROTO} or {JSON}")
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > most:
        raise Refused(413, f"the request is larger than {most} bytes; export smaller batches")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise Refused(413, f"the request is larger than {most} bytes; export smaller batches")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip", ""):
        raise Refused(415, f"content encoding {encoding[:80]!r} is not supported; send gzip or none")
    return _inflate(bytes(body), most) if encoding == "gzip" else bytes(body)


def _inflate(body: bytes, most: int) -> bytes:
    """Decompress a gzip body. It may have several members (RFC 1952, section 2.2)."""
    data = bytearray()
    for _ in range(MAX_MEMBERS):
        inflater = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            data += inflater.decompress(body, most + 1 - len(data))
        except zlib.error as error:
            raise Refused(400, f"the gzip body is corrupt: {error}") from error
        if len(data) > most:
            raise Refused(413, f"the request is larger than {most} bytes after decompression; export smaller batches")
        if not inflater.eof:
            raise Refused(400, "the gzip body is truncated")
        body = inflater.unused_data
        if not body:
            return bytes(data)
    raise Refused(400, f"the gzip body has more than {MAX_MEMBERS} members")


def _store(spool: Spool, sender: Sender, kind: str, mark: bytes, field: str, body: bytes, room: int) -> None:
    """Check that the body is a readable request, and spool it. Raises Refused: 400 if it is not, 503 if the disk is full or fails."""
    try:
        if kind == PROTO:
            many = _message_records(_REQUESTS[mark].FromString(body))
        else:
            request = parse_json(body)
            if not isinstance(request, dict) or (request and not isinstance(request.get(field), list)):
                raise Rejected("wrong_type", f"the body must be a JSON object with the list {field}")
            many = _json_records(request)
    except (DecodeError, Rejected) as error:
        raise Refused(400, f"the body is not a valid {kind} request: {error}") from error
    if many > MAX_RECORDS:
        raise Refused(413, f"the request has {many} records, more than {MAX_RECORDS}; export smaller batches")
    if not spool.has_room(room):
        raise Refused(503, "the receiver's disk is full; send again later")
    try:
        spool.put_proto(sender, mark, body) if kind == PROTO else spool.put_json(sender, body)
    except Retryable as error:
        log.error("cannot write to the spool: %s", error)
        raise Refused(503, "the receiver cannot store the request; send again later") from error


def _message_records(request: Any) -> int:
    """Return the number of spans or log records of a protobuf request."""
    if isinstance(request, ExportTraceServiceRequest):
        return sum(len(scope.spans) for resource in request.resource_spans for scope in resource.scope_spans)
    return sum(len(scope.log_records) for resource in request.resource_logs for scope in resource.scope_logs)


def _json_records(request: dict[str, Any]) -> int:
    """Return the number of list items at the level of spans and log records of a JSON request. Parts of another type count as none."""
    items: list[Any] = [request]
    for keys in (("resourceSpans", "resourceLogs"), ("scopeSpans", "scopeLogs"), ("spans", "logRecords")):
        lists = [item.get(key) for item in items if isinstance(item, dict) for key in keys]
        items = [item for one in lists if isinstance(one, list) for item in one]
    return len(items)


def _error(kind: str, status: int, message: str) -> Response:
    """Return an error response with a google.rpc.Status in the encoding of the request."""
    code = _CODES[status]
    headers = {"Retry-After": str(RETRY_SECONDS)} if status == 503 else {}
    body = _status_proto(code, message.encode()) if kind == PROTO else canonical({"code": code, "message": message})
    return Response(body, status_code=status, media_type=kind, headers=headers)


def refusal(scope: MutableMapping[str, Any], status: int, message: str) -> tuple[str, bytes]:
    """Return content type and body of the answer to a request that a limit of the process refuses."""
    sent = dict(scope["headers"]).get(b"content-type", b"")
    response = _error(PROTO if sent.startswith(PROTO.encode()) else JSON, status, message)
    return str(response.media_type), bytes(response.body)


def _status_proto(code: int, message: bytes) -> bytes:
    """Encode a google.rpc.Status: field 1 is the code (a varint below 128), field 2 the message (length-delimited).

    The message is cut to 16,000 bytes, so that its length fits in a varint of two bytes.
    """
    message = message[:16_000]
    length = struct.pack("B", len(message)) if len(message) < 128 else bytes([len(message) & 0x7F | 0x80, len(message) >> 7])
    return bytes([0x08, code, 0x12]) + length + message


class ReceiverSite:
    """A line whose senders the receiver serves. Only the line's own credentials are valid on its port."""

    def __init__(self, line: ReceiverLine, base: Path) -> None:
        self.app: App = create_app(FolderSpool(base / line.spool), CredentialFile(base / line.credentials).sender)

    def work(self) -> Sequence[Callable[[], None]]:
        """Do nothing: a request is on the disk when it is answered."""
        return ()

    async def close(self) -> None:
        """Do nothing."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the receiver until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(
        prog="python -m ratchet.materializer.receive.receiver", description="OTLP/HTTP receiver that spools to disk."
    )
    parser.add_argument("--folder", type=Path, required=True, help="folder with the settings of the lines")
    remedy = "free the port, or set serving.receiver_port in the loop file"
    kind = Kind("the receiver", remedy, ReceiverLine, ReceiverSite, DRAIN_SECONDS, refusal)
    LineServer(parser.parse_args(arguments).folder, kind, HttpLimits()).run()


if __name__ == "__main__":
    main()
