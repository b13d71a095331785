"""Tests of how a cycle is carried through its steps, on a simulated line with fake ports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.contracts.cycle import Answer, Identity
from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import line_stream
from ratchet.contracts.jobs.training import Method
from ratchet.contracts.steps import State, Step
from ratchet.flows.composition.installation import silent
from ratchet.flows.core.folds.cycle import fold_cycle
from ratchet.flows.core.folds.line import fold_line
from ratchet.flows.core.folds.rollout import fold_rollout
from ratchet.flows.core.requests import fold_approval
from ratchet.flows.core.steps import step_of
from ratchet.flows.engine.effects import EFFECTS
from ratchet.flows.engine.line import answer, ask_cancel, open_cycle
from ratchet.flows.engine.rollouts.rollout import tick
from ratchet.flows.service.carry import carry, look, position
from tests.simulation.simulated_line import Scenario, SimulatedLine

CYCLE = "cycle/sim/0001"
LOOP = Path("sim.toml")


def installation_of(sim: SimulatedLine) -> Any:
    """Return an installation with one simulated line."""

    def rollout(cycle: str) -> Any:
        rows = sim.ledger.read(cycle.replace("cycle/", "rollout/"))
        return fold_rollout(rows) if rows else None

    return SimpleNamespace(
        ledger=sim.ledger,
        context=lambda _path: sim.context,
        cycle_context=lambda _cycle: sim.context,
        line=lambda name: fold_line(name, sim.ledger.read(line_stream(name))),
        cycle=lambda _line, _number: fold_cycle(sim.ledger.read(CYCLE)),
        rollout=rollout,
    )


def opened(people: str = "yes", **given: Any) -> tuple[SimulatedLine, Any]:
    """Return a simulated line with an open cycle, and its installation."""
    sim = SimulatedLine(Scenario(seed=1, people=people, **given))
    sim.context.datasets.traces = 2000
    open_cycle(sim.context, "a test")
    return sim, installation_of(sim)


def approve(sim: SimulatedLine, kind: str) -> None:
    """Approve the pending request of this kind."""
    view = fold_approval(sim.ledger.read(f"approval/sim/0001/{kind}"))
    given = Answer(approve=True, actor="ada", identity=Identity.CLAIMED, via="prefect")
    answer(sim.ledger, view, given, sim.clock.now())


def test_every_step_is_carried_in_order_and_only_by_itself() -> None:
    sim, installation = opened()
    taken = []
    for _ in range(200):
        now = position(installation, CYCLE)
        if now.step is None:
            break
        assert carry(installation, CYCLE, Step.PROMOTE if now.step is Step.FREEZE else Step.FREEZE, silent).step == now.step
        at, now = now.step, carry(installation, CYCLE, now.step, silent)
        if at not in taken:
            taken.append(at)
        match now.step if now.step is at else None:
            case Step.APPROVE_TRAINING:
                assert now.waits.startswith("approval of training until")
                approve(sim, "training")
            case Step.APPROVE_ROLLOUT:
                approve(sim, "rollout")
            case Step.TRAIN:
                sim.clock.sleep(30)
            case Step.ROLL_OUT:
                sim.clock.sleep(120)
                if installation.rollout(CYCLE) is not None:
                    tick("rollout/sim/0001", sim.context)
    assert sim.view().state is State.PROMOTED
    assert taken == list(Step)


def test_a_look_changes_nothing_and_says_when_there_is_work() -> None:
    sim, installation = opened()
    assert look(installation, CYCLE, Step.FREEZE) is None
    carry(installation, CYCLE, Step.FREEZE, silent)
    for step in (Step.PROBE, Step.PLAN, Step.APPROVE_TRAINING):
        carry(installation, CYCLE, step, silent)
    rows = len(sim.ledger.read(CYCLE))
    waiting = look(installation, CYCLE, Step.APPROVE_TRAINING)
    assert waiting is not None
    assert waiting.waits.startswith("approval of training until")
    assert len(sim.ledger.read(CYCLE)) == rows
    approve(sim, "training")
    assert look(installation, CYCLE, Step.APPROVE_TRAINING) is None
    passed = look(installation, CYCLE, Step.PROBE)
    assert passed is not None
    assert passed.step is Step.APPROVE_TRAINING


def test_while_another_process_holds_the_lease_the_step_waits() -> None:
    sim, installation = opened()
    sim.ledger.acquire(line_stream("sim"), "another process", 60, sim.clock.now())
    now = carry(installation, CYCLE, Step.FREEZE, silent)
    assert now.step is Step.FREEZE
    assert "is leased by another process" in now.waits
    assert not now.failed


def test_step_whose_effect_fails_waits_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    sim, installation = opened()

    def away(*_: Any, **__: Any) -> Any:
        raise Retryable("the lake is away")

    monkeypatch.setitem(EFFECTS, Step.FREEZE, away)
    now = carry(installation, CYCLE, Step.FREEZE, silent)
    assert now.failed
    assert now.waits == "the lake is away"
    carry(installation, CYCLE, Step.FREEZE, silent)
    assert [row.kind for row in sim.ledger.read(CYCLE)].count("tried") == 1, "the same failure is recorded once"


def test_cancelled_cycle_ends_at_the_step_where_it_is() -> None:
    sim, installation = opened()
    carry(installation, CYCLE, Step.FREEZE, silent)
    ask_cancel(sim.ledger, "sim", "ada", "a mistake", sim.clock.now())
    now = carry(installation, CYCLE, Step.PROBE, silent)
    assert now.step is None
    assert now.cycle.state is State.CANCELLED


def test_cycle_that_is_not_trained_ends_at_the_choice() -> None:
    _, installation = opened(method=Method.NONE)
    for step in (Step.FREEZE, Step.PROBE):
        carry(installation, CYCLE, step, silent)
    now = carry(installation, CYCLE, Step.PLAN, silent)
    assert now.step is None
    assert now.cycle.state is State.NOT_TRAINED


def test_every_state_of_an_open_cycle_has_a_step() -> None:
    sim, _installation = opened()
    view = sim.view()
    for state in State:
        if state in (State.PLANNED, State.VERDICT, State.ATTEMPT):
            continue
        step = step_of(replace(view, state=state), None)
        assert (step is None) == replace(view, state=state).ended
