"""Tests that the reconciler pins the newest accepted checkpoint again after a failed or interrupted pin."""

from __future__ import annotations

import contextlib

import pytest

from contracts.errors import Permanent, Retryable
from contracts.training import JobSpec, ResumePoint
from flows.engine import reconcile as duties
from flows.engine.advance import advance
from flows.engine.line import open_cycle
from flows.engine.reconcile import reconcile
from tests.simulation.town import Crash, Scenario, Town


def until_accepted(town: Town) -> None:
    """Advance without the reconciler until the row of an intermediate checkpoint is written."""
    open_cycle(town.house, "a test")
    for _ in range(60):
        town.clock.sleep(7)
        town._people()
        with contextlib.suppress(Retryable, Crash):
            advance(town.cycle_stream(), town.house)
        if town.view().accepted:
            return
    raise AssertionError("no step was accepted")


@pytest.mark.parametrize("how", [Retryable("the volume is unavailable"), Crash("killed")], ids=["fails", "dies"])
def test_reconciler_repeats_a_pin_that_failed_after_its_row(how: BaseException) -> None:
    town = Town(Scenario(seed=1, restarts=True))
    struck: list[str] = []

    def strike(where: str) -> None:
        if where.startswith("before pin") and not struck:
            struck.append(where)
            raise how

    town.world.faults = strike
    until_accepted(town)
    assert struck
    assert town.executor.pins == {}, "the row is written, but nothing is pinned yet"
    town.clock.sleep(61)  # the lease of a dead holder expires
    assert [words for words in reconcile(town.house) if "step 1" in words]
    assert list(town.executor.pins.values()) == [town.view().accepted[-1]]
    assert not [words for words in reconcile(town.house) if "step 1" in words], "a repair is reported only once"


def test_previous_checkpoint_is_pinned_if_the_newest_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    town = Town(Scenario(seed=1, restarts=True))
    lay_down = town.executor.pin

    def refuse(spec: JobSpec, resume: ResumePoint) -> None:
        if resume.step == 2:
            raise Permanent("its files differ from the accepted ones")
        lay_down(spec, resume)

    monkeypatch.setattr(town.executor, "pin", refuse)
    until_accepted(town)
    town.executor.pins.clear()
    town.clock.sleep(7)
    with contextlib.suppress(Permanent):
        advance(town.cycle_stream(), town.house)
    assert [point.step for point in town.view().accepted] == [1, 2]
    said = reconcile(town.house)
    assert [point.step for point in town.executor.pins.values()] == [1], said
    assert any("differ from the accepted ones" in words for words in said)


def test_reconciler_pins_nothing_if_the_executor_restarts_no_jobs() -> None:
    town = Town(Scenario(seed=1, restarts=False))
    until_accepted(town)
    reconcile(town.house)
    assert town.executor.pins == {}


def test_running_job_is_kept_if_a_new_version_would_name_it_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    town = Town(Scenario(seed=1, restarts=True))
    until_accepted(town)
    named = duties.job_of
    monkeypatch.setattr(duties, "job_of", lambda *given: named(*given).model_copy(update={"name": "rt-0000000000000000-a1"}))
    assert duties._wanted_job(town.house, town.view()) == town.view().incarnations[-1].job
    assert not [words for words in reconcile(town.house) if words.startswith("cancelled orphaned job")]
