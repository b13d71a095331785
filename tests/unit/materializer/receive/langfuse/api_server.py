"""A server on loopback that answers like Langfuse's public API: observations with a cursor, scores of version 3 or 2."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

KEYS = ("pk-lf-1", "sk-lf-1")


class LangfuseServer:
    """The state of the server: its rows in the form of the API, and what a test wants to go wrong."""

    def __init__(self) -> None:
        self.observations: list[dict[str, Any]] = []
        self.scores: list[dict[str, Any]] = []
        self.has_v3 = True
        self.failures: list[tuple[int, dict[str, str]]] = []
        """Status and headers of the next replies."""
        self.body: bytes | None = None
        """Body of every reply instead of the right one."""
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.url = ""

    def reply(self, path: str, query: dict[str, str]) -> tuple[int, Any]:
        """Return (status, body) of a request."""
        limit, begin = int(query.get("limit", 50)), int(query.get("cursor", 0))
        if path == "/api/public/v2/observations":
            rows = [row for row in self.observations if query["fromStartTime"] <= row["startTime"] < query["toStartTime"]]
        elif path == "/api/public/v3/scores" and self.has_v3:
            rows = [row for row in self.scores if query["fromTimestamp"] <= row["timestamp"] < query["toTimestamp"]]
        elif path == "/api/public/v2/scores":
            rows, begin = self.scores, (int(query["page"]) - 1) * limit
            return 200, {"data": rows[begin : begin + limit], "meta": {"page": int(query["page"]), "totalPages": -(-len(rows) // limit)}}
        else:
            return 404, {"message": "not found"}
        more = {"cursor": str(begin + limit)} if begin + limit < len(rows) else {}
        return 200, {"data": rows[begin : begin + limit], "meta": more}


@contextmanager
def langfuse_server() -> Iterator[LangfuseServer]:
    """Run a server until the block ends."""
    state = LangfuseServer()
    wanted = "Basic " + base64.b64encode(":".join(KEYS).encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            state.requests.append((parts.path, query))
            headers: dict[str, str] = {}
            if state.failures:
                status, headers = state.failures.pop(0)
                body = b"{}"
            elif self.headers.get("Authorization") != wanted:
                status, body = 401, b"{}"
            else:
                status, found = state.reply(parts.path, query) if state.body is None else (200, None)
                body = json.dumps(found).encode() if state.body is None else state.body
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
