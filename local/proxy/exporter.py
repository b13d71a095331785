"""Sends spans from the spool to the receiver, in batches. A segment is deleted when the receiver has all its spans on disk.

After a lost response or a restart, spans are sent again; ingest counts the second copies as duplicates.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from local.proxy.span_spool import SpanSpool, sync_all
from local.proxy.spans import attributes, sign
from runtime.json_files import read_json
from runtime.secrets.keyring import KeyFile
from runtime.secrets.span_signature import SPAN_KEYS

log = logging.getLogger("ratchet.router")
_BATCH = 256
"""Maximum number of spans in a batch."""
_BATCH_BYTES = 1_000_000
"""Maximum size of a batch in bytes. A single span may be larger and is then sent alone."""
_REFUSED = (400, 413, 415, 422)
"""Status codes for a bad batch. Sending the same bytes again would fail again."""
_EVERY_SECONDS = 0.5


class Exporter:
    """Signs spans, stores them in `spool`, and sends them.

    The file `receiver` has the receiver's address ({"port": …}), the file `token` the bearer token. The keys of the signatures are beside
    the token.
    """

    def __init__(self, spool: SpanSpool, receiver: Path, token: Path) -> None:
        self._keys = KeyFile(token.with_name(SPAN_KEYS))
        self.spool = spool
        self._receiver = receiver
        self._token = token
        self._sent: tuple[Path | None, int] = None, 0

    def add(self, span: Span) -> None:
        """Sign and store a span. When this returns, the span survives the death of the process, or it is counted as dropped."""
        sign(span, self._keys.keys())
        self.spool.append(span.SerializeToString())

    async def run(self) -> None:
        """Write the spans to the disk and send them, at regular intervals, until cancelled."""
        async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
            while True:
                await asyncio.sleep(_EVERY_SECONDS)
                try:
                    await asyncio.to_thread(sync_all, self.spool.unsynced())
                    await self._drain(client)
                except Exception as error:  # for example a damaged address file; the spans wait on disk for the next try
                    log.error("cannot send traces: %s: %s", type(error).__name__, error)

    async def flush(self) -> None:
        """Try once to send all spans, before shutdown. The others stay on disk."""
        await asyncio.to_thread(sync_all, self.spool.unsynced())
        async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
            await self._drain(client)

    async def _drain(self, client: httpx.AsyncClient) -> None:
        """Send all spans, until the receiver fails."""
        while (segment := self.spool.oldest()) is not None:
            spans = [Span.FromString(content) for content in self.spool.read(segment)]
            known, sent = self._sent
            if not await self._send_all(client, segment, spans, sent if known == segment else 0):
                return
            self.spool.remove(segment)

    async def _send_all(self, client: httpx.AsyncClient, segment: Path, spans: Sequence[Span], sent: int) -> bool:
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
            log.warning("receiver unavailable (%s); %d bytes of traces wait", error, self.spool.size)
            return 0
        if response.status_code != 200:
            log.warning("receiver returned HTTP %d; %d bytes of traces wait", response.status_code, self.spool.size)
        return response.status_code


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
