"""Simulations of the loop with thousands of seeds: the invariants hold for every crash, job outcome and approval decision."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Method, Proposal
from ratchet.contracts.steps import State, Step
from ratchet.flows.core.run_comparison import project
from ratchet.flows.engine.line import open_if_due
from ratchet.trainers.health import REMEDIES
from tests.simulation.invariants import LIVES, check, check_attempts
from tests.simulation.simulated_line import Crash, Scenario, SimulatedLine, nth_fault, scenario, seeded_faults

ASKS = tuple(Proposal(rule=rule, adjustment=REMEDIES[rule], good=1) for rule in ("kl", "not_finite"))


@pytest.mark.timeout(1800)  # a minute on an idle machine, and ten on one whose cores six others use
def test_invariants_hold_in_seeded_runs_with_faults() -> None:
    states, adjusted, crossed, chosen = set(), 0, 0, set()
    for seed in range(LIVES):
        sim = SimulatedLine(scenario(seed), seeded_faults(seed))
        try:
            sim.live()
            check(sim)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {scenario(seed)}") from error
        states.add(sim.view().state)
        chosen.add(sim.view().chosen.trial if sim.view().chosen else None)
        adjusted += check_attempts(sim)
        pins = [(sim.executor.specs.get(name), point) for name, point in sim.executor.pins.items()]
        crossed += sum(spec is not None and spec.attempt != point.attempt for spec, point in pins)
    assert adjusted > 50, "too few adjusted attempts to test them"
    assert crossed > 25, "too few attempts that resumed from a step of an earlier attempt"
    ends = {State.PROMOTED, State.NOT_TRAINED, State.REJECTED, State.HELD, State.FAILED, State.EXPIRED, State.ROLLED_BACK, State.CANCELLED}
    assert states == ends | {State.SUPERSEDED}
    assert chosen == {None, 1, 2, 3}, "every trial can win a search"


@pytest.mark.parametrize(
    "life",
    [
        Scenario(seed=1, outcomes=(Outcome.PREEMPTED, Outcome.LOST, Outcome.FAILED)),
        Scenario(seed=1, outcomes=(Outcome.FAILED,) * 3, asks=ASKS, attempts=3),
        Scenario(seed=1, outcomes=(Outcome.PREEMPTED, Outcome.FAILED, Outcome.FAILED), search=True),
        Scenario(seed=2, bad_canary=True),
        Scenario(seed=3, difference=-0.2),
        Scenario(seed=4, people="no"),
        Scenario(seed=5, method=Method.NONE),
        Scenario(seed=6, people="auto"),
        Scenario(seed=7, given=("chat template",)),
    ],
    ids=["promoted", "adjusted", "searched", "rolled-back", "gate-fails", "person-says-no", "not-trained", "auto", "given"],
)
def test_crash_at_any_point_does_not_change_the_result(life: Scenario) -> None:
    calm = SimulatedLine(life)
    calm.live()
    expected = sorted(row for rows in calm.ledger.rows.values() for row in timeless(rows))
    instants = 0
    while True:
        struck: list[str] = []
        strike = nth_fault(instants)

        def faults(where: str, strike=strike, struck=struck) -> None:
            try:
                strike(where)
            except Crash:
                struck.append(where)
                raise

        sim = SimulatedLine(life, faults)
        sim.live()
        if not struck:
            break
        check(sim)
        assert sorted(row for rows in sim.ledger.rows.values() for row in timeless(rows)) == expected, struck
        instants += 1
    assert instants > 20


def timeless(rows):
    """Return the projection without data that depends on the time: expiry times, texts that quote them, and turn numbers."""
    dated = {"asked", "opened", "ended", "cycle_ended", "job_ended", "trial_ended"}
    frozen = {Step.FREEZE, Step.PLAN, Step.PROBE}
    return [(s, kind, key, "" if kind in dated or key in frozen else d) for s, kind, key, d in project(rows)]


def test_clock_that_jumps_by_an_hour_breaks_no_invariant_and_blocks_no_line() -> None:
    states = set()
    for seed in range(LIVES // 5):
        draw = random.Random(f"jumps {seed}")
        jumps = tuple((draw.randrange(60), draw.choice((-3600.0, 3600.0, -30.0))) for _ in range(draw.randint(1, 3)))
        life = replace(scenario(seed), jumps=jumps, upgrade_at=None)  # the check of upgrades compares times
        sim = SimulatedLine(life, seeded_faults(seed, 0.02))
        try:
            sim.live(turns=2000)  # a request expires at the announced time, although the clock was set back
            check(sim)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {life}") from error
        states.add(sim.view().state)
    assert {State.PROMOTED, State.ROLLED_BACK, State.NOT_TRAINED} <= states


@pytest.mark.parametrize("seconds", [-3600.0, -30.0, 3600.0])
@pytest.mark.parametrize("turn", range(0, 60, 2))
def test_clock_that_jumps_does_not_change_the_effects_of_a_calm_cycle(turn: int, seconds: float) -> None:
    sim = SimulatedLine(Scenario(seed=9, jumps=((turn, seconds),)))
    sim.live()
    check(sim)
    assert sim.view().state in (State.PROMOTED, State.ROLLED_BACK, State.EXPIRED)
    if sim.view().state is State.ROLLED_BACK:
        assert "clock was set back" in sim.view().reason or "undecided" in sim.view().reason


@pytest.mark.parametrize("turn", range(40))
def test_upgrade_in_any_turn_promotes_or_plans_again_at_once(turn: int) -> None:
    sim = SimulatedLine(Scenario(seed=8, upgrade_at=turn))
    sim.live()
    check(sim)
    assert sim.view().state in (State.PROMOTED, State.SUPERSEDED)
    if sim.view().state is State.SUPERSEDED:
        second, reason = open_if_due(sim.context, scheduled=False)
        assert (second, reason) == ("cycle/sim/0002", "the plan of the last cycle was made by another release")
        assert not sim.context.line_view().plan_again


def test_requested_rollback_restores_the_previous_version() -> None:
    sim = SimulatedLine(Scenario(seed=7, rollback_at=390))
    sim.live()
    promoted = sim.context.line_view()
    assert promoted.champion.tag != promoted.base.tag
    sim.scenario = replace(sim.scenario, rollback_at=0)
    sim.turn = 0
    sim._people()
    sim._work()
    after = sim.context.line_view()
    assert after.champion.tag == promoted.base.tag
    assert sim.router.read("sim").backends[0].tag == promoted.base.tag
