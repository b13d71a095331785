"""The service with many idle lines, for `benchmarks/service.py`. All lines share one small stand-in for the model servers.

A hundred model servers would measure torch, not Ratchet. The stand-in is one HTTP process, which the records of every line name as the
process of its champion. So the service looks at a living process per line, as with real servers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

from ratchet.contracts.ids import canonical
from ratchet.contracts.schema import stamped
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config.home import Home
from ratchet.flows.engine.line import adopt
from ratchet.local.processes import own_record
from ratchet.local.service import ManagedProcess

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
from ratchet.runtime.serving.announcement import announce
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
            context = self.installation.context(loop)
            version = adopt(context, weights, "benchmark")
            context.registry.register(version, weights, {"ratchet.adopted": "true"}, {})  # as `ratchet adopt` does
            context.registry.alias(name, "champion", version.tag)
            place = self.home.serving(name) / "servers" / version.tag
            place.mkdir(parents=True)
            (place / "started.json").write_bytes(canonical(own_record(ready["pid"])))
            (place / "ready.json").write_bytes(stamped({"pid": ready["pid"], "port": ready["port"]}))

    def command(self, *arguments: str) -> list[str]:
        """Return a command line over all lines."""
        return [sys.executable, "-m", "ratchet.flows.cli.main", *arguments, *map(str, self.loops)]

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a command of this installation."""
        return {**os.environ, "RATCHET_HOME": str(self.home.root)}

    def start(self) -> tuple[subprocess.Popen[bytes], dict[str, str]]:
        """Start the service and wait until it has announced the lines. Return its process, and the base URL of each line's router."""
        log = (self.home.root.parent / "serve.log").open("wb")
        command = self.command("serve", "--json")
        process = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        text = b""
        while not text.rstrip().endswith(b"]"):
            piece = process.stdout.readline()
            if not piece:
                raise SystemExit(f"the service ended: {(self.home.root.parent / 'serve.log').read_text()[-2000:]}")
            text += piece
        rows = json.loads(text)
        return process, {row["line"]: row["where"] for row in rows if row["what"] == "chat (OpenAI API)"}

    def stop(self) -> None:
        """Stop the service and all its processes."""
        subprocess.run(self.command("serve", "--stop"), env=self.environment, check=False, capture_output=True)
        self.model.stop()


def model_servers(home: Home) -> set[int]:
    """Return the pids of the installation's model servers, which may be children of the service."""
    records = home.root.glob("lines/*/serving/servers/*/started.json")
    found = (ManagedProcess(path.parent, []).process() for path in records)
    return {process.pid for process in found if process is not None}


def processes(home: Home, service: int) -> dict[str, psutil.Process]:
    """Return the processes of an installation: the service with this pid, receiver and router, and the Prefect server."""
    folders = {"receiver": home.receiver_process, "router": home.router_process, "prefect": home.prefect / "server"}
    found = {name: process for name, folder in folders.items() if (process := ManagedProcess(folder, []).process()) is not None}
    return {"service": psutil.Process(service), **found}


def quiet(measured: Callable[[], dict[str, psutil.Process]], besides: set[int], seconds: float) -> dict[str, Any]:
    """Return CPU in shares of a core and memory in MB of the processes, over `seconds` seconds in which nothing is asked of them.

    `own` is the sum of service, receiver and router. The Prefect server is measured beside it; the model servers, whose pids are
    `besides`, are not. `memory_mb` is the
    resident memory (RSS), which counts the code of shared libraries once per process; the proportional share (PSS) counts it once.
    """
    found = measured()
    known = {one.pid for one in found.values()} | besides
    # The service is the parent of the other processes if it has started them. They are counted on their own.
    family = {
        name: [one, *(child for child in one.children(recursive=name != "service") if child.pid not in known)]
        for name, one in found.items()
    }

    def cpu() -> dict[str, float]:
        return {name: sum(sum(one.cpu_times()[:2]) for one in members) for name, members in family.items()}

    before, begun = cpu(), time.monotonic()
    time.sleep(seconds)
    after, past = cpu(), time.monotonic() - begun
    shares = {name: round((after[name] - before[name]) / past, 4) for name in family}
    memory = {name: round(sum(one.memory_info().rss for one in members) / 2**20) for name, members in family.items()}
    shared = {name: round(sum(one.memory_full_info().pss for one in members) / 2**20) for name, members in family.items()}
    own = [name for name in family if name != "prefect"]
    return {
        "seconds": round(past, 1),
        "cpu_share": shares,
        "memory_mb": memory,
        "own_cpu_share": round(sum(shares[name] for name in own), 4),
        "own_memory_mb": sum(memory[name] for name in own),
        "own_pss_mb": sum(shared[name] for name in own),
    }


def idle_lines(folder: Path, count: int, seconds: float) -> dict[str, Any]:
    """Return what a service with `count` idle lines costs, and how long its start and its stop take."""
    lines = ManyLines(folder, count)
    try:
        begun = time.monotonic()
        process, addresses = lines.start()
        started = time.monotonic() - begun
        body = {"messages": [{"role": "user", "content": "hi"}]}
        answered = sum(
            httpx.post(f"{url}/chat/completions", json={"model": line, **body}, trust_env=False, timeout=30).status_code == 200
            for line, url in addresses.items()
        )
        time.sleep(max(60.0, count))  # the deployments are registered, and the traces of the requests are ingested
        found = quiet(lambda: processes(lines.home, process.pid), {lines.model.ensure()["pid"]}, seconds)
    finally:
        begun = time.monotonic()
        lines.stop()
    return {
        "lines": count,
        "model_servers": "one stand-in process for all lines",
        "answered": answered,
        "start_s": round(started, 1),
        "stop_s": round(time.monotonic() - begun, 1),
        **found,
    }
