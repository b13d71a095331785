"""The control port of a replica: whether it is ready, and its metrics. Network policies let only the kubelet and Prometheus connect."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ratchet.router.replica.state import LineFiles

TIMEOUT = 10.0
"""Seconds without a byte after which a connection is closed."""


def serve_control(lines: Sequence[LineFiles], confirmed: Callable[[], float], host: str, port: int) -> ThreadingHTTPServer:
    """Answer on the control port, in threads. Port 0 means any free port.

    `/ready` answers 200 if all lines are served, and 503 with the reasons otherwise. `/metrics` has the text format of Prometheus.
    `confirmed` returns when the exchange last confirmed the routes, in seconds since the epoch.
    """
    files = {line.name: line for line in lines}

    class Handler(BaseHTTPRequestHandler):
        timeout = TIMEOUT

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/ready":
                at, now = confirmed(), time.time()
                reasons = [f"{name}: {reason}" for name, line in files.items() if (reason := line.obstacle(at, now))]
                self._answer(503 if reasons else 200, "text/plain", "\n".join(reasons) or "ready")
            elif path == "/metrics":
                self._answer(200, "text/plain; version=0.0.4", metrics({name: line.figures() for name, line in files.items()}))
            else:
                self._answer(404, "text/plain", "there is nothing here")

        def _answer(self, status: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the name in the base class
            """Log nothing: the kubelet asks every few seconds."""

    server = ThreadingHTTPServer((host, port), Handler)
    threading.Thread(target=server.serve_forever, name="control", daemon=True).start()
    return server


def metrics(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the figures of the lines, as the router reports them, in the text format of Prometheus.

    Source: Prometheus exposition formats, text version 0.0.4.
    """
    rows: list[str] = []

    def family(name: str, kind: str, text: str, samples: Sequence[tuple[Mapping[str, str], float]]) -> None:
        rows.extend([f"# HELP {name} {text}", f"# TYPE {name} {kind}"])
        for labels, value in samples:
            named = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
            rows.append(f"{name}{{{named}}} {value:g}")

    def each(key: str, label: str) -> list[tuple[Mapping[str, str], float]]:
        return [({"line": line, label: str(of)}, n) for line, found in figures.items() for of, n in dict(found.get(key) or {}).items()]

    waiting = [({"line": line}, float(found.get("waiting_bytes") or 0)) for line, found in figures.items()]
    family("ratchet_router_requests_in_flight", "gauge", "Requests that are not answered completely.", each("in_flight", "version"))
    family("ratchet_router_waiting_bytes", "gauge", "Bytes of traces that the receiver does not have yet.", waiting)
    family("ratchet_router_dropped_traces_total", "counter", "Traces that are lost.", each("dropped_traces", "reason"))
    family("ratchet_router_recent_requests", "gauge", "Requests of the last 15 minutes by outcome.", _outcomes(figures))
    return "\n".join(rows) + "\n"


def _outcomes(figures: Mapping[str, Mapping[str, Any]]) -> list[tuple[Mapping[str, str], float]]:
    sums: dict[tuple[str, str, str], int] = {}
    for line, found in figures.items():
        for _, tag, requests, errors, refused, _latencies in (found.get("outcomes") or {}).get("minutes", ()):
            for outcome, n in (("ok", requests - errors - refused), ("error", errors), ("refused", refused)):
                sums[line, str(tag), outcome] = sums.get((line, str(tag), outcome), 0) + int(n)
    return [({"line": line, "version": tag, "outcome": outcome}, n) for (line, tag, outcome), n in sums.items()]


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
