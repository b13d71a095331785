"""Tests of `ratchet status` and `ratchet doctor` on an installation that does not work."""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ratchet.contracts.cycle import Append, Row
from ratchet.contracts.ids import canonical, cycle_stream
from ratchet.flows.cli.main import cli
from ratchet.flows.cli.setup import doctor
from ratchet.flows.config.home import Home
from ratchet.flows.engine.line import open_cycle
from ratchet.flows.ledger.sql import SqlLedger
from ratchet.flows.service import vitals
from ratchet.flows.service.process import Sign, _path, only_one
from ratchet.runtime.artifacts import write_atomic
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.unit.flows.cli.homes import home_of
from tests.unit.flows.cli.test_lines import alone


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """The home of a line that has promoted a version. No service has run in it."""
    sim = SimulatedLine(Scenario(seed=1))
    sim.live()
    home = home_of(sim, tmp_path)
    monkeypatch.setenv("RATCHET_HOME", str(home.root))
    monkeypatch.chdir(tmp_path)
    return home


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def leave(home: Home, **sign: Any) -> None:
    """Leave a sign of life of a process that does not exist."""
    fields = {"pid": 2**22 + 1, "identity": "no-boot-1", "at": datetime.now(UTC)}
    write_atomic(_path(home), canonical(Sign.model_validate(fields | sign)))


def found(level: str) -> list[tuple[str, str]]:
    """Return what the doctor says about the service, its Prefect server and the traces, at this level."""
    told = doctor._service(Home.from_environment())
    return [(about, text) for one, about, text in told if one == level]


def test_an_installation_without_a_service_or_with_a_stopped_one_has_no_error(home: Home) -> None:
    result = run("status")
    assert (result.exit_code, result.stdout.split()[0]) == (0, "Lines")
    assert found("note") == [("service", "no service has run yet; `ratchet serve LOOP.toml` starts it")]
    with only_one(home):
        assert run("status").stdout.split()[0] == "Lines"
        assert [about for about, _ in found("ok")] == ["service"]
    result = run("status")
    assert (result.exit_code, result.stdout.splitlines()[0].split(" at ")[0]) == (0, "· the service was stopped")
    assert json.loads(run("status", "--json").stdout)[0]["problems"][0]["level"] == "note"
    assert found("error") == []


@pytest.mark.parametrize("arguments", [(), ("sim",)])
def test_a_dead_service_is_the_first_line_and_the_exit_code(home: Home, arguments: tuple[str, ...]) -> None:
    leave(home)
    result = run("status", *arguments)
    assert result.exit_code == 1
    assert result.stdout.startswith("✗ the service is not running: it ended without a stop")
    assert "champion" in result.stdout, "the rest is shown, too"
    result = run("status", *arguments, "--json")
    assert result.exit_code == 1
    [line] = json.loads(result.stdout)
    assert [(one["level"], one["about"]) for one in line["problems"]] == [("error", "service")]
    [(about, text)] = found("error")
    assert (about, "is not running" in text) == ("service", True)


def test_a_dead_service_shows_before_the_first_line_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "home")
    monkeypatch.setenv("RATCHET_HOME", str(home.root))
    monkeypatch.chdir(alone(tmp_path))  # the homes of other tests must not be near
    SqlLedger(home.ledger_url)
    leave(home)
    result = run("status", "--json")
    assert result.stdout == "[]\n", (result.output, result.exception)
    assert result.exit_code == 1
    assert "the service is not running" in result.stderr


def test_each_other_problem_is_an_error_of_both_commands(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/api"
        with only_one(home, address) as beat:
            assert run("status").stdout.startswith(f"✗ the Prefect server at {address} does not answer")
            beat("sim: the bucket is away")
            said = run("status").stdout.splitlines()
            assert said[0] == "✗ the service cannot do its work: sim: the bucket is away"
            assert [about for about, _ in found("error")] == ["service", "prefect"]
    spool = home.spool("sim")
    spool.mkdir(parents=True)
    (spool / f"{10**18:020d}-1-00000000.request").write_bytes(b"x" * 100)
    monkeypatch.setattr(vitals, "LEAST_BYTES", 1 << 60)
    result = run("status")
    assert result.exit_code == 1
    assert [line[0] for line in result.stdout.splitlines()[:3]] == ["✗", "·", "✗"]
    assert [about for about, _ in found("error")] == ["backlog"], "the doctor has a check of its own for the disk"


def test_a_hanging_service_is_an_error(home: Home) -> None:
    with only_one(home):
        sign = Sign.model_validate_json(_path(home).read_bytes())
        write_atomic(_path(home), canonical(sign.model_copy(update={"at": datetime.now(UTC) - timedelta(minutes=5)})))
        assert "hangs" in run("status").stdout.splitlines()[0]
        assert "hangs" in found("error")[0][1]


def test_ended_cycles_hide_neither_the_open_one_nor_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    sim.live()
    open_cycle(sim.context, "a test")
    home = home_of(sim, tmp_path)
    monkeypatch.setenv("RATCHET_HOME", str(home.root))
    ledger = SqlLedger(home.ledger_url)
    damaged = sim.ledger.rows[cycle_stream("sim", 1)]
    ledger.append(
        [Append(stream=cycle_stream("sim", 1), after=len(damaged), rows=(Row(kind="done", key="unknown"),))], None, sim.clock.now()
    )
    result = run("status", "sim")
    assert result.exit_code == 0
    rows = [line for line in result.stdout.splitlines() if line.startswith("cycle/sim/")]
    assert [row.split()[0] for row in rows] == ["cycle/sim/0002", "cycle/sim/0001"]
    assert "unreadable" in rows[1]
