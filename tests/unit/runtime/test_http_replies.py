"""Tests that a client reads no more of a reply than it accepts, with real servers that send too much."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.runtime.http_replies import AsyncBoundedTransport, BoundedTransport, ReplyTooLarge, strict_json

MOST = 100_000


class Server(BaseHTTPRequestHandler):
    """Answers /fits with MOST bytes, /zip with a compressed body, and everything else with bytes until the client leaves."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer a request."""
        body = b"x" * MOST
        self.send_response(200)
        if self.path == "/zip":
            body = gzip.compress(b"0" * 50_000_000)
            self.send_header("content-encoding", "gzip")
        if self.path != "/endless":
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_header("connection", "close")
        self.end_headers()
        try:
            for _ in range(10_000):
                self.wfile.write(body)
        except OSError:
            self.server.left.set()  # type: ignore[attr-defined]

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    """Run the server."""
    made = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    made.left = threading.Event()  # type: ignore[attr-defined]
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def _fetched(address: str, mode: str) -> bytes:
    if mode == "sync":
        with httpx.Client(transport=BoundedTransport(MOST), trust_env=False) as client:
            return client.get(address).content

    async def get() -> bytes:
        async with httpx.AsyncClient(transport=AsyncBoundedTransport(MOST), trust_env=False) as client:
            return (await client.get(address)).content

    return asyncio.run(get())


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_reply_is_read_up_to_its_limit(server: ThreadingHTTPServer, mode: str) -> None:
    address = f"http://127.0.0.1:{server.server_port}"
    assert len(_fetched(f"{address}/fits", mode)) == MOST
    with pytest.raises(ReplyTooLarge, match="larger than 100,000 bytes"):
        _fetched(f"{address}/endless", mode)
    assert server.left.wait(30), "the connection must be closed"  # type: ignore[attr-defined]
    with pytest.raises(ReplyTooLarge, match="compressed"):
        _fetched(f"{address}/zip", mode)


@pytest.mark.parametrize(
    "text", ["1e999", '{"total_tokens": 1e999}', "[NaN]", "-Infinity", "[" * 65 + "]" * 65, "[" * 100_000, "9" * 5000, "", "{", "\ud800"]
)
def test_documents_that_no_client_may_trust_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        strict_json(text)


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        st.lists,
        max_leaves=20,
    )
)
def test_every_other_document_is_read(value: object) -> None:
    import json

    assert strict_json(json.dumps(value)) == value
    assert strict_json(json.dumps(value).encode()) == value
