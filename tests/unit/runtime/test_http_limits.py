"""Tests of the limits of a server process, with uvicorn as the server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ratchet.runtime.http_limits import Budget, Budgets, HttpLimits, LimitedApp, with_deadlines
from tests.waiting import until

FULL = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"


@dataclass
class Echo:
    """An application that answers with the length of the body, once `hold` is set. `large` answers with many bytes instead."""

    hold: threading.Event = field(default_factory=threading.Event)
    running: int = 0

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        if scope["type"] != "http":
            return
        self.running += 1
        try:
            length, more = 0, scope["method"] == "POST"
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ConnectionError
                length, more = length + len(message["body"]), message["more_body"]
            while not self.hold.is_set():
                await asyncio.sleep(0.01)
            content = b"x" * 50_000_000 if scope["path"] == "/large" else b"%d" % length
            headers = [(b"content-length", b"%d" % len(content))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": content})
        finally:
            self.running -= 1


@contextlib.contextmanager
def served(app: Echo, **limits: Any) -> Iterator[int]:
    """Serve `app` within limits and yield its port."""
    chosen = HttpLimits(**limits)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        LimitedApp(app, chosen), http=with_deadlines(H11Protocol, chosen), ws="none", lifespan="off", log_level="critical"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        until(lambda: server.started)
        yield int(listener.getsockname()[1])
    finally:
        app.hold.set()
        server.should_exit = server.force_exit = True
        thread.join()


def sent(port: int, content: bytes) -> socket.socket:
    """Open a connection and send these bytes."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(content)
    return connection


def answered(connection: socket.socket) -> bytes:
    """Return all bytes until the server closes the connection."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := connection.recv(65_536):
            found += piece
    connection.close()
    return found


def drip(connection: socket.socket, content: bytes) -> bytes:
    """Send the bytes one by one until the server closes the connection. Return its answer."""
    for byte in content:
        time.sleep(0.02)
        try:
            connection.send(bytes([byte]))
        except OSError:
            break
    return answered(connection)


def ready() -> Echo:
    app = Echo()
    app.hold.set()
    return app


@pytest.mark.slow
def test_a_head_that_is_too_slow_ends_the_connection() -> None:
    with served(ready(), head_seconds=0.3) as port:
        assert answered(sent(port, b"")).startswith(b"HTTP/1.1 408")
        assert drip(sent(port, b"POST / HTTP/1.1\r\n"), b"x-slow: " + b"y" * 500).startswith(b"HTTP/1.1 408")


@pytest.mark.slow
def test_the_head_of_a_later_request_has_the_same_deadline() -> None:
    with served(ready(), head_seconds=0.3) as port:
        connection = sent(port, FULL % 2 + b"ok")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 408" in drip(connection, b"POST / HTTP/1.1\r\nx-slow: " + b"y" * 500)


@pytest.mark.slow
def test_a_body_that_is_too_slow_is_refused() -> None:
    with served(ready(), body_seconds=0.3) as port:
        assert drip(sent(port, FULL % 1000), b"x" * 500).startswith(b"HTTP/1.1 408")
        assert answered(sent(port, b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")).endswith(b"\r\n2")


@pytest.mark.slow
def test_a_slow_answer_does_not_count_as_a_slow_request() -> None:
    app = Echo()
    with served(app, head_seconds=0.2, body_seconds=0.2) as port:
        connection = sent(port, FULL % 2 + b"ok")
        time.sleep(0.5)
        app.hold.set()
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        connection.close()


def test_connections_beyond_the_limit_are_refused_at_once() -> None:
    with served(ready(), connections=3) as port:
        held = [sent(port, b"P") for _ in range(3)]
        assert answered(sent(port, b"")).startswith(b"HTTP/1.1 503")
        for connection in held:
            connection.close()

        def free() -> bool:
            connection = sent(port, FULL % 2 + b"ok")
            with contextlib.closing(connection), contextlib.suppress(ConnectionError):
                return connection.recv(1000).startswith(b"HTTP/1.1 200")
            return False

        until(free)


def test_large_bodies_share_one_budget_and_small_ones_pass() -> None:
    app = Echo()
    with served(app, body_bytes=1_000_000, free_bytes=1000) as port:
        first = sent(port, FULL % 800_000 + b"x" * 800_000)
        until(lambda: app.running == 1)
        refused = answered(sent(port, FULL % 800_000 + b"x" * 300_000))
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"retry-after" in refused
        small = sent(port, FULL % 2 + b"ok")
        app.hold.set()
        assert small.recv(1000).startswith(b"HTTP/1.1 200")
        assert first.recv(1000).startswith(b"HTTP/1.1 200")
        after = sent(port, FULL % 800_000 + b"x" * 800_000)
        assert after.recv(1000).startswith(b"HTTP/1.1 200"), "the budget is free again"


def test_requests_at_the_same_time_are_limited_and_health_checks_are_not() -> None:
    app = Echo()
    with served(app, requests=2) as port:
        held = [sent(port, FULL % 2 + b"ok") for _ in range(2)]
        until(lambda: app.running == 2)
        assert answered(sent(port, FULL % 2 + b"ok")).startswith(b"HTTP/1.1 503")
        app.hold.set()
        check = sent(port, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert check.recv(1000).startswith(b"HTTP/1.1 200")
        assert all(connection.recv(1000).startswith(b"HTTP/1.1 200") for connection in held)


@pytest.mark.slow
def test_a_caller_that_does_not_read_its_answer_is_disconnected() -> None:
    app = ready()
    with served(app, write_seconds=0.3) as port:
        connection = sent(port, b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        time.sleep(1)
        assert len(answered(connection)) < 50_000_000


def test_a_refusal_after_the_begin_of_the_answer_does_not_write_a_second_one() -> None:
    async def scenario() -> list[Any]:
        messages: list[Any] = []

        async def early(_scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
            await send({"type": "http.response.start", "status": 413, "headers": []})
            assert (await receive())["type"] == "http.disconnect"
            await send({"type": "http.response.body", "body": b""})

        async def never() -> Any:
            await asyncio.sleep(3600)

        async def collect(message: Any) -> None:
            messages.append(message)

        await LimitedApp(early, HttpLimits(body_seconds=0.05))({"type": "http", "method": "POST", "headers": []}, never, collect)
        return messages

    assert [message["type"] for message in asyncio.run(scenario())] == ["http.response.start"]


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
def test_other_events_pass_through(kind: str) -> None:
    seen: list[str] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        seen.append(scope["type"])

    asyncio.run(LimitedApp(app, HttpLimits())({"type": kind}, None, None))  # type: ignore[arg-type]
    assert seen == [kind]


def taken(budget: Budget, line: str) -> int:
    """Take as much as possible for a line, one by one. Return the amount."""
    amount = 0
    while budget.take(line):
        amount += 1
    return amount


def test_one_line_alone_has_the_whole_budget() -> None:
    budget = Budget(10, 4)
    assert taken(budget, "a") == 10
    budget.give("a", 3)
    assert not budget.take("a", 4)
    assert budget.take("a", 3)


@pytest.mark.parametrize("lines", [2, 3, 10, 100])
def test_a_line_that_takes_all_it_can_leaves_every_other_line_its_share(lines: int) -> None:
    budget = Budget(1024, 64)
    budget.lines = lines
    total = 1024 + 64 * (lines - 1)
    flooded = taken(budget, "flood")
    share = total // 2 // lines
    assert flooded == total - share * (lines - 1)
    assert {taken(budget, f"line-{number}") for number in range(lines - 1)} == {share}
    budget.give("flood", flooded)
    assert taken(budget, "line-0") == flooded - share, "what is given back is there for all"


def test_a_budget_stays_within_the_limit_of_open_files() -> None:
    budgets = Budgets(HttpLimits(), files=300)
    budgets.share_among(100)
    assert sum(taken(budgets.connections, f"line-{number}") for number in range(100)) == 100
