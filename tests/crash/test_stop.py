"""Stopping a process of ours cuts no answer: neither a rollout step, nor a rollback, nor a restart."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from ratchet.contracts.serving import Backend, Capabilities, Endpoint, ModelVersion
from ratchet.flows.composition.ports import SystemClock
from ratchet.flows.engine.reconcile import reconcile
from ratchet.local.router import LocalRouter
from ratchet.local.service import ManagedProcess
from ratchet.runtime.json_files import read_json
from tests.serving_site import Site, route, started
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.waiting import until

MODEL = """
import json, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ratchet.runtime.serving.announcement import announce
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        seconds = float(body["messages"][0]["content"])
        self.send_response(200)
        if not body.get("stream"):
            time.sleep(seconds)
            content = json.dumps({"choices": [{"message": {"content": sys.argv[1]}, "finish_reason": "stop"}]}).encode()
            self.send_header("content-length", str(len(content))); self.end_headers(); self.wfile.write(content)
            return
        self.send_header("content-type", "text/event-stream"); self.end_headers()
        for _ in range(10):
            time.sleep(seconds / 10)
            chunk = {"choices": [{"index": 0, "delta": {"content": sys.argv[1]}}]}
            self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\\n\\n")
        self.wfile.write(b"data: [DONE]\\n\\n")
    def log_message(self, *_): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
announce(server.server_address[1])
server.serve_forever()
"""
"""A model server that takes as many seconds as the question says, and that ends at once when it gets SIGTERM."""


class SlowServer:
    """`Server` whose processes run MODEL."""

    capabilities = Capabilities(sampling=False, seed=False, logprobs=False)

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.stopped: list[str] = []

    def _process(self, tag: str) -> ManagedProcess:
        return ManagedProcess(self._folder / tag, ["-c", MODEL, tag])

    def ensure(self, version: ModelVersion) -> Endpoint:
        return self.start(version.tag)

    def start(self, tag: str) -> Endpoint:
        return Endpoint(tag=tag, url=f"http://127.0.0.1:{self._process(tag).ensure()['port']}", model=tag)

    def running(self) -> list[Endpoint]:
        ready = {path.name: self._process(path.name).ready() for path in sorted(self._folder.glob("*"))}
        return [Endpoint(tag=tag, url=f"http://127.0.0.1:{one['port']}", model=tag) for tag, one in ready.items() if one]

    def stop(self, tag: str) -> None:
        self.stopped.append(tag)
        self._process(tag).remove()


class Callers:
    """Callers of answers that take `seconds` seconds, half of them streamed. `cut` has the answers that were not complete."""

    def __init__(self, url: str, count: int, seconds: float) -> None:
        self.url = url
        self.seconds = seconds
        self.cut: list[str] = []
        self.whole = 0
        self._threads = [threading.Thread(target=self._ask, args=(number % 2 == 0,)) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self, streamed: bool) -> None:
        body = {"model": "helper", "messages": [{"role": "user", "content": str(self.seconds)}], "stream": streamed}
        try:
            reply = httpx.post(f"{self.url}/v1/chat/completions", json=body, trust_env=False, timeout=60)
        except httpx.HTTPError as error:
            self.cut.append(repr(error))
            return
        if reply.status_code == 200 and (not streamed or reply.text.endswith("[DONE]\n\n")):
            self.whole += 1
        else:
            self.cut.append(f"{reply.status_code} {reply.text[-200:]}")

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


@pytest.fixture
def router(tmp_path: Path) -> Iterator[LocalRouter]:
    with started(tmp_path) as router:
        yield router


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SlowServer]:
    server = SlowServer(tmp_path / "servers")
    yield server
    for endpoint in server.running():
        server.stop(endpoint.tag)


def in_flight(router: LocalRouter) -> dict[str, int]:
    """The requests in flight as the router process last reported them."""
    content = read_json(router._folder / "state.json")
    return dict(content["in_flight"]) if content else {}


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [8, pytest.param(20, marks=pytest.mark.soak)])
def test_a_change_of_the_route_cuts_no_answer_of_the_version_that_leaves(
    router: LocalRouter, server: SlowServer, tmp_path: Path, seconds: float
) -> None:
    """A promotion and a rollback both exclude a version from the route, whose server the reconciler then stops."""
    sim = SimulatedLine(Scenario(seed=1))
    line = sim.context.line_view()
    assert line.champion is not None
    for name, value in {"server": server, "router": router, "clock": SystemClock(), "scratch": tmp_path}.items():
        object.__setattr__(sim.context, name, value)

    def to(endpoint: Endpoint) -> Backend:
        return Backend(tag=endpoint.tag, url=endpoint.url, model=endpoint.model, weight=100)

    for leaving in ("old-champion", "candidate"):
        router.set(route(to(server.start(leaving))).model_copy(update={"line": "sim"}))
        callers = Callers(router.url(), 8, seconds)
        until(lambda: in_flight(router) == {leaving: 8})  # noqa: B023
        router.set(route(to(server.ensure(line.champion))).model_copy(update={"line": "sim"}))
        until(lambda: (reconcile(sim.context), leaving in server.stopped)[1], 60, pause=0.1)  # noqa: B023
        assert in_flight(router).get(leaving, 0) == 0
        callers.join()
        assert (callers.cut, callers.whole) == ([], 8)


APP = """
import asyncio, sys
from ratchet.runtime.serving.asgi import run_app
from ratchet.runtime.http_limits import HttpLimits
async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"be", "more_body": True})
        await asyncio.sleep(1)
        await send({"type": "http.response.body", "body": b"nd"})
    else:
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
run_app(app, 0, "the application", "", HttpLimits())
"""


def test_a_process_that_is_told_to_stop_finishes_its_answers_and_takes_no_new_ones(tmp_path: Path) -> None:
    process = ManagedProcess(tmp_path / "process", ["-c", APP])
    ready = process.ensure()
    url = f"http://127.0.0.1:{ready['port']}"
    with httpx.stream("GET", url, trust_env=False) as reply:
        parts = reply.iter_bytes()
        assert next(parts) == b"be"
        os.kill(ready["pid"], signal.SIGTERM)

        def refused() -> bool:
            try:
                httpx.get(url, trust_env=False, timeout=0.2)
            except httpx.ConnectError:
                return True
            except httpx.HTTPError:
                pass
            return False

        until(refused)
        assert b"".join(parts) == b"nd"
    until(lambda: process.process() is None)


def test_a_router_that_is_told_to_stop_finishes_its_streams_and_sends_its_traces(router: LocalRouter, tmp_path: Path) -> None:
    site, hold = Site(), threading.Event()
    (tmp_path / "receiver.json").write_text(json.dumps({"port": site.open(site.receive)}))

    def pieces() -> Iterator[bytes]:
        yield b'data: {"choices": [{"index": 0, "delta": {"content": "one "}}]}\n\n'
        hold.wait(30)
        yield b'data: {"choices": [{"index": 0, "delta": {"content": "two"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'

    site.reply = lambda _name, _body: (200, pieces())
    router.set(route(site.backend("v1", 100)))
    process = router.process.process.process()
    assert process is not None
    body = {"model": "helper", "messages": [], "stream": True}
    with httpx.stream("POST", f"{router.url()}/v1/chat/completions", json=body, trust_env=False, timeout=30) as reply:
        parts = reply.iter_bytes()
        assert b"one" in next(parts)
        process.send_signal(signal.SIGTERM)
        until(lambda: not [one for one in process.net_connections() if one.status == psutil.CONN_LISTEN])
        hold.set()
        assert b"".join(parts).endswith(b"[DONE]\n\n")
    until(lambda: router.process.process.process() is None)
    assert len(site.spans) == 1
    assert "ratchet.partial" not in site.attributes()[0]
    site.close()
