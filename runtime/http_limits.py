"""Limits on the memory, time and connections that the callers of an HTTP server process can take.

`LimitedApp` wraps an ASGI application. `with_deadlines` wraps the protocol class of uvicorn, which by itself waits without limit for the
head of a request, for its body, and for a caller that does not read the answer. This module does not import uvicorn or an ASGI library.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
Refusal = Callable[[MutableMapping[str, Any], int, str], tuple[str, bytes]]
"""(scope, status, message) -> content type and body of the answer to a request that a limit refuses."""

RETRY_SECONDS = 2
"""Value of the Retry-After header when a limit of the whole process is reached, in seconds."""
_LINGER_SECONDS = 5.0
"""Seconds between the answer to a body that is too slow and the end of its connection."""
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: %d\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % RETRY_SECONDS
_LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@dataclass(frozen=True)
class HttpLimits:
    """Limits of one server process. Times are in seconds, sizes in bytes."""

    head_seconds: float = 10.0
    """From the connection, or from the first byte of a later request, to the end of the request's head."""
    body_seconds: float = 30.0
    """From the end of the head to the end of the body."""
    write_seconds: float = 60.0
    """How long an answer may wait for a caller that does not read it."""
    connections: int = 1024
    requests: int = 512
    """Requests with a body that are handled at the same time."""
    body_bytes: int = 64 << 20
    """Size of all request bodies that are held at the same time, from their arrival to the end of their answers. The first
    `free_bytes` of each body do not count, so that large bodies do not exclude small ones."""
    free_bytes: int = 64 << 10


def json_refusal(_scope: MutableMapping[str, Any], _status: int, message: str) -> tuple[str, bytes]:
    """Return a refusal in the form of the OpenAI API."""
    return "application/json", json.dumps({"error": {"message": message, "type": "limit"}}).encode()


class LimitedApp:
    """An ASGI application within `limits`. A request that exceeds one of them gets status 408 or 503 in the form of `refusal`."""

    def __init__(self, app: App, limits: HttpLimits, refusal: Refusal = json_refusal) -> None:
        self._app = app
        self._limits = limits
        self._refusal = refusal
        self._requests = 0
        self._bytes = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one ASGI event stream. Only requests that can have a body are limited, so that a health check always gets an answer."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        request = _Request(scope, receive, send, self._refusal)
        if self._requests >= self._limits.requests:
            await request.refuse(503, "too many requests at the same time; try again later")
            return
        self._requests += 1
        try:
            await self._app(scope, lambda: self._receive(request), request.send)
        except Exception:
            if not request.refused:  # otherwise the application has seen its caller leave
                raise
        finally:
            self._requests -= 1
            self._bytes -= request.charged

    async def _receive(self, request: _Request) -> Message:
        if request.complete:
            return await request.receive()
        try:
            async with asyncio.timeout_at(request.begun + self._limits.body_seconds):
                message = await request.receive()
        except TimeoutError:
            return await request.refuse(408, f"the body did not arrive within {self._limits.body_seconds:g} s")
        request.size += len(message.get("body", b""))
        more = max(0, request.size - self._limits.free_bytes) - request.charged
        if more > 0 and self._bytes + more > self._limits.body_bytes:
            return await request.refuse(503, "the requests at the same time are too large; try again later")
        self._bytes += more
        request.charged += more
        request.complete = not message.get("more_body", False)
        return message


class _Request:
    """One request: the size of its body so far, how much of it counts, and whether it was refused."""

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send, refusal: Refusal) -> None:
        self.begun = asyncio.get_running_loop().time()
        self.receive = receive
        self.size = 0
        self.charged = 0
        self.complete = False
        self.refused = False
        self._scope = scope
        self._send = send
        self._refusal = refusal
        self._started = False

    async def send(self, message: Message) -> None:
        """Pass a message of the application on, unless the request was refused."""
        if not self.refused:
            self._started = True
            await self._send(message)

    async def refuse(self, status: int, message: str) -> Message:
        """Answer with a refusal, unless an answer has begun. Return the message that ends the request for the application."""
        self.refused = True
        self.complete = True
        if not self._started:
            kind, body = self._refusal(self._scope, status, message)
            headers = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
            headers += [(b"retry-after", b"%d" % RETRY_SECONDS)] if status == 503 else []
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self._send({"type": "http.response.body", "body": body})
        return {"type": "http.disconnect"}


def with_deadlines(protocol: type[Any], limits: HttpLimits) -> type[Any]:
    """Return a subclass of uvicorn's H11Protocol that closes connections which exceed `limits`."""

    class Deadlines(protocol):  # type: ignore[misc]
        """Closes a connection that is one too many, whose request arrives too slowly, or whose caller does not read."""

        _reading: asyncio.TimerHandle | None = None
        _writing: asyncio.TimerHandle | None = None
        _phase = ""

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                transport.write(_FULL)
                transport.close()
            else:
                self._expect("IDLE")

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._expect(str(self.conn.their_state))  # a state of h11: IDLE before the head of a request, SEND_BODY before its end

        def on_response_complete(self) -> None:
            super().on_response_complete()
            phase = str(self.conn.their_state)
            self._expect("" if phase == "IDLE" else phase)  # uvicorn itself closes an idle connection

        def pause_writing(self) -> None:
            super().pause_writing()
            self._writing = self.loop.call_later(limits.write_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._writing is not None:
                self._writing.cancel()

        def connection_lost(self, exc: Exception | None) -> None:
            self._expect("")
            if self._writing is not None:
                self._writing.cancel()
            super().connection_lost(exc)

        def _expect(self, phase: str) -> None:
            """Set the deadline for a new phase. Further data of the same phase does not extend it."""
            if phase == self._phase:
                return
            if self._reading is not None:
                self._reading.cancel()
                self._reading = None
            self._phase = phase
            if phase == "IDLE":
                self._reading = self.loop.call_later(limits.head_seconds, self._late)
            elif phase == "SEND_BODY":  # LimitedApp answers before
                self._reading = self.loop.call_later(limits.body_seconds + _LINGER_SECONDS, self.transport.abort)

        def _late(self) -> None:
            self.transport.write(_LATE)
            self.transport.close()

    return Deadlines
