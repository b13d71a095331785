"""Tests that the reconciler pins the newest accepted checkpoint again after a failed or interrupted pin."""

from __future__ import annotations

import contextlib

import pytest

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.jobs.training import JobSpec, ResumePoint
from ratchet.flows.engine import reconcile as duties
from ratchet.flows.engine.advance import advance
from ratchet.flows.engine.line import open_cycle
from ratchet.flows.engine.reconcile import reconcile
from tests.simulation.simulated_line import Crash, Scenario, SimulatedLine


def until_accepted(sim: SimulatedLine) -> None:
    """Advance without the reconciler until the row of an intermediate checkpoint is written."""
    open_cycle(sim.context, "a test")
    for _ in range(60):
        sim.clock.sleep(7)
        sim._people()
        with contextlib.suppress(Retryable, Crash):
            advance(sim.cycle_stream(), sim.context)
        if sim.view().accepted:
            return
    raise AssertionError("no step was accepted")


@pytest.mark.parametrize("how", [Retryable("the volume is unavailable"), Crash("killed")], ids=["fails", "dies"])
def test_reconciler_repeats_a_pin_that_failed_after_its_row(how: BaseException) -> None:
    sim = SimulatedLine(Scenario(seed=1, restarts=True))
    struck: list[str] = []

    def strike(where: str) -> None:
        if where.startswith("before pin") and not struck:
            struck.append(where)
            raise how

    sim.world.faults = strike
    until_accepted(sim)
    assert struck
    assert sim.executor.pins == {}, "the row is written, but nothing is pinned yet"
    sim.clock.sleep(61)  # the lease of a dead holder expires
    assert [words for words in reconcile(sim.context) if "step 1" in words]
    assert list(sim.executor.pins.values()) == [sim.view().accepted[-1]]
    assert not [words for words in reconcile(sim.context) if "step 1" in words], "a repair is reported only once"


def test_previous_checkpoint_is_pinned_if_the_newest_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimulatedLine(Scenario(seed=1, restarts=True))
    lay_down = sim.executor.pin

    def refuse(spec: JobSpec, resume: ResumePoint) -> None:
        if resume.step == 2:
            raise Permanent("its files differ from the accepted ones")
        lay_down(spec, resume)

    monkeypatch.setattr(sim.executor, "pin", refuse)
    until_accepted(sim)
    sim.executor.pins.clear()
    sim.clock.sleep(7)
    with contextlib.suppress(Permanent):
        advance(sim.cycle_stream(), sim.context)
    assert [point.step for point in sim.view().accepted] == [1, 2]
    said = reconcile(sim.context)
    assert [point.step for point in sim.executor.pins.values()] == [1], said
    assert any("differ from the accepted ones" in words for words in said)


def test_a_pin_that_the_executor_has_lost_is_set_again() -> None:
    sim = SimulatedLine(Scenario(seed=1, restarts=True))
    until_accepted(sim)
    [accepted] = sim.executor.pins.values()
    sim.executor.pins.clear()  # as after the loss of the run folders
    said = reconcile(sim.context)
    assert list(sim.executor.pins.values()) == [accepted] == [sim.view().accepted[-1]]
    assert f"pinned step {accepted.step} as the resume point of {sim.view().incarnations[-1].job}" in said


def test_reconciler_pins_nothing_if_the_executor_restarts_no_jobs() -> None:
    sim = SimulatedLine(Scenario(seed=1, restarts=False))
    until_accepted(sim)
    reconcile(sim.context)
    assert sim.executor.pins == {}


def test_running_job_is_kept_if_a_new_version_would_name_it_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimulatedLine(Scenario(seed=1, restarts=True))
    until_accepted(sim)
    named = duties.job_of
    monkeypatch.setattr(duties, "job_of", lambda *given: named(*given).model_copy(update={"name": "rt-0000000000000000-a1"}))
    assert duties._wanted_job(sim.context, sim.view()) == sim.view().incarnations[-1].job
    assert not [words for words in reconcile(sim.context) if words.startswith("cancelled orphaned job")]
