"""HTTP servers for tests of a router: model servers, and a receiver of its traces."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ratchet.contracts.serving import Backend, Route
from ratchet.local.line_process import LineProcess
from ratchet.local.router import LocalRouter
from ratchet.materializer.receive.credentials import CredentialStore
from ratchet.materializer.receive.settings import DRAIN_SECONDS, ReceiverLine
from ratchet.runtime.serving.settings import ANSWERS


class Site:
    """HTTP servers in threads, used as backends and as the receiver of traces.

    `reply` computes the answer of a backend from its name and the request. An answer to a streamed request is a sequence of byte pieces,
    each of which is sent when it is computed. If it raises ConnectionError, the backend closes the connection in the middle.
    """

    def __init__(self) -> None:
        self.servers: list[ThreadingHTTPServer] = []
        self.spans: list[Any] = []
        self.tokens: set[str] = set()
        self.asked: list[dict[str, Any]] = []
        self.reply: Callable[[str, dict[str, Any]], tuple[int, bytes | Iterable[bytes]]] = self.answer

    def answer(self, name: str, body: dict[str, Any]) -> tuple[int, bytes]:
        usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        choice = {"index": 0, "message": {"role": "assistant", "content": f"from {name}"}, "finish_reason": "stop"}
        return 200, json.dumps({"id": "chatcmpl-1", "model": body["model"], "choices": [choice], "usage": usage}).encode()

    def open(self, handle: Callable[[BaseHTTPRequestHandler, bytes], tuple[int, bytes | Iterable[bytes]]], port: int = 0) -> int:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                status, content = handle(self, self.rfile.read(int(self.headers["content-length"])))
                self.send_response(status)
                if isinstance(content, bytes):
                    self.send_header("content-length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                    return
                self.send_header("content-type", "text/event-stream; charset=utf-8")
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    for piece in content:
                        self.wfile.write(piece)
                        self.wfile.flush()

            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return int(server.server_address[1])

    def backend(self, name: str, weight: float) -> Backend:
        def handle(_request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes | Iterable[bytes]]:
            self.asked.append(json.loads(body))
            return self.reply(name, self.asked[-1])

        port = self.open(handle)
        return Backend(tag=name, url=f"http://127.0.0.1:{port}", model=f"model-{name}", weight=weight)

    def receive(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        assert request.path == "/v1/traces"
        self.tokens.add(request.headers["authorization"])
        message = ExportTraceServiceRequest.FromString(body)
        self.spans += [span for resource in message.resource_spans for scope in resource.scope_spans for span in scope.spans]
        return 200, b""

    def attributes(self) -> list[dict[str, Any]]:
        return [{kv.key: getattr(kv.value, str(kv.value.WhichOneof("value"))) for kv in span.attributes} for span in self.spans]

    def close(self) -> None:
        for server in self.servers:
            server.shutdown()
            server.server_close()


class Receiver:
    """A receiver process for one line, with its files in `folder`. It is not started yet. `token` is the token file of its router."""

    def __init__(self, folder: Path) -> None:
        store = CredentialStore(folder / "credentials.json", lambda: datetime.now(UTC))
        self.folder = folder
        self.token = store.ensure_router()
        self.lines = LineProcess(folder / "receiver", ["-m", "ratchet.materializer.receive.receiver", "--folder"], DRAIN_SECONDS)

    @property
    def address(self) -> Path:
        """The file in which the receiver announces its port."""
        return self.folder / "receiver" / ANSWERS / "line.json"

    def start(self) -> int:
        """Start the receiver unless it runs, and return its port."""
        base = self.lines.settings
        files = {name: os.path.relpath(self.folder / name, base) for name in ("spool", "credentials.json")}
        return self.lines.serve("line", ReceiverLine(spool=files["spool"], credentials=files["credentials.json"]))

    def stop(self) -> None:
        """Stop the receiver."""
        self.lines.remove("line")


@contextlib.contextmanager
def started(folder: Path, receiver: Receiver | None = None, **options: Any) -> Iterator[LocalRouter]:
    """Yield a router with its files in `folder`, and stop it afterwards. Its answers name their version.

    Without a `receiver`, its traces go to the receiver whose address a test writes to `receiver.json`, with an invented token.
    """
    (folder / "token").write_text("secret")
    address, token = (receiver.address, receiver.token) if receiver else (folder / "receiver.json", folder / "token")
    router = LocalRouter(folder / "serving", address, token, **{"name_versions": True, **options})
    try:
        yield router
    finally:
        router.stop()


@contextlib.contextmanager
def traced_site(folder: Path) -> Iterator[tuple[LocalRouter, Site]]:
    """Yield a router and the site that receives its traces, and stop both afterwards."""
    site = Site()
    (folder / "receiver.json").write_text(json.dumps({"port": site.open(site.receive)}))
    with started(folder) as router:
        yield router, site
    site.close()


def route(*backends: Backend, annotation: str = "test") -> Route:
    """Return a route over these backends."""
    return Route(line="line", served_model="helper", backends=backends, annotation=annotation)
