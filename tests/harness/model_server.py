"""A model server on loopback that answers by the script, in three protocols, and a receiver.

One log has calls and exports in their order.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.harness import replies, truth
from tests.harness.script import SCENES, Scene

_PATHS = {"/v1/chat/completions": truth.of_chat, "/v1/responses": truth.of_responses, "/v1/messages": truth.of_anthropic}
_EXPORTS = ("/v1/traces", "/v1/logs", "/litellm", "/v1/metrics", "/api/public/otel/v1/traces")


@dataclass(frozen=True)
class Export:
    """A request to the receiver, decompressed."""

    path: str
    kind: str
    """Content type."""
    body: bytes


@dataclass
class Log:
    """Calls, with the truth of each, and exports, in the order of their arrival."""

    entries: list[dict[str, Any] | Export] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """Requests that the server did not understand. One of them fails the harness."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def calls(self) -> list[tuple[dict[str, Any], list[Export]]]:
        """Return each call with the exports that arrived between it and the next call."""
        found: list[tuple[dict[str, Any], list[Export]]] = []
        for entry in self.entries:
            if isinstance(entry, Export):
                if found:
                    found[-1][1].append(entry)
            else:
                found.append((entry, []))
        return found


@contextlib.contextmanager
def serving(log: Log) -> Iterator[str]:
    """Yield the address of server and receiver, which write to `log`."""

    class Handler(_Handler):
        target = log

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    target: Log

    def do_POST(self) -> None:
        body = self._body()
        path = self.path.partition("?")[0]
        if path in _EXPORTS:
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            if path != "/v1/metrics":
                with self.target.lock:
                    self.target.entries.append(Export(path, str(self.headers.get("content-type")), body))
            self._send(200, b"{}" if "json" in str(self.headers.get("content-type")) else b"")
            return
        try:
            self._answer(path, json.loads(body))
        except (LookupError, ValueError, TypeError, StopIteration) as error:
            self.target.errors.append(f"{path}: {error!r} in {body[:2000]!r}")
            self._send(501, b'{"error": {"message": "not in the script"}}')

    def do_GET(self) -> None:
        with self.target.lock:
            exports = sum(isinstance(entry, Export) for entry in self.target.entries)
            counts = {"calls": len(self.target.entries) - exports, "exports": exports}
        self._send(200, json.dumps(counts).encode())

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, path: str, request: dict[str, Any]) -> None:
        messages, tools = _PATHS[path](request)
        scene = scene_of(messages)
        called = bool(scene.calls) and messages[-1]["role"] != "tool"
        with self.target.lock:
            number = sum(isinstance(entry, dict) for entry in self.target.entries)
            said = _spoken(scene, called, number, path, str(request["model"]))
            self.target.entries.append(_entry(scene, said, path, request, messages, tools))
        if scene.fails:
            self._send(400, b'{"type": "error", "error": {"type": "invalid_request_error", "message": "The berth is closed."}}')
        elif request.get("stream"):
            self._stream(path, said, request)
        else:
            reply = {
                "/v1/chat/completions": lambda: replies.chat(said),
                "/v1/responses": lambda: replies.responses(said, request),
                "/v1/messages": lambda: replies.anthropic(said),
            }[path]()
            self._send(200, json.dumps(reply, ensure_ascii=False).encode())

    def _stream(self, path: str, said: replies.Spoken, request: dict[str, Any]) -> None:
        usage = bool((request.get("stream_options") or {}).get("include_usage"))
        events = {
            "/v1/chat/completions": lambda: replies.chat_stream(said, usage),
            "/v1/responses": lambda: replies.responses_stream(said, request),
            "/v1/messages": lambda: replies.anthropic_stream(said),
        }[path]()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in events:
            self.wfile.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def scene_of(messages: list[truth.Message]) -> Scene:
    """Return the scene of the last question. Raises StopIteration for a question that the script does not have."""
    asked = next(one["text"] for one in reversed(messages) if one["role"] == "user")
    return next(scene for scene in SCENES.values() if scene.prompt in asked)


def _spoken(scene: Scene, called: bool, number: int, path: str, model: str) -> replies.Spoken:
    start = {"/v1/chat/completions": "chatcmpl-", "/v1/responses": "resp_", "/v1/messages": "msg_"}[path]
    letters = "toolu_" if path == "/v1/messages" else "call_"
    calls = tuple((f"{letters}{number:02}{place}x7Gh", call) for place, call in enumerate(scene.calls)) if called else ()
    text = scene.before if called else scene.text
    return replies.Spoken(f"{start}{number:04}aBcD", model, text, calls, scene.reasoning, 2101 + 7 * number, 3307 + 7 * number)


def _entry(
    scene: Scene, said: replies.Spoken, path: str, request: dict[str, Any], messages: list[truth.Message], tools: list[Any]
) -> dict[str, Any]:
    """Return the truth of a call."""
    calls = [[call.name, call.arguments, name] for name, call in said.calls]
    return {
        "scene": scene.name,
        "api": path.removeprefix("/v1/") + (", streamed" if request.get("stream") else ""),
        "messages": messages,
        "answer": None if scene.fails else truth.message("assistant", said.text, calls=calls),
        "tools": tools,
        "model": said.model,
        "input_tokens": said.input_tokens,
        "output_tokens": said.output_tokens,
        "response_id": said.id,
        "status": "error" if scene.fails else "ok",
        "user": scene.user,
        "session": scene.session,
        "consent": scene.consent,
        "reasoning": asdict(said)["reasoning"],
    }
