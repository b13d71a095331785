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
import pytest

from ratchet.contracts.ids import canonical
from ratchet.contracts.loop import Loop
from ratchet.flows.composition.services import receiver_is_alive, receiver_process, start_receiver, stop_line
from ratchet.flows.config.home import Home
from ratchet.flows.config.load import load_loop
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
FORMER = """
import os
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from ratchet.contracts.schema import stamped
from ratchet.runtime.artifacts import write_atomic
server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
write_atomic(Path("../receiver.json"), stamped({"pid": os.getpid(), "port": server.server_address[1]}))
server.serve_forever()
"""
"""Stands for the receiver process of an earlier release, which served one line and announced itself in the folder of the line."""


@pytest.fixture
def loop(tmp_path: Path) -> Loop:
    (tmp_path / "shop.toml").write_text(LOOP)
    return load_loop(tmp_path / "shop.toml")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    yield home
    receiver_process(home).process.stop(grace=1)


def former_receiver(home: Home) -> tuple[ManagedProcess, int]:
    """Start the receiver of an earlier release. Return it and its port."""
    folder = home.root / "lines" / "shop"
    former = ManagedProcess(folder / "receiver", ["-c", FORMER], ready=folder / "receiver.json")
    port = former.ensure()["port"]
    (folder / "receiver-port").write_bytes(canonical(port))
    return former, port


def test_receiver_that_an_earlier_release_has_started_for_the_line_is_replaced_at_its_address(home: Home, loop: Loop) -> None:
    former, port = former_receiver(home)
    assert not receiver_is_alive("shop", home)
    assert start_receiver(loop, home) == f"http://127.0.0.1:{port}"
    assert former.process() is None
    assert httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False).json() == {"status": "ok"}
    assert not (home.root / "lines" / "shop" / "receiver.json").exists()
    assert json.loads(home.receiver("shop").read_bytes())["port"] == port
    assert receiver_is_alive("shop", home)


def context_of(loop: Loop) -> Any:
    """Return a context whose router and model servers do not run."""
    router = SimpleNamespace(read=lambda _line: None, stop=lambda: None)
    return SimpleNamespace(loop=loop, line="shop", router=router, server=SimpleNamespace(running=list))


def test_stop_ends_a_receiver_of_an_earlier_release_and_one_of_this_release(home: Home, loop: Loop) -> None:
    former, port = former_receiver(home)
    assert stop_line(context_of(loop), home) == ["the receiver of shop"]
    assert former.process() is None
    assert start_receiver(loop, home) == f"http://127.0.0.1:{port}"
    process = receiver_process(home)
    assert stop_line(context_of(loop), home) == ["the receiver of shop"]
    assert process.process.process() is None
    assert stop_line(context_of(loop), home) == []
    assert start_receiver(loop, home) == f"http://127.0.0.1:{port}", "the port stays the same"


def test_receiver_whose_port_is_taken_names_the_remedy(home: Home, loop: Loop) -> None:
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    taken = loop.model_copy(update={"serving": loop.serving.model_copy(update={"receiver_port": server.server_address[1]})})
    with pytest.raises(Exception, match=r"the receiver cannot listen on .*set serving.receiver_port"):
        start_receiver(taken, home)
    server.shutdown()
    server.server_close()
    assert start_receiver(taken, home).endswith(f":{server.server_address[1]}")
