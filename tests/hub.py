"""A hub of models on loopback that speaks the part of Hugging Face's API that a download uses."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

COMMIT = "c0ffee" + "0" * 34


@dataclass
class Hub:
    """The models of a hub, and what was asked of it."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    """Content of the files of the one model `org/tiny` at the commit."""
    stated: dict[str, str] = field(default_factory=dict)
    """Digest that the hub states instead of the right one, by the name of a file."""
    card: dict[str, Any] = field(default_factory=lambda: {"license": "apache-2.0"})
    gated: str | bool = False
    token: str = ""
    """Token that a caller needs; empty if none."""
    cut: dict[str, int] = field(default_factory=dict)
    """Number of bytes after which the hub closes the connection, once, by the name of a file."""
    lengths: dict[str, int] = field(default_factory=dict)
    """Number of bytes that the hub states instead of the right one, by the name of a file."""
    changes: dict[str, Any] = field(default_factory=dict)
    """What the description has instead of the right values."""
    sent: list[str] = field(default_factory=list)
    """Names of the files whose content was sent."""
    seen_tokens: set[str] = field(default_factory=set)

    def listing(self) -> dict[str, Any]:
        """Return the model's description with the digests of its files."""
        siblings = []
        for name, content in self.files.items():
            git = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
            size = self.lengths.get(name, len(content))
            one: dict[str, Any] = {"rfilename": name, "size": size, "blobId": git}
            if name.endswith(".safetensors"):
                right = hashlib.sha256(content).hexdigest()
                one["lfs"] = {"sha256": self.stated.get(name, right), "size": size, "pointerSize": 130}
            siblings.append(one)
        told = {"id": "org/tiny", "modelId": "org/tiny", "sha": COMMIT, "siblings": siblings, "cardData": self.card, "gated": self.gated}
        return told | self.changes


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[Hub]

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, *, body: bool) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        given = self.headers.get("authorization", "").removeprefix("Bearer ")
        hub.seen_tokens.add(given)
        if hub.token and given != hub.token:
            return self._send(401, b"{}", {"X-Error-Code": "GatedRepo" if hub.gated else "RepoNotFound"}, body)
        if path.startswith("/api/models/"):
            name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            if name != "org/tiny":
                return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)
            if revision not in ("main", COMMIT):
                return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, body)
            return self._send(200, json.dumps(hub.listing()).encode(), {"content-type": "application/json"}, body)
        file = path.removeprefix(f"/org/tiny/resolve/{COMMIT}/")
        if file not in hub.files:
            return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"}, body)
        content = hub.files[file]
        if body:
            hub.sent.append(file)
        tag = hashlib.sha256(content).hexdigest()
        return self._send(200, content, {"etag": f'"{tag}"', "x-repo-commit": COMMIT}, body, hub.cut.pop(file, None) if body else None)

    def _send(self, status: int, content: bytes, headers: Mapping[str, str], body: bool, cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content[:cut])
        if cut is not None:
            self.close_connection = True


@contextmanager
def hub_of(folder: Path) -> Iterator[Hub]:
    """Serve the files of a model folder as `org/tiny` for the duration of the block."""
    hub = Hub(files={path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
