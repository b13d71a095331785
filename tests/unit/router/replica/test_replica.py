"""Tests of a replica of the router: when it is ready, its reports, and its metrics."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from ratchet.contracts.schema import stamped, unstamped
from ratchet.router.replica.announcer import CHANGED_SECONDS, SAME_SECONDS, Announcer
from ratchet.router.replica.control import metrics, serve_control
from ratchet.router.replica.state import ROUTE_SECONDS, LineFiles
from ratchet.router.settings import RouterLine
from ratchet.runtime.watched_file import stamp_of


@pytest.fixture
def line(tmp_path: Path) -> LineFiles:
    return LineFiles(tmp_path / "state", tmp_path / "keys", "http://receiver:4318", "shop", 8080)


def published() -> RouterLine:
    return RouterLine(folder="", receiver="", token="", assume_consent=True, name_versions=False, deadline=30, per_caller=4, spool_mb=8)


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def serve(line: LineFiles) -> None:
    """Write the file that the router process writes when it answers for the line."""
    write(line.root / "answers" / "shop.json", json.dumps({"pid": os.getpid(), "port": 8080}).encode())


def test_the_published_settings_become_those_of_the_process(line: LineFiles) -> None:
    line.settle()
    assert not (line.root / "lines").exists(), "without published settings there is nothing to serve"
    write(line.folder / "router.json", stamped(published()))
    line.settle()
    file = line.root / "lines" / "shop.json"
    settings = unstamped(file.read_bytes(), "settings")
    assert (settings["port"], settings["host"], settings["assume_consent"]) == (8080, "0.0.0.0", True)
    assert (file.parent / settings["folder"]).resolve() == line.folder.resolve()
    assert json.loads((file.parent / settings["receiver"]).read_bytes())["url"] == "http://receiver:4318"
    before = stamp_of(file)
    line.settle()
    assert stamp_of(file) == before, "unchanged settings do not open the line anew"


def test_a_replica_is_ready_with_a_line_and_a_recent_route(line: LineFiles) -> None:
    now = 1_000_000.0
    assert "settings" in line.obstacle(now, now)
    serve(line)
    assert "route" in line.obstacle(now, now)
    write(line.folder / "route.json", b"{}")
    assert line.obstacle(now, now) == ""
    assert line.obstacle(now - ROUTE_SECONDS + 1, now) == ""
    assert "last confirmed" in line.obstacle(now - ROUTE_SECONDS - 1, now)


def test_requests_in_flight_are_told_only_for_the_present_route(line: LineFiles) -> None:
    assert line.account() == {"route": None, "in_flight": None, "forwarded": None}
    write(line.folder / "route.json", b"{}")
    report = {"pid": os.getpid(), "route": stamp_of(line.folder / "route.json"), "in_flight": {"a": 2}}
    write(line.folder / "state.json", stamped(report))
    assert line.account()["in_flight"] == {"a": 2}
    write(line.folder / "route.json", b'{"other": 1}')
    assert line.account()["in_flight"] is None


class Told:
    """An exchange that keeps the reports."""

    def __init__(self) -> None:
        self.accounts: list[dict[str, object]] = []

    def report(self, _line: str, _replica: str, account: bytes) -> None:
        self.accounts.append(dict(unstamped(account, "account")))


def test_an_account_is_told_when_it_changes_and_from_time_to_time(line: LineFiles) -> None:
    told = Told()
    announcer = Announcer(told, "router-0", [line])  # type: ignore[arg-type]
    announcer.look(0.0)
    announcer.look(1.0)
    assert len(told.accounts) == 1
    write(line.folder / "forwarded.json", b"counts")
    announcer.look(1.0)
    assert len(told.accounts) == 1, "changed counts wait"
    announcer.look(CHANGED_SECONDS)
    assert told.accounts[-1]["forwarded"] == "counts"
    write(line.folder / "route.json", b"{}")
    announcer.look(CHANGED_SECONDS)
    assert told.accounts[-1]["route"], "a followed route is told at once"
    announcer.look(CHANGED_SECONDS + SAME_SECONDS)
    assert len(told.accounts) == 4
    announcer.end(0.0)
    assert told.accounts[-1] == {**told.accounts[-2], "ended": True, "in_flight": {}}


def test_metrics_are_escaped_and_counted() -> None:
    outcomes = {"minutes": [[1, 'v"1', 5, 1, 1, []], [2, 'v"1', 2, 0, 0, []]]}
    text = metrics({"shop": {"in_flight": {'v"1': 3}, "waiting_bytes": 7, "dropped_traces": {"full": 2}, "outcomes": outcomes}})
    assert 'ratchet_router_requests_in_flight{line="shop",version="v\\"1"} 3' in text
    assert 'ratchet_router_waiting_bytes{line="shop"} 7' in text
    assert 'ratchet_router_dropped_traces_total{line="shop",reason="full"} 2' in text
    assert 'ratchet_router_recent_requests{line="shop",version="v\\"1",outcome="ok"} 5' in text
    assert metrics({"shop": {}}).count("\n# TYPE") == 4


def test_the_control_port_answers_the_kubelet(line: LineFiles) -> None:
    server = serve_control([line], lambda: 0.0, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{base}/ready", timeout=5)
        assert refused.value.code == 503
        assert b"shop: the service has not published" in refused.value.read()
        with urllib.request.urlopen(f"{base}/metrics", timeout=5) as answer:
            assert b"ratchet_router" in answer.read()
        with pytest.raises(urllib.error.HTTPError) as absent:
            urllib.request.urlopen(f"{base}/lines/shop", timeout=5)
        assert absent.value.code == 404
    finally:
        server.shutdown()
