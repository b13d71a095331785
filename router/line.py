"""One line in the router process: its application and its files."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx

from ratchet.router.app import Router, RouterSettings, build_app
from ratchet.router.counts.forwarded import ForwardedCounts
from ratchet.router.counts.outcomes import Outcomes
from ratchet.router.counts.report import Report
from ratchet.router.models import ModelClient
from ratchet.router.settings import RouterLine
from ratchet.router.state import FolderState
from ratchet.router.traces.exporter import Exporter
from ratchet.runtime.certificates import certificates
from ratchet.runtime.http_limits import App
from ratchet.runtime.http_replies import AsyncBoundedTransport

_SEND_SECONDS = 10.0
_MAX_REPLY = 64_000_000
"""Maximum size of a model server's answer in bytes, whole or streamed."""


class RouterSite:
    """A line whose requests the router answers."""

    def __init__(self, line: RouterLine, base: Path) -> None:
        state = FolderState(base / line.folder, line.spool_mb << 20)
        self._forwarded = ForwardedCounts(state)
        self._spans = state.spans
        self._outcomes = Outcomes()
        self._report = Report(state, self._figures)
        self._exporter = Exporter(self._spans, base / line.receiver, base / line.token)
        # Each line has connections of its own, so that those to one model server cannot keep the others out.
        self._client = ModelClient(_MAX_REPLY, certificates("https:"))
        receiver = AsyncBoundedTransport(_MAX_REPLY, verify=certificates("https:"))
        self._sender = httpx.AsyncClient(timeout=_SEND_SECONDS, trust_env=False, transport=receiver)
        self._closed = False
        settings = RouterSettings(line.assume_consent, line.name_versions, line.deadline, line.per_caller, line.pins)
        self.app: App = build_app(Router(state.route, self._exporter, self._forwarded, self._client, settings, self._outcomes))

    def _figures(self) -> dict[str, object]:
        return {
            "in_flight": self._forwarded.in_flight(),
            "dropped_traces": dict(self._spans.dropped),
            "waiting_bytes": self._spans.size,
            "outcomes": self._outcomes.figures(),
        }

    def work(self) -> Sequence[Callable[[], None]]:
        """Begin to send traces, and return functions that write what has changed: counts, state, and the spool to the disk."""
        if self._closed:
            return ()
        self._exporter.send(self._sender, time.monotonic())
        # Spans first: after a power failure, a request may have a trace and no count, but no count without its trace.
        return [*self._spans.syncs(), *self._forwarded.take(time.time()), *self._report.take()]

    async def close(self) -> None:
        """Write the counts, send the traces that can be sent, and close all connections."""
        self._closed = True
        for sync in self._spans.syncs():
            sync()
        self._forwarded.write(time.time())
        await self._exporter.flush(self._sender)
        self._spans.close()
        await self._client.close()
        await self._sender.aclose()
