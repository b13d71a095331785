"""Signs spans, stores them in the spool, and sends them to the receiver in batches.

A segment is deleted when the receiver has all its spans on disk. After a lost response or a restart, spans are sent again; ingest counts
the second copies as duplicates.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from ratchet.router.state import SpanStore
from ratchet.router.traces.spans import attributes, sign
from ratchet.runtime.json_files import read_json
from ratchet.runtime.secrets.keyring import KeyFile
from ratchet.runtime.secrets.span_signature import SPAN_KEYS

log = logging.getLogger("ratchet.router")
_BATCH = 256
"""Maximum number of spans in a batch."""
_BATCH_BYTES = 1_000_000
"""Maximum size of a batch in bytes. A single span may be larger and is then sent alone."""
_REFUSED = (400, 413, 415, 422)
"""Status codes for a bad batch. Sending the same bytes again would fail again."""
_AGAIN_SECONDS = 2.0
"""Seconds after a failure until the next try."""
_FLUSH_SECONDS = 10.0


class Exporter:
    """Signs spans and sends those of `spool`.

    The file `receiver` has the receiver's address ({"port": …}), the file `token` the bearer token. The keys for signatures are beside the
    token.
    """

    def __init__(self, spool: SpanStore, receiver: Path, token: Path) -> None:
        self.spool = spool
        self._keys = KeyFile(token.with_name(SPAN_KEYS))
        self._receiver = receiver
        self._token = token
        self._sent: tuple[Any, int] = None, 0
        self._sending: asyncio.Task[None] | None = None
        self._again = float("-inf")

    def add(self, span: Span) -> None:
        """Sign and store a span. When this returns, the span survives the death of the process, or it is counted as dropped."""
        sign(span, self._keys.keys().to_sign(datetime.now(UTC)))
        self.spool.append(span.SerializeToString())

    def send(self, client: httpx.AsyncClient, now: float) -> None:
        """Begin to send the spans in the spool, if there are any and none are being sent. `now` is a monotonic time in seconds.

        After a failure, nothing is sent for some seconds.
        """
        if self.spool.size and now >= self._again and (self._sending is None or self._sending.done()):
            self._sending = asyncio.create_task(self._try(client, now))

    async def flush(self, client: httpx.AsyncClient) -> None:
        """Try once to send all spans, before the end. The others stay on disk."""
        if self._sending is not None:
            await asyncio.wait({self._sending}, timeout=_FLUSH_SECONDS)
            self._sending.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
                await self._drain(client)

    async def _try(self, client: httpx.AsyncClient, now: float) -> None:
        try:
            await self._drain(client)
        except Exception as error:  # for example a damaged address file; the spans wait on disk for the next try
            log.error("cannot send traces: %s: %s", type(error).__name__, error)
        if self.spool.size:
            self._again = now + _AGAIN_SECONDS

    async def _drain(self, client: httpx.AsyncClient) -> None:
        """Send all spans, until the receiver fails."""
        while (segment := self.spool.oldest()) is not None:
            spans = [Span.FromString(content) for content in self.spool.read(segment)]
            known, sent = self._sent
            if not await self._send_all(client, segment, spans, sent if known == segment else 0):
                return
            self.spool.remove(segment)

    async def _send_all(self, client: httpx.AsyncClient, segment: Any, spans: Sequence[Span], sent: int) -> bool:
        """Send the spans of a segment from number `sent` on. Return whether all are sent.

        A rejected batch is halved until the bad span is alone; that span is dropped and counted.
        """
        most = _BATCH
        while sent < len(spans):
            batch = _next(spans[sent : sent + most])
            status = await self._send(client, batch)
            if status == 200:
                most = _BATCH
            elif status not in _REFUSED:
                return False
            elif len(batch) > 1:
                most = len(batch) // 2
                continue
            else:
                self.spool.drop("rejected")
            sent += len(batch)
            self._sent = segment, sent
        return True

    async def _send(self, client: httpx.AsyncClient, batch: Sequence[Span]) -> int:
        """Send a batch and return the HTTP status: 200 once the receiver has the batch on disk, 0 if it does not answer."""
        address = read_json(self._receiver)
        url = _url_of(address)
        if url is None:  # no receiver runs, or the receiver could not open its port
            return 0
        request = ExportTraceServiceRequest()
        resource = request.resource_spans.add()
        resource.resource.attributes.extend(attributes({"service.name": "ratchet-router"}))
        resource.scope_spans.add().spans.extend(batch)
        try:
            headers = {"content-type": "application/x-protobuf", "authorization": f"Bearer {self._token.read_text().strip()}"}
            response = await client.post(f"{url}/v1/traces", content=request.SerializeToString(), headers=headers)
        except (httpx.HTTPError, OSError) as error:
            log.warning("receiver unavailable (%s); %d bytes of traces wait", error, self.spool.size)
            return 0
        if response.status_code != 200:
            log.warning("receiver returned HTTP %d; %d bytes of traces wait", response.status_code, self.spool.size)
        return response.status_code


def _url_of(address: Mapping[str, Any] | None) -> str | None:
    """Return the base URL of the receiver, whose file has a port of this machine or a URL; None if it has neither."""
    if address is None:
        return None
    return str(address["url"]) if "url" in address else f"http://127.0.0.1:{address['port']}" if "port" in address else None


def _next(spans: Sequence[Span]) -> list[Span]:
    """Return the first spans: at least one, and at most _BATCH_BYTES if there is more than one."""
    batch: list[Span] = []
    size = 0
    for span in spans:
        size += span.ByteSize()
        if batch and size > _BATCH_BYTES:
            break
        batch.append(span)
    return batch
