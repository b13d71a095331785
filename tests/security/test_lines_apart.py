"""The lines of an installation share a router and a receiver process, but neither tokens nor traces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from ratchet.contracts.data.senders import Role
from ratchet.contracts.loop import Loop
from ratchet.flows.composition.credentials import open_credentials
from ratchet.flows.composition.services import receiver_process, start_receiver
from ratchet.flows.config.home import Home
from ratchet.flows.config.load import load_loop
from ratchet.local.router import LocalRouter
from ratchet.materializer.receive.credentials import CredentialStore
from ratchet.materializer.receive.spool import read_envelope, spooled
from tests.serving_site import Site, route
from tests.waiting import until

LOOP = """
[line]
name = "{name}"
served_model = "helper"
[[sources]]
name = "router"
kind = "receiver"
[[rewards]]
name = "exact_match"
"""
LINES = ("a", "b")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    yield home
    for line in LINES:
        receiver_process(home).remove(line)


def loop_of(home: Home, line: str) -> Loop:
    path = home.root.parent / f"{line}.toml"
    path.write_text(LOOP.format(name=line))
    return load_loop(path)


def spool_of(home: Home, line: str) -> list[Path]:
    return spooled(home.spool(line)) if home.spool(line).exists() else []


def test_a_token_is_valid_on_the_port_of_its_line_only(home: Home) -> None:
    addresses = {line: start_receiver(loop_of(home, line), home) for line in LINES}
    assert len({read["pid"] for line in LINES if (read := json.loads(home.receiver(line).read_bytes()))}) == 1, "they share a process"
    tokens = {line: open_credentials(home, line).add("shop", [Role.TRACES]).read_text() for line in LINES}
    for line in LINES:
        for owner in LINES:
            before = {one: len(spool_of(home, one)) for one in LINES}
            headers = {"authorization": f"Bearer {tokens[owner]}", "host": addresses[owner].removeprefix("http://")}
            reply = httpx.post(f"{addresses[line]}/v1/traces", json={"resourceSpans": []}, headers=headers, trust_env=False)
            assert reply.status_code == (200 if owner == line else 401)
            stored = {one: len(spool_of(home, one)) - before[one] for one in LINES}
            assert stored == {one: int(one == line == owner) for one in LINES}


def test_the_traces_of_a_line_reach_its_own_spool_with_its_own_signature(home: Home) -> None:
    site, routers, counts = Site(), {}, {"a": 3, "b": 5}
    keys = set()
    try:
        for line in LINES:
            start_receiver(loop_of(home, line), home)
            store = CredentialStore(home.credentials(line), lambda: datetime.now(UTC))
            router = routers[line] = LocalRouter(home.serving(line), home.receiver(line), store.ensure_router())
            router.join(home.router_process, line)
            router.set(route(site.backend(f"version-of-{line}", 100)).model_copy(update={"line": line}))
            keys.add(home.span_keys(line).read_bytes())
        assert len({router.process.pid() for router in routers.values()}) == 1
        assert len(keys) == 2
        for line, router in routers.items():
            for _ in range(counts[line]):
                body = {"model": "helper", "messages": [{"role": "user", "content": "hi"}]}
                reply = httpx.post(f"{router.url()}/v1/chat/completions", json=body, trust_env=False, timeout=20)
                assert reply.json()["choices"][0]["message"]["content"] == f"from version-of-{line}"
    finally:
        for router in routers.values():
            router.stop()
        site.close()
    until(lambda: all(spool_of(home, line) for line in LINES))
    for line, other in (LINES, LINES[::-1]):
        content = b"".join(path.read_bytes() for path in spool_of(home, line))
        assert content.count(b"ratchet.model_version") == counts[line]
        assert f"version-of-{other}".encode() not in content
        assert {read_envelope(path).sender.name for path in spool_of(home, line)} == {"router"}
