"""Serves an ASGI application, announces its port in a ready file, and ends the work for callers that are gone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import Any, TypeVar

import uvicorn
from starlette.requests import ClientDisconnect, Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from ratchet.runtime.http_limits import HttpLimits, LimitedApp, with_deadlines
from ratchet.runtime.serving.announcement import DRAIN_SECONDS, announce
from ratchet.runtime.serving.line_server import allow_files, bind

_POLL_SECONDS = 0.2
_Result = TypeVar("_Result")


class TooLarge(Exception):
    """The body of a request is larger than the limit."""


class CallerGone(Exception):
    """The caller has closed the connection before the answer."""


async def read_body(request: Request, most: int) -> bytes:
    """Return the body of a request. Raises TooLarge as soon as it is larger than `most` bytes, and CallerGone if its rest does not come."""
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > most:
                raise TooLarge(f"the body is larger than {most} bytes")
    except ClientDisconnect:
        raise CallerGone from None
    return bytes(body)


async def while_connected(request: Request, work: Awaitable[_Result]) -> _Result:
    """Return the result of `work`. If the caller closes the connection first, cancel the work and raise CallerGone.

    The body of the request must have been read. The connection is checked every 0.2 s.
    """
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_POLL_SECONDS)
            if not task.done() and await request.is_disconnected():
                raise CallerGone
        return task.result()
    finally:
        task.cancel()


class AnnouncingServer(uvicorn.Server):
    """A uvicorn server that writes its ready file once it answers requests."""

    def __init__(self, config: uvicorn.Config, port: int) -> None:
        super().__init__(config)
        self._port = port

    async def startup(self, sockets: Any = None) -> None:
        """Start the server, then announce its port."""
        await super().startup(sockets)
        announce(self._port)


def run_app(app: Any, port: int, what: str, remedy: str, limits: HttpLimits, host: str = "127.0.0.1") -> None:
    """Serve an ASGI application within `limits` until SIGTERM, and announce its port. For the other arguments, see `bind`.

    After SIGTERM, the process accepts no connection, finishes the answers that it has begun within DRAIN_SECONDS, and ends. Only the owner
    can read the files that the process writes.
    """
    os.umask(0o077)
    allow_files()
    listener = bind(port, what, remedy, host)
    config = uvicorn.Config(
        LimitedApp(app, limits),
        http=with_deadlines(H11Protocol, limits),
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    AnnouncingServer(config, listener.getsockname()[1]).run(sockets=[listener])
