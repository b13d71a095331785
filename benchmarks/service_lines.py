"""An installation with many lines for `benchmarks/service.py`. All lines share one small stand-in for the model servers.

A hundred model servers would measure torch, not Ratchet. The stand-in is one HTTP process, which the records of every line name as the
process of its champion. So the service looks at a living process per line, as with real servers.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

from contracts.ids import canonical
from contracts.schema import stamped
from flows.composition.installation import Installation
from flows.config.home import Home
from flows.engine.line import adopt
from local.processes import own_record
from local.service import ManagedProcess

LOOP = """
[line]
name = "{name}"
served_model = "{name}"
[[sources]]
name = "router"
kind = "receiver"
[[rewards]]
name = "exact_match"
"""
MODEL = """
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from runtime.serving.announcement import announce
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps({"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
announce(server.server_address[1])
server.serve_forever()
"""


class ManyLines:
    """A home folder with `count` adopted lines, in `folder`."""

    def __init__(self, folder: Path, count: int) -> None:
        self.home = Home(folder / "home")
        self.home.root.mkdir(parents=True)
        self.names = [f"line-{number:03d}" for number in range(count)]
        self.loops = [folder / f"{name}.toml" for name in self.names]
        self.model = ManagedProcess(folder / "model", ["-c", MODEL])
        weights = folder / "weights"
        weights.mkdir()
        (weights / "model.safetensors").write_bytes(b"\0" * 64)
        (weights / "config.json").write_text("{}")
        self.installation = Installation(self.home)
        ready = self.model.ensure()
        for name, loop in zip(self.names, self.loops, strict=True):
            loop.write_text(LOOP.format(name=name), encoding="utf-8")
            version = adopt(self.installation.context(loop), weights, "benchmark")
            place = self.home.serving(name) / "servers" / version.tag
            place.mkdir(parents=True)
            (place / "started.json").write_bytes(canonical(own_record(ready["pid"])))
            (place / "ready.json").write_bytes(stamped({"pid": ready["pid"], "port": ready["port"]}))

    def environment(self, base: dict[str, str]) -> dict[str, str]:
        """Return the environment of a command of this installation."""
        return {**base, "RATCHET_HOME": str(self.home.root)}

    def command(self, *arguments: str) -> list[str]:
        """Return a command line over all lines."""
        return [sys.executable, "-m", "flows.cli.main", *arguments, *map(str, self.loops)]

    def stop(self, environment: dict[str, str]) -> None:
        """Stop the service and all its processes."""
        subprocess.run(self.command("serve", "--stop"), env=environment, check=False, capture_output=True)
        self.model.stop()


def processes(home: Home) -> dict[str, psutil.Process]:
    """Return the receiver and the router process of an installation."""
    found = {"receiver": ManagedProcess(home.receiver_process, []), "router": ManagedProcess(home.router_process, [])}
    return {name: process for name, one in found.items() if (process := one.process()) is not None}
