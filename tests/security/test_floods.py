"""Callers without credentials cannot fill the memory of a server process, nor keep its connections."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import httpx
import pytest

from ratchet.local.router import LocalRouter
from tests.serving_site import Receiver, Site, route, started
from tests.waiting import until

LARGE = 7_900_000


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRouter]:
    site = Site()
    with started(tmp_path_factory.mktemp("flooded")) as router:
        router.set(route(site.backend("v1", 100)))
        yield router
    site.close()


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    receiver = Receiver(tmp_path_factory.mktemp("receiver"))
    receiver.start()
    yield receiver
    receiver.stop()


def half_sent(port: int, head: str, size: int) -> socket.socket:
    """Open a connection and send all but 100,000 bytes of a body, as far as the server reads them."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    with contextlib.suppress(OSError):
        connection.sendall(f"{head}\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode() + b" " * (size - 100_000))
    return connection


def is_open(connection: socket.socket) -> bool:
    """Whether the server has not closed the connection."""
    connection.settimeout(0)
    try:
        while connection.recv(65_536):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def ask(url: str) -> int:
    body = {"model": "helper", "messages": [{"role": "user", "content": "hi"}]}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=20, trust_env=False).status_code


@pytest.mark.slow
def test_half_sent_bodies_share_one_budget(router: LocalRouter) -> None:
    process = router.process.process.process()
    assert process is not None
    port = int(router.url().rpartition(":")[2])
    assert ask(router.url()) == 200
    before = process.memory_info().rss
    flood = [half_sent(port, "POST /v1/chat/completions HTTP/1.1", LARGE) for _ in range(50)]
    try:
        assert ask(router.url()) == 200, "a small request passes"
        grown = process.memory_info().rss - before
        print(f"the router grew by {grown / 1e6:.0f} MB")
        assert grown < 160_000_000
        until(lambda: sum(map(is_open, flood)) <= 8)
    finally:
        for connection in flood:
            connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("server", ["router", "receiver"])
def test_slow_connections_end(router: LocalRouter, receiver: Receiver, server: str) -> None:
    port = int(router.url().rpartition(":")[2]) if server == "router" else receiver.start()
    flood = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(600)]
    for connection in flood:
        connection.sendall(b"POST /v1/traces HTTP/1.1\r\n")
    try:
        assert ask(router.url()) == 200

        def remaining() -> int:
            for connection in flood:
                with contextlib.suppress(OSError):
                    connection.setblocking(True)
                    connection.send(b"x")  # further bytes do not extend the time
            return sum(map(is_open, flood))

        until(lambda: remaining() == 0, 40, pause=1)
    finally:
        for connection in flood:
            connection.close()


@pytest.mark.slow
def test_the_receiver_holds_no_more_than_its_budget(receiver: Receiver) -> None:
    process, port = receiver.lines.process.process(), receiver.start()
    assert process is not None
    head = f"POST /v1/traces HTTP/1.1\r\nauthorization: Bearer {'a' * 32}\r\ncontent-type: application/json"
    before = process.memory_info().rss
    flood = [half_sent(port, head, 15_000_000) for _ in range(30)]
    try:
        assert httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False).status_code == 200
        grown = process.memory_info().rss - before
        print(f"the receiver grew by {grown / 1e6:.0f} MB")
        assert grown < 160_000_000
    finally:
        for connection in flood:
            connection.close()
