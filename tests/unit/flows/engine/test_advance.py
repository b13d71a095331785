"""Tests of `advance`: rows of other processes and of newer releases, and jobs that end between two turns."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pytest

from ratchet.contracts.cycle import Append, Entry, Lease, Row
from ratchet.contracts.errors import NewerRelease, Retryable
from ratchet.contracts.ids import canonical, effect_name, line_stream, rollout_stream
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobState, Method
from ratchet.contracts.schema import SCHEMA_VERSION
from ratchet.contracts.steps import State
from ratchet.flows.core.decide import End, Wait, decide
from ratchet.flows.engine.advance import advance, observe
from ratchet.flows.engine.effects import train
from ratchet.flows.engine.line import open_cycle
from ratchet.flows.engine.reconcile import reconcile
from tests.simulation.simulated_line import Scenario, SimulatedLine


def test_an_end_that_meets_a_new_row_of_the_line_is_not_reported_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimulatedLine(Scenario(seed=1, method=Method.NONE))
    cycle = open_cycle(sim.context, "a test")
    append, met = sim.ledger.append, []

    def beside(appends: Sequence[Append], lease: Lease | None, at: datetime) -> list[Entry]:
        """Another process cancels the cycle just before its end is written."""
        if not met and any(row.kind == "ended" for one in appends for row in one.rows):
            met.append(1)
            asked = Row(kind="cancel_asked", key=cycle, data={"actor": "bob", "reason": ""})
            append([Append(stream=line_stream("sim"), after=len(sim.ledger.read(line_stream("sim"))), rows=(asked,))], None, at)
        return append(appends, lease, at)

    monkeypatch.setattr(sim.ledger, "append", beside)
    while not isinstance(decision := advance(cycle, sim.context), End):
        pass
    assert met
    view = sim.context.cycle_view(cycle)
    assert (view.ended, view.state) == (True, decision.state)
    assert decision.state is State.CANCELLED


def until_training(sim: SimulatedLine) -> str:
    """Advance until the first job runs. Return its name."""
    cycle = open_cycle(sim.context, "a test")
    while not sim.executor.started:
        advance(cycle, sim.context)
    advance(cycle, sim.context)
    return next(iter(sim.executor.started))


def test_a_job_that_ended_between_two_turns_is_recorded_after_its_result_is_stored() -> None:
    sim = SimulatedLine(Scenario(seed=1, people="auto"))
    job = until_training(sim)
    while sim.executor.observe(job).state is not JobState.ENDED:
        sim.clock.sleep(1)
        advance(sim.cycle_stream(), sim.context)
    view = sim.view()
    assert isinstance(decide(view, observe(view, sim.context), sim.clock.now()), Wait), "no model is published yet"
    while sim.view().incarnations[-1].outcome is None:
        advance(sim.cycle_stream(), sim.context)
    assert sim.executor.results[job].outcome is Outcome.DONE


def test_reconciler_stores_the_result_of_a_job_that_no_turn_watches() -> None:
    sim = SimulatedLine(Scenario(seed=1, people="auto"))
    job = until_training(sim)
    while sim.executor.live():
        sim.clock.sleep(1)
        reconcile(sim.context)
    assert sim.executor.observe(job).outcome is Outcome.DONE


def test_a_successor_starts_after_the_result_of_a_restarted_gang_is_stored() -> None:
    """The cluster restarted the gang, and the gang ended before the ledger had recorded its new incarnation."""
    sim = SimulatedLine(Scenario(seed=1, people="auto", restarts=True))
    job = until_training(sim)
    sim.executor.cancel(job)
    view = sim.view()
    assert (sim.executor.observe(job).state, sim.executor.observe(job).outcome) == (JobState.ENDED, None)
    sim.context.ledger.acquire(line_stream("sim"), sim.context.holder, 60, sim.clock.now())
    train(sim.context, view, "train/1/5")
    assert sim.world.effects[f"end/{job}/1"] == 1, "the result was not stored before the next incarnation"
    assert sim.executor.started[job] == 5


def test_a_result_that_is_out_of_reach_does_not_block_other_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimulatedLine(Scenario(seed=1, people="auto"))
    job, done = until_training(sim), []

    def fails(name: str) -> None:
        if name == job:
            raise Retryable("the bucket does not answer")
        done.append(name)

    monkeypatch.setattr(sim.executor, "live", lambda: [job, "rt-other-a1"])
    monkeypatch.setattr(sim.executor, "reconcile", fails)
    assert f"could not reconcile job {job}: the bucket does not answer" in reconcile(sim.context)
    assert done == ["rt-other-a1"]


def test_the_end_of_a_promoted_cycle_states_what_the_rollout_showed() -> None:
    sim = SimulatedLine(Scenario(seed=1))
    sim.live()
    rollout = sim.context.rollout_view(rollout_stream(sim.view().id))
    assert rollout is not None
    assert rollout.reason
    assert sim.view().reason.endswith(f"and the rollout showed no harm ({rollout.reason})")


def test_row_of_a_newer_release_stops_every_write_until_the_upgrade() -> None:
    sim = SimulatedLine(Scenario(seed=1))
    cycle = open_cycle(sim.context, "a test")
    [opened] = sim.ledger.rows[cycle]
    sim.ledger.rows[cycle] = [opened.model_copy(update={"schema_version": SCHEMA_VERSION + 1})]
    before = {stream: len(rows) for stream, rows in sim.ledger.rows.items()}
    for work in (lambda: advance(cycle, sim.context), lambda: reconcile(sim.context)):
        with pytest.raises(NewerRelease, match=r"row 1 of cycle/sim/0001 .* upgrade Ratchet"):
            work()
    assert {stream: len(rows) for stream, rows in sim.ledger.rows.items()} == before
    sim.ledger.rows[cycle] = [opened]
    sim.live()
    assert sim.view().state is State.PROMOTED


def test_document_of_a_newer_release_does_not_end_the_cycle() -> None:
    sim = SimulatedLine(Scenario(seed=1))
    cycle = open_cycle(sim.context, "a test")
    artifacts = sim.world.artifacts
    artifacts.bind(effect_name(cycle, "freeze"), artifacts.put(canonical({"schema_version": SCHEMA_VERSION + 1})))
    for _ in range(5):
        with pytest.raises(NewerRelease):
            advance(cycle, sim.context)
    assert [row.kind for row in sim.ledger.rows[cycle]] == ["opened", "intended"]
