"""Tests of recalls: the open cycle ends in every state, the champion goes on serving, and no start model is recalled."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from ratchet.contracts.fakes import fake_model
from ratchet.contracts.ids import line_stream, rollout_stream
from ratchet.contracts.jobs.training import JobState
from ratchet.contracts.serving import ModelVersion
from ratchet.contracts.steps import ENDS, State
from ratchet.flows.core.decide import End, Observation, decide
from ratchet.flows.core.folds.line import fold_line
from ratchet.flows.engine.context import leased
from ratchet.flows.engine.line import ask_rollback, open_cycle
from ratchet.flows.engine.recall import Resting, recall, resting
from tests.simulation.simulated_line import Crash, Scenario, SimulatedLine, nth_fault
from tests.unit.flows.cycles import NOON, cycle

WHY = "rows of erased people (receipt 0123)"


def recalled(sim: SimulatedLine) -> None:
    """Recall what rests on every artifact of the line's plans, as an erasure does."""
    with leased(sim.context, "an erasure") as lease:
        found = resting(sim.context, sim.ledger, sim.context.line_view(), lambda _: True, WHY)
        recall(sim.context, lease, found)
        recall(sim.context, lease, found)


@pytest.mark.parametrize("state", sorted(set(State) - ENDS - {State.ROLLING}))
def test_a_cycle_ends_as_recalled_in_any_state_before_everything_else(state: State) -> None:
    seen = Observation(recall_asked=WHY, rollback_asked="ada", champion="another")
    assert decide(cycle(state), seen, NOON) == End(State.RECALLED, WHY)


STATES = (State.PLANNED, State.TRAINING_APPROVED, State.ATTEMPT, State.ACCEPTED, State.VERDICT, State.REGISTERED, State.ROLLING)


@pytest.mark.parametrize("state", STATES)
def test_an_erasure_ends_the_cycle_stops_its_job_and_leaves_the_champion(state: State) -> None:
    class Erased(SimulatedLine):
        done = False

        def _people(self) -> None:
            super()._people()
            if not self.done and self.ledger.read(self.cycle_stream()) and self.view().state is state:
                self.done = True
                recalled(self)

    sim = Erased(Scenario(seed=1, people="yes"))
    base = sim.context.line_view().champion
    sim.live()
    if not sim.done:
        pytest.skip(f"the simulated cycle is never in {state} between two turns")
    line = sim.context.line_view()
    assert (sim.view().state, sim.view().reason) == (State.RECALLED, WHY)
    assert (line.champion, line.open_cycle, line.recall_asked) == (base, None, None)
    assert sim.view().candidate is None or sim.view().candidate.tag in line.recalled
    assert all(sim.executor.observe(name).state is not JobState.RUNNING for name in sim.executor.specs)
    route = sim.context.router.read("sim")
    assert route is not None
    assert [backend.tag for backend in route.backends] == [base.tag]  # type: ignore[union-attr]
    assert [row.kind for row in sim.ledger.read(line_stream("sim"))].count("recall_asked") == 1
    rollout = sim.context.rollout_view(rollout_stream(sim.cycle_stream()))
    assert rollout is None or (rollout.end, rollout.reason) == ("rolled_back", WHY)


@pytest.mark.parametrize("dies", range(6))
def test_a_crash_at_each_write_of_a_recall_is_repaired_by_the_next_call(dies: int) -> None:
    sim = SimulatedLine(Scenario(seed=1, people="auto"))
    open_cycle(sim.context, "test")
    for _ in range(12):
        sim._work()
        if sim.view().state is State.PLANNED:
            break
    sim.ledger.faults = nth_fault(dies)
    with contextlib.suppress(Crash):
        recalled(sim)
    sim.ledger.faults = lambda _where: None
    sim.clock.sleep(120)  # the lease of the dead process expires
    recalled(sim)
    assert sim.view().state is State.RECALLED
    assert sim.context.line_view().open_cycle is None


def test_after_a_recall_the_line_trains_from_and_compares_with_the_champion_before_and_the_champion_serves() -> None:
    sim = SimulatedLine(Scenario(seed=1, people="auto"))
    sim.live()
    before = sim.context.line_view()
    assert sim.view().state is State.PROMOTED
    recalled(sim)
    line = sim.context.line_view()
    assert (line.champion, line.recalled) == (before.champion, {before.champion.tag: WHY})  # type: ignore[union-attr]
    second = sim.context.cycle_view(open_cycle(sim.context, "test"))
    assert (second.start, second.baseline, second.champion) == (line.base, line.base, line.champion)
    assert line.clean_champion == line.base
    assert sim.context.rollout_view(rollout_stream(second.id)) is None


def test_a_rollback_that_was_requested_during_a_recalled_rollout_does_not_roll_the_champion_back_too() -> None:
    class Erased(SimulatedLine):
        def _people(self) -> None:
            super()._people()
            if self.ledger.read(self.cycle_stream()) and self.view().state is State.ROLLING and not self.context.line_view().recall_asked:
                recalled(self)
                ask_rollback(self.ledger, "sim", "ada", "a reason", self.clock.now())

    sim = Erased(Scenario(seed=1, people="auto"))
    base = sim.context.line_view().champion
    sim.live()
    line = sim.context.line_view()
    assert (sim.view().state, line.champion, line.rollback_asked) == (State.RECALLED, base, None)


def test_nothing_is_written_if_nothing_rests_on_the_rows() -> None:
    sim = SimulatedLine(Scenario(seed=1, people="auto"))
    sim.live()
    rows = sim.ledger.read(line_stream("sim"))
    with leased(sim.context, "an erasure") as lease:
        assert resting(sim.context, sim.ledger, sim.context.line_view(), lambda _: False, WHY) == Resting({}, None, ())
        recall(sim.context, lease, Resting({}, None, ()))
    assert sim.ledger.read(line_stream("sim")) == rows


def test_the_newest_champion_that_is_not_recalled_takes_the_place_of_a_recalled_one() -> None:
    """Not the start model of its training, which may be the adopted model. Versions that were rolled back are not in `served`."""
    served = tuple(
        ModelVersion(line="l", number=number, tag=f"v{number}", model=fake_model(f"v{number}"), cycle=None) for number in range(4)
    )
    line = replace(fold_line("l", []), served=served, champion=served[-1])
    assert line.clean_champion == served[3]
    assert replace(line, recalled={"v3": WHY}).clean_champion == served[2]
    assert replace(line, recalled={"v3": WHY, "v2": WHY, "v9": WHY}).clean_champion == served[1]
    assert fold_line("l", []).clean_champion is None
