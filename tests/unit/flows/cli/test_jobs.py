"""Tests of `ratchet jobs`: the training jobs of all lines in one list."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ratchet.contracts.errors import Retryable
from ratchet.contracts.jobs.training import JobState, JobStatus, Usage
from ratchet.flows.cli.main import cli
from ratchet.flows.composition import ports
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.unit.flows.cli.homes import home_of

RUNS = JobStatus(
    state=JobState.RUNNING,
    incarnation=1,
    step=3,
    total=12,
    usage=Usage(started=20, used=7200, idle=0, lost=0, nodes=1, cost=4.5, preemptions=0),
)


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home whose line has begun a training."""
    sim = SimulatedLine(Scenario(seed=1))
    for _ in range(40):
        with contextlib.suppress(AssertionError):
            sim.live(1)
        if sim.view().incarnations:
            break
    monkeypatch.setenv("RATCHET_HOME", str(home_of(sim, tmp_path).root))


def jobs(monkeypatch: pytest.MonkeyPatch, seen: JobStatus | Exception, *arguments: str) -> str:
    """Run the command with an executor that reports `seen`."""

    class Executor:
        def observe(self, _name: str) -> JobStatus:
            if isinstance(seen, Exception):
                raise seen
            return seen

    def opened(*_: Any) -> Executor:
        return Executor()

    monkeypatch.setattr(ports, "open_executor", opened)
    result = CliRunner().invoke(cli, ["jobs", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_running_job_is_shown_with_its_steps_and_cost(training: None, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = jobs(monkeypatch, RUNS)
    assert all(text in shown for text in ("sim/0001, attempt 1, start 1", "this machine", "running", "3 of 12", "2.0", "4.5"))
    [found] = json.loads(jobs(monkeypatch, RUNS, "--json"))
    assert (found["state"], found["step"], found["total"], found["gpu_hours"], found["cost"]) == ("running", 3, 12, 2.0, 4.5)


def test_a_job_that_waits_says_why(training: None, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = jobs(monkeypatch, JobStatus(state=JobState.PENDING, incarnation=1, reason="0 of 8 GPUs are free"))
    assert "pending" in shown
    assert "0 of 8 GPUs are free" in shown


def test_an_executor_out_of_reach_hides_no_job(training: None, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = jobs(monkeypatch, Retryable("the API server of the cluster does not answer"))
    assert "unknown" in shown
    assert "does not answer" in shown


def test_without_a_job_the_list_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    sim.live()
    monkeypatch.setenv("RATCHET_HOME", str(home_of(sim, tmp_path).root))
    result = CliRunner().invoke(cli, ["jobs", "--json"])
    assert (result.exit_code, json.loads(result.stdout)) == (0, [])
