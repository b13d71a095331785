"""Limits on the memory, time and connections that the callers of an HTTP server process can take.

`LimitedApp` wraps an ASGI application. `with_deadlines` wraps the protocol class of uvicorn, which by itself waits without limit for the
head of a request, for its body, and for a caller that does not read the answer. This module does not import uvicorn or an ASGI library.

A process may serve several lines. Then they share the limits of the process (`Budget`), so that the callers of one line cannot take what
the other lines need. The key "line" of the connection's state names the line.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
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
    """Limits of one server process. Times are in seconds, sizes in bytes. A process of several lines has more, by `Budget.further`."""

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


class Budget:
    """An amount that the lines of one process share: `one` for one line, and `further` more for each further line.

    Half of it is divided equally: this share is reserved for each line. The other half is for all lines that need more than their share.
    The amount never exceeds `most`.
    """

    def __init__(self, one: int, further: int = 0, most: int | None = None) -> None:
        self._one = one
        self._further = further
        self._most = most
        self._used: Counter[str] = Counter()
        self.lines = 1
        """Number of lines that share the amount."""

    def take(self, line: str, amount: int = 1) -> bool:
        """Take `amount` for a line. Return False, and take nothing, if the line has used its share and the common half is used up."""
        lines = max(1, self.lines)
        total = self._one + self._further * (lines - 1)
        total = total if self._most is None else min(total, self._most)
        share = total // 2 // lines
        wanted = self._used[line] + amount
        if wanted > share:
            others = sum(max(0, used - share) for other, used in self._used.items() if other != line)
            if others + wanted - share > total - share * lines:
                return False
        self._used[line] = wanted
        return True

    def give(self, line: str, amount: int = 1) -> None:
        """Give back what `take` has taken."""
        self._used[line] -= amount
        if not self._used[line]:
            del self._used[line]


class Budgets:
    """What the connections and requests of one process share. `files` is the number of files that the process may have open."""

    def __init__(self, limits: HttpLimits, files: int | None = None) -> None:
        self.connections = Budget(limits.connections, 64, None if files is None else max(1, files // 3))
        self.requests = Budget(limits.requests, 32)
        self.body_bytes = Budget(limits.body_bytes, 4 << 20)

    def share_among(self, lines: int) -> None:
        """Set the number of lines that share the budgets."""
        self.connections.lines = self.requests.lines = self.body_bytes.lines = lines


def _line_of(state: MutableMapping[str, Any] | None) -> str:
    return str((state or {}).get("line", ""))


def json_refusal(_scope: MutableMapping[str, Any], _status: int, message: str) -> tuple[str, bytes]:
    """Return a refusal in the form of the OpenAI API."""
    return "application/json", json.dumps({"error": {"message": message, "type": "limit"}}).encode()


class LimitedApp:
    """An ASGI application within `limits`. A request that exceeds one of them gets status 408 or 503 in the form of `refusal`."""

    def __init__(self, app: App, limits: HttpLimits, refusal: Refusal = json_refusal, budgets: Budgets | None = None) -> None:
        self._app = app
        self._limits = limits
        self._refusal = refusal
        self._budgets = budgets or Budgets(limits)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Handle one ASGI event stream. Only requests that can have a body are limited, so that a health check always gets an answer."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        request = _Request(scope, receive, send, self._refusal)
        if not self._budgets.requests.take(request.line):
            await request.refuse(503, "too many requests at the same time; try again later")
            return
        try:
            await self._app(scope, lambda: self._receive(request), request.send)
        except Exception:
            if not request.refused:  # otherwise the application has seen its caller leave
                raise
        finally:
            self._budgets.requests.give(request.line)
            self._budgets.body_bytes.give(request.line, request.charged)

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
        if more > 0:
            if not self._budgets.body_bytes.take(request.line, more):
                return await request.refuse(503, "the requests at the same time are too large; try again later")
            request.charged += more
        request.complete = not message.get("more_body", False)
        return message


class _Request:
    """One request: the size of its body so far, how much of it counts, and whether it was refused."""

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send, refusal: Refusal) -> None:
        self.begun = asyncio.get_running_loop().time()
        self.line = _line_of(scope.get("state"))
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


def with_deadlines(protocol: type[Any], limits: HttpLimits, budgets: Budgets | None = None) -> type[Any]:
    """Return a subclass of uvicorn's H11Protocol that closes connections which exceed `limits` or the budgets of the process."""
    connections = (budgets or Budgets(limits)).connections

    class Deadlines(protocol):  # type: ignore[misc]
        """Closes a connection that is one too many, whose request arrives too slowly, or whose caller does not read."""

        _reading: asyncio.TimerHandle | None = None
        _writing: asyncio.TimerHandle | None = None
        _phase = ""
        _counted = False

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._counted = connections.take(_line_of(self.app_state))
            if self._counted:
                self._expect("IDLE")
            else:
                transport.write(_FULL)
                transport.close()

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
            if self._counted:
                self._counted = False
                connections.give(_line_of(self.app_state))
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
