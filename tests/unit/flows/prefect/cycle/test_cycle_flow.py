"""Tests of parts of the flow: the pause between two looks at a step, and the steps that task runs show."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from prefect.states import Running

from ratchet.contracts.steps import ENDS, State, Step
from ratchet.flows.prefect.cycle import cycle_flow
from ratchet.flows.prefect.cycle.carriers import _Expected
from tests.unit.flows.cycles import cycle


class WokenHost:
    """A host whose waits all end after half a second, because the ledger has changed."""

    def __init__(self, cancel_after: float) -> None:
        self.now = 0.0
        self._cancel_after = cancel_after
        self.stopping = SimpleNamespace(is_set=lambda: False)
        self.installation = self

    async def wait(self, _cycle: str, _seconds: float) -> None:
        """Be woken."""
        self.now += 0.5

    def line(self, _name: str) -> Any:
        """A line that somebody cancels."""
        return SimpleNamespace(cancel_asked="ada" if self.now >= self._cancel_after else None, rollback_asked=None)


@pytest.mark.parametrize(("failed", "cancel_after", "lasts"), [(False, 1e9, 0.5), (True, 1e9, 60.0), (True, 3.0, 3.0)])
def test_rows_that_a_failed_step_writes_do_not_end_its_pause_but_a_cancellation_does(
    monkeypatch: pytest.MonkeyPatch, failed: bool, cancel_after: float, lasts: float
) -> None:
    host = WokenHost(cancel_after)
    monkeypatch.setattr(cycle_flow, "the_host", lambda: host)
    monkeypatch.setattr(cycle_flow, "time", SimpleNamespace(monotonic=lambda: host.now))
    asyncio.run(cycle_flow._pause("cycle/sim/0001", 60.0, failed))
    assert host.now == lasts


@pytest.mark.parametrize(
    ("name", "step"),
    [("train", "train"), ("train-6f9", "train"), ("approve_training-6f9", "approve_training"), ("training", None), ("my task", None)],
)
def test_task_run_is_recognised_before_prefect_has_given_it_its_name(name: str, step: str | None) -> None:
    assert cycle_flow._step_of(name) == step


class Client:
    """A Prefect whose only task run is one of `step`, which a dead process has left at work."""

    def __init__(self, step: str) -> None:
        self.run = SimpleNamespace(id="t", name=step, state=Running())
        self.states: list[str] = []

    async def read_task_runs(self, **_filters: Any) -> list[Any]:
        """The task run."""
        return [self.run]

    async def set_task_run_state(self, _run: Any, state: Any, force: bool) -> None:
        """Note the state."""
        assert force
        self.states.append(str(state.name))


@pytest.mark.parametrize(
    ("step", "current", "state"),
    [
        ("roll_out", Step.ROLL_OUT, "Crashed"),
        ("roll_out", Step.PROMOTE, "Completed"),
        ("register", Step.APPROVE_ROLLOUT, "Completed"),
        ("train", Step.TRAIN, "Crashed"),
        ("roll_out", None, "Completed"),
    ],
)
def test_a_step_that_the_cycle_is_at_is_not_completed_by_the_death_of_the_service(step: str, current: Step | None, state: str) -> None:
    client: Any = Client(step)
    shown = asyncio.run(cycle_flow._shown(client, UUID(int=0), cycle(State.ROLLING), current))
    assert client.states == [state]
    assert shown == ({step} if state == "Completed" else set())


def test_a_run_carries_the_step_that_the_cycle_is_at_although_prefect_shows_it_as_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    carried: list[str] = []

    async def task(name: str, return_state: bool) -> None:
        assert return_state
        carried.append(name)

    rolling = cycle(State.ROLLING)
    host = SimpleNamespace(installation=None, stopping=SimpleNamespace(is_set=lambda: False))
    monkeypatch.setattr(cycle_flow, "the_host", lambda: host)
    monkeypatch.setattr(cycle_flow, "position", lambda _installation, _cycle: SimpleNamespace(cycle=rolling, step=Step.ROLL_OUT))
    monkeypatch.setattr(cycle_flow, "TASKS", dict.fromkeys(Step, task))
    run = cycle_flow.CarriedCycle(UUID(int=0), rolling.id, "", frozenset({"roll_out", "register"}))
    for step in (Step.REGISTER, Step.ROLL_OUT, Step.PROMOTE):
        asyncio.run(run.take(step))
    assert carried == [rolling.id], "only the rollout goes on"


ENDED = {
    "Completed": (State.PROMOTED, State.NOT_TRAINED, State.REJECTED),
    "Failed": (State.FAILED, State.ROLLED_BACK),
    "Cancelled": (State.HELD, State.EXPIRED, State.CANCELLED, State.SUPERSEDED, State.RECALLED),
}
"""Prefect's own name of a final state -> the ends of cycles that have it."""


@pytest.mark.parametrize(("name", "state"), [(name, state) for name, states in ENDED.items() for state in states])
def test_every_end_of_a_cycle_has_a_state_of_prefects_own_name_and_says_the_outcome(name: str, state: State) -> None:
    final = cycle_flow.final_state(cycle(state, reason="the figures"))
    assert (final.name, final.message) == (name, f"{state}: the figures")
    assert {one for states in ENDED.values() for one in states} == ENDS


@pytest.mark.parametrize(
    ("text", "kept", "level"),
    [
        ("Finished in state Suspended(None)", False, logging.ERROR),
        ("Finished in state AwaitingRetry('the service was stopped')", False, logging.ERROR),
        ("Finished in state Cancelled('held: too few prompts')", True, logging.INFO),
        ("Finished in state Failed('failed: no disk')", True, logging.ERROR),
    ],
)
def test_the_engine_logs_no_error_about_a_run_that_waits_or_that_was_cancelled(text: str, kept: bool, level: int) -> None:
    record = logging.LogRecord("prefect.flow_runs", logging.ERROR, "", 1, text, (), None)
    assert _Expected().filter(record) is kept
    assert record.levelno == level
