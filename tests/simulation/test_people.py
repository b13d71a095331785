"""Simulated operator requests at difficult moments, and simulated failures.

Examples are a second rollback, a rollback during a long effect, a cancellation, and an unavailable registry.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from ratchet.contracts.errors import Rejected, Retryable, Unreachable
from ratchet.contracts.steps import State, Step
from ratchet.flows.core.folds.line import fold_line
from ratchet.flows.core.steps import next_step
from ratchet.flows.engine.advance import UNFORESEEN_TRIES, UNREACHABLE_TRIES, advance
from ratchet.flows.engine.context import LEASE_SECONDS, TURN_SECONDS, LineContext, take
from ratchet.flows.engine.ingest import ingest
from ratchet.flows.engine.line import ask_cancel, ask_rollback, open_cycle
from ratchet.flows.engine.reconcile import reconcile
from tests.simulation.simulated_line import Scenario, SimulatedLine

LINE = "line/sim"


def promoted() -> SimulatedLine:
    """Return a simulated line after its first promotion."""
    sim = SimulatedLine(Scenario(seed=1))
    sim.live()
    assert sim.view().state is State.PROMOTED
    return sim


def go_back(sim: SimulatedLine) -> None:
    """Request a rollback of the line."""
    ask_rollback(sim.ledger, "sim", "ada", "", sim.clock.now())


def serving(sim: SimulatedLine) -> str:
    """Return the tag of the version that serves all requests."""
    return next(b.tag for b in sim.router.read("sim").backends if b.weight == 100)


def until(sim: SimulatedLine, place: State | Step) -> None:
    """Advance the cycle until it is in this state, or at this step; raises AssertionError after 60 turns."""
    for _ in range(60):
        if place in (sim.view().state, next_step(sim.view(), is_rolled_out=False)):
            return
        sim._people()
        advance(sim.cycle_stream(), sim.context)
    raise AssertionError(sim.view().state)


def test_damaged_route_does_not_stop_the_other_repairs() -> None:
    sim = promoted()
    champion = sim.context.line_view().champion.tag

    def read(_line: str) -> None:
        raise ValueError("not a route")

    sim.context.registry.pointers["sim", "champion"] = "another"
    sim.context.router.read = read  # type: ignore[method-assign]
    repairs = reconcile(sim.context)
    assert "could not repair route: it raised ValueError" in repairs
    assert sim.context.registry.aliases("sim")["champion"] == champion


def test_rollout_without_traffic_waits_and_rolls_back_only_when_it_is_undecided() -> None:
    sim = SimulatedLine(Scenario(seed=1, people="auto", quiet=True))
    sim.live()
    assert sim.view().state is State.ROLLED_BACK
    assert "undecided after" in sim.view().reason


def test_rollout_whose_traces_are_lost_rolls_back_when_it_is_dark() -> None:
    sim = SimulatedLine(Scenario(seed=1, people="auto", dark=True))
    sim.live()
    assert sim.view().state is State.ROLLED_BACK
    assert "is dark: none of" in sim.view().reason


def test_second_rollback_does_not_restore_the_bad_version() -> None:
    sim = promoted()
    base = sim.context.line_view().base.tag
    go_back(sim)
    reconcile(sim.context)
    assert serving(sim) == base
    with pytest.raises(Rejected, match="nothing_to_roll_back"):
        go_back(sim)
    assert sim.context.line_view().champion.tag == base


def test_rollback_does_not_wait_for_the_lease_of_the_line() -> None:
    sim = promoted()
    second = open_cycle(sim.context, "next")
    lease = take(sim.context, LINE)  # an evaluation that takes minutes
    person = replace(sim.context, holder="an operator")
    go_back(sim)
    said = reconcile(person)
    assert any("rolled back" in line for line in said)
    assert serving(sim) == sim.context.line_view().base.tag
    sim.ledger.release(lease)
    advance(second, sim.context)
    assert sim.context.cycle_view(second).state is State.SUPERSEDED


def test_operator_command_waits_until_the_lease_expires() -> None:
    sim = promoted()
    busy = replace(sim.context, holder="the service")
    person = replace(sim.context, holder="an operator")
    for act in (lambda wait: ingest(person, wait=wait), lambda wait: _mended(person, wait)):
        for name in ("ingest/sim", LINE):
            assert take(busy, name)  # held for LEASE_SECONDS of the simulated clock and never renewed or released
        with pytest.raises(Retryable, match="is leased by the service"):
            act(0)
        with pytest.raises(Retryable, match="is leased by the service"):
            act(LEASE_SECONDS / 2)
        act(TURN_SECONDS)


def _mended(context: LineContext, wait: float) -> None:
    said = reconcile(context, wait)
    if said and said[-1].startswith("skipped"):
        raise Retryable(said[-1])


def test_unavailable_registry_blocks_neither_promotion_nor_rollback(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    open_cycle(sim.context, "simulated")
    until(sim, State.ROLLING)

    def away(*_args) -> None:
        raise Retryable("the registry is unavailable")

    monkeypatch.setattr(sim.context.registry, "alias", away)
    sim.live()
    assert sim.view().state is State.PROMOTED
    assert serving(sim) == sim.view().candidate.tag
    go_back(sim)
    reconcile(sim.context)
    assert serving(sim) == sim.context.line_view().base.tag


def test_rollback_requested_before_the_promotion_is_recorded_takes_effect() -> None:
    sim = SimulatedLine(Scenario(seed=1))
    open_cycle(sim.context, "simulated")
    until(sim, State.ROLLING)
    from ratchet.contracts.ids import rollout_stream
    from ratchet.flows.engine.rollouts.rollout import tick

    while not sim.context.rollout_view(rollout_stream(sim.cycle_stream())).end:
        sim.clock.sleep(20)
        tick(rollout_stream(sim.cycle_stream()), sim.context)
    advance(sim.cycle_stream(), sim.context)  # routes all requests to the candidate
    go_back(sim)
    advance(sim.cycle_stream(), sim.context)
    reconcile(sim.context)
    assert sim.view().state is State.ROLLED_BACK
    assert serving(sim) == sim.context.line_view().base.tag
    assert sim.context.line_view().rollback_asked is None


def test_cancelled_cycle_ends_and_the_champion_stays() -> None:
    sim = promoted()
    champion = sim.context.line_view().champion.tag
    second = open_cycle(sim.context, "next")
    ask_cancel(sim.ledger, "sim", "ada", "", sim.clock.now())
    advance(second, sim.context)
    assert sim.context.cycle_view(second).state is State.CANCELLED
    assert fold_line("sim", sim.ledger.read(LINE)).champion.tag == champion
    assert sim.context.line_view().cancel_asked is None
    with pytest.raises(Rejected, match="no_open_cycle"):
        ask_cancel(sim.ledger, "sim", "ada", "", sim.clock.now())


def test_unexpected_error_is_retried_then_fails_the_cycle_without_user_data(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    open_cycle(sim.context, "simulated")
    until(sim, Step.PLAN)

    def broken(*_args) -> None:
        raise ValueError("the user said: my secret")

    monkeypatch.setattr(sim.context.datasets, "assemble", broken)
    for _ in range(UNFORESEEN_TRIES - 1):
        with pytest.raises(Retryable, match="ValueError"):
            advance(sim.cycle_stream(), sim.context)
    advance(sim.cycle_stream(), sim.context)
    assert sim.view().state is State.FAILED
    assert "ValueError at simulation/broken" in sim.view().reason
    assert "my secret" not in str([entry.data for rows in sim.ledger.rows.values() for entry in rows])


def test_model_server_that_ends_during_the_evaluation_says_nothing_about_the_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    open_cycle(sim.context, "simulated")
    until(sim, Step.EVALUATE)
    real = sim.context.evaluator.evaluate

    def killed(*_args) -> None:
        raise Unreachable("the model server of v refuses connections")

    monkeypatch.setattr(sim.context.evaluator, "evaluate", killed)
    for _ in range(3):
        with pytest.raises(Unreachable):
            advance(sim.cycle_stream(), sim.context)
    monkeypatch.setattr(sim.context.evaluator, "evaluate", real)
    sim.live()
    assert sim.view().state is State.PROMOTED


def test_model_that_always_brings_its_server_down_ends_the_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    open_cycle(sim.context, "simulated")
    until(sim, Step.EVALUATE)

    def killed(*_args) -> None:
        raise Unreachable("the model server of v refuses connections")

    monkeypatch.setattr(sim.context.evaluator, "evaluate", killed)
    for _ in range(UNREACHABLE_TRIES - 1):
        with pytest.raises(Unreachable):
            advance(sim.cycle_stream(), sim.context)
    advance(sim.cycle_stream(), sim.context)
    assert sim.view().state is State.FAILED
    assert sim.view().reason == f"evaluate: the model server of v refuses connections, {UNREACHABLE_TRIES} times"


def test_temporary_failure_is_recorded_once_despite_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    open_cycle(sim.context, "simulated")
    until(sim, Step.PLAN)
    real = sim.context.datasets.assemble

    def away(*_args) -> None:
        raise Retryable("the lake is unavailable")

    monkeypatch.setattr(sim.context.datasets, "assemble", away)
    for _ in range(5):
        with pytest.raises(Retryable):
            advance(sim.cycle_stream(), sim.context)
    assert [entry.data["error"] for entry in sim.ledger.read(sim.cycle_stream()) if entry.kind == "tried"] == ["the lake is unavailable"]
    monkeypatch.setattr(sim.context.datasets, "assemble", real)
    sim.live()
    assert sim.view().state is State.PROMOTED
