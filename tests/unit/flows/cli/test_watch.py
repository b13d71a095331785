"""Tests of `ratchet status --watch`: what it reads from a home, how it fits a terminal, and when it prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import canonical
from ratchet.contracts.schema import stamped
from ratchet.contracts.steps import State
from ratchet.flows.cli.look.screen_rows import plain, rows
from ratchet.flows.cli.look.watch import VITALS_SECONDS, Watcher, changes, percentile
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config.home import Home
from ratchet.flows.core.problem import Problem
from ratchet.flows.core.screen import Screen, Seen, Serving, Traffic, Training, screen
from ratchet.flows.engine.line import ask_rollback, open_cycle
from ratchet.flows.ledger.sql import SqlLedger
from ratchet.flows.service.process import Sign, _path, only_one
from ratchet.router.counts.outcomes import Outcomes
from ratchet.runtime.artifacts import write_atomic
from tests.command import environment
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.unit.flows.cli.homes import LOOP, home_of
from tests.unit.flows.core.test_screen import ASKED, DEAD, LINE, rollout
from tests.unit.flows.cycles import NOON, cycle
from tests.unit.router.counts.test_outcomes import span

BUSY = Traffic(
    minutes=5,
    since=NOON - timedelta(days=1),
    versions=tuple(
        Serving(tag=f"v-{n:012d}", requests=123_456, errors=n * 9_999, refused=9_999, p50_ms=12_345, p95_ms=23_456) for n in range(4)
    ),
    turned_away=12_345,
    in_flight=1_234,
    lost={"full": 12_345},
    unsent_bytes=250_000_000,
)
LONG = "the evidence of equality and of harm is not enough for a decision, because few people have rated " * 4
SCREENS = {
    "idle": Seen(LINE, due=LONG),
    "training": Seen(LINE, cycle=cycle(State.ATTEMPT), training=Training(step=6, total=10, since=NOON, first=1, at=NOON), traffic=BUSY),
    "waiting": Seen(LINE, cycle=ASKED, traffic=BUSY, problems=[DEAD.model_copy(update={"about": "backlog", "text": LONG})]),
    "rolling": Seen(LINE, cycle=cycle(State.ROLLING), rollout=rollout(), traffic=BUSY, busy="the rollout (12 s)"),
    "rolled back": Seen(LINE, cycle=cycle(State.ROLLED_BACK, reason=LONG, ended_at=NOON), traffic=BUSY),
    "held": Seen(LINE, cycle=cycle(State.HELD, reason=LONG, ended_at=NOON)),
    "dead": Seen(
        LINE,
        cycle=cycle(State.ROLLING),
        rollout=rollout(),
        traffic=BUSY,
        problems=[DEAD, *(Problem(level="error", about="backlog", text=LONG) for _ in range(6))],
    ),
}


@pytest.mark.parametrize("name", list(SCREENS))
@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (200, 60), (80, 12), (40, 5)])
def test_a_screen_fits_and_ends_with_who_must_act(name: str, width: int, height: int) -> None:
    shown = screen(SCREENS[name], NOON + timedelta(seconds=30))
    laid = ["".join(text for text, _ in row) for row in rows(shown, width, height)]
    assert len(laid) <= height
    assert max(map(len, laid)) <= width
    if height > 12:
        assert laid[0].startswith("sim · champion v0")
        assert any(line.startswith("Act") for line in laid)
        assert not shown.problems or shown.problems[0].text[:30] in laid[1]
    if height >= 24 and shown.who == "a person":
        assert f"           {shown.commands[0]}" in laid, "a command is never cut"


def test_texts_of_people_have_no_effect_on_the_terminal() -> None:
    evil = screen(Seen(LINE, cycle=cycle(State.HELD, reason="a\x1b[2J\nb\tc", ended_at=NOON), due="\x1b]0;x\x07"), NOON)
    assert "\x1b" not in plain(evil, 80)
    assert "held" in plain(evil, 80)


@pytest.fixture
def sim() -> SimulatedLine:
    """A line with an open cycle."""
    sim = SimulatedLine(Scenario(seed=1))
    sim.live()
    open_cycle(sim.context, "a test")
    return sim


@pytest.fixture
def home(sim: SimulatedLine, tmp_path: Path) -> Home:
    return home_of(sim, tmp_path)


def test_it_reads_only_what_is_new(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    installation = Installation(home)
    watcher, read, reads = Watcher(installation, "sim"), installation.ledger.read, []

    def counted(stream: str, after: int = 0) -> Any:
        reads.append((stream, after))
        return read(stream, after)

    monkeypatch.setattr(installation.ledger, "read", counted)
    now = datetime.now(UTC)
    first = watcher.look(now, 0.0)
    assert (first.cycle, first.state, first.who) == ("cycle/sim/0002", "opened", "nobody")
    assert {after for _, after in reads} == {0}
    reads.clear()
    assert watcher.look(now, 1.0).facts() == first.facts()
    assert reads == []
    ask_rollback(SqlLedger(home.ledger_url), "sim", "ada", "a test", now)
    assert "requested by ada" in watcher.look(now, 2.0).next
    assert [stream for stream, after in reads if after] == ["line/sim"]


def test_a_dead_service_and_a_ledger_that_is_away_are_shown(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    installation = Installation(home)
    watcher, now = Watcher(installation, "sim"), datetime.now(UTC)
    with only_one(home):
        assert watcher.look(now, 0.0).problems == ()
    write_atomic(_path(home), canonical(Sign(pid=2**22 + 1, identity="no-boot-1", at=now)))
    assert watcher.look(now, VITALS_SECONDS / 2).problems == (), "it is not looked at that often"
    assert "is not running" in watcher.look(now, VITALS_SECONDS + 1).problems[0].text

    def away(_streams: Any) -> Any:
        raise Retryable("the database is locked")

    monkeypatch.setattr(installation.ledger, "lengths", away)
    shown = watcher.look(now, VITALS_SECONDS + 2)
    assert [one.about for one in shown.problems] == ["ledger", "service"]
    assert shown.cycle == "cycle/sim/0002", "the last state stays"


def test_traffic_is_that_of_the_router_or_unknown(home: Home) -> None:
    watcher, now = Watcher(Installation(home), "sim"), datetime.now(UTC)
    assert watcher.look(now, 0.0).traffic is None
    assert "unknown" in plain(watcher.look(now, 0.0), 80)
    outcomes = Outcomes()
    for _ in range(19):
        outcomes.add("v-1", span(100))
    outcomes.add("v-1", span(1000))
    outcomes.add("v-1", span(1, failed=True))
    report = {
        "pid": 1,
        "route": [],
        "in_flight": {"v-1": 2},
        "dropped_traces": {"full": 3},
        "waiting_bytes": 7,
        "outcomes": outcomes.figures(),
    }
    file = home.serving("sim") / "router" / "state.json"
    write_atomic(file, stamped(report))
    found = watcher.look(now, 1.0).traffic
    assert found is not None
    assert (found.in_flight, found.lost, found.unsent_bytes) == (2, {"full": 3}, 7)
    [version] = found.versions
    assert (version.requests, version.errors) == (21, 1)
    assert version.p50_ms == pytest.approx(100, rel=0.1)
    for damaged in (b"{", stamped({"pid": 1}), stamped({**report, "outcomes": {"minutes": [[1]]}})):
        write_atomic(file, damaged)
        assert watcher.look(now, 2.0).traffic is None


def test_percentiles_of_latencies() -> None:
    assert percentile({}, 0.5) is None
    many = {0: 50, 24: 50}
    assert percentile(many, 0.5) == pytest.approx(1.05, abs=0.01)
    assert percentile(many, 0.95) == pytest.approx(1.1**24.5)


def test_only_changes_are_printed() -> None:
    shown = [screen(Seen(LINE), NOON + timedelta(seconds=n)) for n in range(3)]
    dead = screen(Seen(LINE, problems=[DEAD]), NOON + timedelta(seconds=3))
    later = dead.model_copy(update={"at": NOON + timedelta(seconds=4)})
    assert list(changes(iter([*shown, dead, later]))) == [shown[0], dead]


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_ctrl_c_ends_it_with_success(home: Home, tmp_path: Path, more: list[str]) -> None:
    (tmp_path / "loop.toml").write_text(LOOP)
    command = [sys.executable, "-m", "ratchet.flows.cli.main", "status", "sim", "--watch", *more]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(home.root), stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        line = watching.stdout.readline()
        os.kill(watching.pid, signal.SIGINT)
        assert watching.wait(60) == 0
    if more:
        assert Screen.model_validate(json.loads(line)).cycle == "cycle/sim/0002"
    else:
        assert line.startswith("sim · champion")
