"""Exports traces of the router's traffic as OTLP GenAI spans, which are sent to a receiver in batches.

Names follow the OpenTelemetry semantic conventions for generative AI. Spans that cannot be delivered wait in a bounded queue and are
sent again. A span is dropped if the queue is full or if the receiver rejects it permanently. Dropped spans are counted and logged.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import secrets
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from runtime.json_files import read_json
from runtime.secrets.keyring import KeyFile, Keyring
from runtime.secrets.span_signature import SIGNATURE, SPAN_KEYS, signature_of, signed_form

log = logging.getLogger("ratchet.router")
_QUEUE = 50_000
"""Maximum number of queued spans."""
_QUEUE_BYTES = 64_000_000
"""Maximum size of the queued spans in bytes."""
_BATCH = 256
"""Maximum number of spans in a batch."""
_BATCH_BYTES = 1_000_000
"""Maximum size of a batch in bytes. A single span may be larger and is then sent alone."""
_CONTENT_BYTES = 256_000
"""Maximum size of prompt and answer of one span, in bytes of JSON. Larger content is omitted, and the span is marked."""
_REFUSED = (400, 413, 415, 422)
"""Status codes for a bad batch. Sending the same bytes again would fail again."""
_EVERY_SECONDS = 0.5
Value = str | bool | int | float | list[str]


def _any(value: Value) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, list):
        return AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=_utf8(item)) for item in value]))
    return AnyValue(string_value=_utf8(value))


def _utf8(text: str) -> str:
    """Replace unpaired surrogates, which JSON can contain but protobuf cannot.

    Otherwise an error in the trace would make the answer to the user fail.
    """
    return text.encode("utf-8", "replace").decode()


def attributes(values: Mapping[str, Value | None]) -> list[KeyValue]:
    """Convert values to OTLP attributes. Values of None are left out."""
    return [KeyValue(key=key, value=_any(value)) for key, value in values.items() if value is not None]


def new_ids() -> tuple[str, str]:
    """Return a new random (trace id, span id), both in hex."""
    return secrets.token_hex(16), secrets.token_hex(8)


def messages_json(messages: list[dict[str, Any]]) -> str:
    """Return messages as JSON in the form of the conventions: a role and text parts."""
    parts = [{"role": m.get("role", "user"), "parts": [{"type": "text", "content": m.get("content") or ""}]} for m in messages]
    return json.dumps(parts, ensure_ascii=False)


def content_values(asked: list[dict[str, Any]], answered: list[dict[str, Any]] | None) -> dict[str, Value | None]:
    """Return the content attributes. If the content is too large, return only an attribute that marks it as omitted."""
    content = {"gen_ai.input.messages": messages_json(asked), "gen_ai.output.messages": messages_json(answered) if answered else ""}
    if sum(len(_utf8(text).encode()) for text in content.values()) > _CONTENT_BYTES:
        return {"ratchet.content_omitted": "too_large"}
    return {name: text or None for name, text in content.items()}


def chat_span(ids: tuple[str, str], started_ns: int, values: Mapping[str, Value | None], error: str | None) -> Span:
    """Return the span of one model call that ends now.

    `ids` is (trace id, span id) in hex, `started_ns` the start in nanoseconds since the epoch. A non-empty `error` sets the error
    status.
    """
    status = Status(code=Status.STATUS_CODE_ERROR, message=_utf8(error)) if error else Status(code=Status.STATUS_CODE_UNSET)
    return Span(
        trace_id=bytes.fromhex(ids[0]),
        span_id=bytes.fromhex(ids[1]),
        name=_utf8(f"chat {values.get('gen_ai.request.model', '')}"),
        kind=Span.SPAN_KIND_CLIENT,
        start_time_unix_nano=started_ns,
        end_time_unix_nano=time.time_ns(),
        attributes=attributes(values),
        status=status,
    )


def sign(span: Span, keys: Keyring) -> None:
    """Add the signature that makes the span evidence about its version. Without a key, the span stays without a signature."""
    if keys.newest is None:
        return
    values = {kv.key: _plain(kv.value) for kv in span.attributes}
    failed = span.status.code == Status.STATUS_CODE_ERROR
    form = signed_form(span.trace_id.hex(), span.span_id.hex(), span.start_time_unix_nano, span.end_time_unix_nano, failed, values)
    span.attributes.extend(attributes({SIGNATURE: signature_of(form, keys.newest)}))


def _plain(value: AnyValue) -> Value:
    kind = str(value.WhichOneof("value"))
    found: Value = [item.string_value for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)
    return found


class Exporter:
    """Signs spans and sends them to the receiver.

    The file `receiver` has its address ({"port": …}), the file `token` the bearer token. The keys for signatures are beside the token.
    """

    def __init__(self, receiver: Path, token: Path) -> None:
        self._keys = KeyFile(token.with_name(SPAN_KEYS))
        self._receiver = receiver
        self._token = token
        self._queue: deque[Span] = deque()
        self._bytes = 0
        self.dropped = 0

    def add(self, span: Span) -> None:
        """Sign a span and queue it for export. If the queue is full, the span is dropped and counted."""
        sign(span, self._keys.keys())
        if len(self._queue) >= _QUEUE or self._bytes + span.ByteSize() > _QUEUE_BYTES:
            self._drop("receiver unavailable and queue full")
            return
        self._queue.append(span)
        self._bytes += span.ByteSize()

    def _drop(self, why: str) -> None:
        self.dropped += 1
        if self.dropped % 1000 == 1:
            log.error("%s: %d traces dropped so far", why, self.dropped)

    def _take(self) -> Span:
        span = self._queue.popleft()
        self._bytes -= span.ByteSize()
        return span

    async def run(self) -> None:
        """Send the queued spans at regular intervals until cancelled."""
        async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
            while True:
                await asyncio.sleep(_EVERY_SECONDS)
                await self._drain(client)

    async def flush(self) -> None:
        """Try once to send all queued spans, before shutdown."""
        async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
            await self._drain(client)

    async def _drain(self, client: httpx.AsyncClient) -> None:
        """Send all queued spans. A rejected batch is halved until the bad span is alone; that span is dropped and counted."""
        most = _BATCH
        while self._queue:
            batch = self._next(most)
            status = await self._send(client, batch)
            if status == 200:
                most = _BATCH
                for _ in batch:
                    self._take()
            elif status not in _REFUSED:
                return
            elif len(batch) > 1:
                most = len(batch) // 2
            else:
                self._take()
                self._drop(f"receiver rejects a trace permanently (HTTP {status})")

    def _next(self, most: int) -> list[Span]:
        """Return the oldest spans: at least one, at most `most`, and at most _BATCH_BYTES if there is more than one."""
        batch: list[Span] = []
        size = 0
        for span in itertools.islice(self._queue, most):
            size += span.ByteSize()
            if batch and size > _BATCH_BYTES:
                break
            batch.append(span)
        return batch

    async def _send(self, client: httpx.AsyncClient, batch: list[Span]) -> int:
        """Send a batch and return the HTTP status: 200 once the receiver has the batch on disk, 0 if it does not answer.

        If a response is lost, the batch is sent twice. Ingest then counts the second copies as duplicates.
        """
        address = read_json(self._receiver)
        if address is None:
            return 0
        request = ExportTraceServiceRequest()
        resource = request.resource_spans.add()
        resource.resource.attributes.extend(attributes({"service.name": "ratchet-router"}))
        resource.scope_spans.add().spans.extend(batch)
        try:
            headers = {"content-type": "application/x-protobuf", "authorization": f"Bearer {self._token.read_text().strip()}"}
            url = f"http://127.0.0.1:{address['port']}/v1/traces"
            response = await client.post(url, content=request.SerializeToString(), headers=headers)
        except (httpx.HTTPError, OSError) as error:
            log.warning("receiver unavailable (%s); %d traces queued", error, len(self._queue))
            return 0
        if response.status_code != 200:
            log.warning("receiver returned HTTP %d; %d traces queued", response.status_code, len(self._queue))
        return response.status_code
