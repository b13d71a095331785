"""Invariants that hold after every simulated run."""

from __future__ import annotations

from itertools import pairwise

from ratchet.contracts.hash_chain import verify_chain
from ratchet.contracts.ids import rollout_stream
from ratchet.contracts.jobs.training import Adjustment
from ratchet.contracts.steps import State, Step
from ratchet.flows.engine.reconcile import wanted_aliases
from tests.simulation.simulated_line import SimulatedLine

LIVES = 1500


def check(sim: SimulatedLine) -> None:
    """Assert the invariants that hold after every simulated run."""
    for stream in sim.ledger.rows:
        verify_chain(sim.ledger.rows[stream])
    assert {name: n for name, n in sim.world.effects.items() if n != 1} == {}
    view, line = sim.view(), sim.context.line_view()
    assert view.ended
    check_attempts(sim)
    assert sim.executor.live() == [], "a job still runs after the end of the cycle"
    assert line.open_cycle is None
    assert line.rollback_asked is None
    route = sim.router.read("sim")
    assert [(b.tag, b.weight) for b in route.backends if b.weight] == [(line.champion.tag, 100)]
    assert sim.context.registry.aliases("sim") == wanted_aliases(line, sim.context.cycle_view(line.open_cycle) if line.open_cycle else None)
    check_upgrade(sim)
    split = {route.salt for route in sim.router.history if len(route.backends) > 1}
    rollout = sim.context.rollout_view(rollout_stream(view.id))
    assert split <= {rollout.opened.salt if rollout else None}, "a session may change its version if the salt changes"
    assert rollout is None or rollout.opened.salt.startswith("salt ")
    if view.state is State.PROMOTED:
        assert line.champion.tag in (view.candidate.tag, line.base.tag)


def check_upgrade(sim: SimulatedLine) -> None:
    """Assert that only a plan of another release whose training is not complete ends a cycle with "plan again", and that it always does."""
    view, line = sim.view(), sim.context.line_view()
    outdated = view.plan is not None and view.plan.code != sim.context.code
    again = view.state is State.SUPERSEDED
    assert line.plan_again == again
    if again:
        assert outdated
        assert "plan again" in view.reason
        assert view.candidate is None
    rows = sim.ledger.rows[view.id]
    upgraded = sim.upgraded_at
    begun = [row for row in rows if row.kind == "intended" and row.key.startswith(f"{Step.TRAIN}/")]
    if outdated and upgraded is not None:
        assert all(row.at < upgraded for row in begun), "a training was started with the plan of another release"


def check_search(sim: SimulatedLine) -> None:
    """Assert that a search tries each recipe once, and that its candidate is the model of the chosen trial."""
    view = sim.view()
    assert [one.trial.number for one in view.trials] == list(range(1, len(view.trials) + 1))
    assert len({one.trial.variant for one in view.trials}) == len(view.trials), "a recipe was tried twice"
    assert all(one.end for one in view.trials[:-1]), "two trials ran at the same time"
    if view.chosen is not None:
        trial = view.trials[view.chosen.trial - 1]
        assert trial.succeeded
        assert view.trained_plan.id == view.chosen.plan
        assert view.candidate is None or view.candidate.plan == view.chosen.plan
    else:
        assert not view.trials or view.candidate is None, "a candidate without a choice"


def check_attempts(sim: SimulatedLine) -> int:
    """Assert the invariants of adjusted attempts and return their number.

    The plan stays the same, no rule proposes an adjustment twice, and no attempt resumes from a step after the problem began.
    """
    view, executor = sim.view(), sim.executor
    minted = [attempt for attempt, adjustment in view.adjustments.items() if adjustment.rules]
    last = {i.attempt: i for i in view.incarnations}
    assert {spec.plan for spec in executor.specs.values()} <= {plan.id for plan in view.plans}
    begins = [one.trial.attempt for one in view.trials] or [1]
    counts = [sum(begin <= attempt < end for attempt in last) for begin, end in pairwise([*begins, 10**9])]
    assert counts[0] <= sim.scenario.attempts
    assert all(count <= 1 for count in counts[1:]), "only the first trial of a search has several attempts"
    check_search(sim)
    for attempt in minted:
        adjustment = view.adjustments[attempt]
        assert len(set(adjustment.rules)) == len(adjustment.rules)
        assert adjustment.rules[-1] == last[attempt - 1].proposal.rule
        assert adjustment == view.adjustments.get(attempt - 1, Adjustment()).then(last[attempt - 1].proposal, last[attempt - 1].reason)
    for name, point in executor.pins.items():
        spec = executor.specs.get(name)
        assert point in view.accepted
        if spec is not None and point.attempt != spec.attempt:
            assert set(range(point.attempt + 1, spec.attempt + 1)) <= set(minted)
            assert all(point.step <= last[attempt].proposal.good for attempt in range(point.attempt, spec.attempt))
    return len(minted)
