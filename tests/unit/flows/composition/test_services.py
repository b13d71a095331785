"""Tests of the start and the stop of what answers for a line."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest

from ratchet.contracts.errors import Retryable
from ratchet.contracts.fakes import MemoryArtifacts, fake_model
from ratchet.contracts.loop import Loop
from ratchet.contracts.serving import ModelVersion
from ratchet.flows.composition.services import receiver_is_alive, receiver_process, start_receiver, stop_line
from ratchet.flows.config.home import Home
from ratchet.flows.config.load import load_loop
from ratchet.flows.core.folds.line import LineView
from ratchet.local.server import EmbeddedServer
from ratchet.local.service import ManagedProcess

pytestmark = pytest.mark.slow

LOOP = """
[line]
name = "shop"
served_model = "shop"
[[sources]]
name = "router"
kind = "receiver"
[[rewards]]
name = "exact_match"
"""


@pytest.fixture
def loop(tmp_path: Path) -> Loop:
    (tmp_path / "shop.toml").write_text(LOOP)
    return load_loop(tmp_path / "shop.toml")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    yield home
    receiver_process(home).process.stop(grace=1)


def context_of(loop: Loop) -> Any:
    """Return a context whose router and model servers do not run."""
    router = SimpleNamespace(read=lambda _line: None, stop=lambda: None)
    nothing = lambda: LineView("shop", 0)  # noqa: E731
    return SimpleNamespace(loop=loop, line="shop", router=router, server=SimpleNamespace(running=list), line_view=nothing)


def test_a_line_is_stopped_and_started_again_at_its_address(home: Home, loop: Loop) -> None:
    assert not receiver_is_alive("shop", home)
    url = start_receiver(loop, home)
    assert receiver_is_alive("shop", home)
    assert httpx.get(f"{url}/healthz", trust_env=False).json() == {"status": "ok"}
    assert f"http://127.0.0.1:{json.loads(home.receiver('shop').read_bytes())['port']}" == url
    process = receiver_process(home)
    assert stop_line(context_of(loop), home) == ["the receiver of shop"]
    assert process.process.process() is None
    assert stop_line(context_of(loop), home) == []
    assert start_receiver(loop, home) == url, "the port stays the same"


class Loading(EmbeddedServer):
    """A server whose processes never get ready."""

    def _service(self, tag: str, *_: Any, **__: Any) -> ManagedProcess:
        return ManagedProcess(self._folder / tag, ["-c", "import time; time.sleep(600)"])


def test_a_server_that_still_loads_is_stopped_too(home: Home, loop: Loop, tmp_path: Path) -> None:
    """The service has ended while it waited for the server."""
    server, context = Loading(tmp_path / "serving", MemoryArtifacts(), "shop"), context_of(loop)
    one, two = (ModelVersion(line="shop", number=n, tag=f"v{n}", model=fake_model(f"m{n}"), cycle=None) for n in (1, 2))
    context.server, context.line_view = server, lambda: LineView("shop", 1, champion=two, previous=one)
    loads = server._service(one.tag)
    with loads.locked():
        started = loads._start()
    assert server.running() == []
    assert stop_line(context, home) == [], "nothing answered"
    assert not psutil.pid_exists(started.pid)

    def broken() -> LineView:
        raise Retryable("the ledger is away")

    context.line_view = broken
    assert stop_line(context, home) == [], "what runs is stopped without the ledger"


def test_receiver_whose_port_is_taken_names_the_remedy(home: Home, loop: Loop) -> None:
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    taken = loop.model_copy(update={"serving": loop.serving.model_copy(update={"receiver_port": server.server_address[1]})})
    with pytest.raises(Exception, match=r"the receiver cannot listen on .*set serving.receiver_port"):
        start_receiver(taken, home)
    server.shutdown()
    server.server_close()
    assert start_receiver(taken, home).endswith(f":{server.server_address[1]}")
