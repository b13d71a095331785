"""Tests that the number of model servers follows the share of the sessions, where the server can scale."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ratchet.contracts.errors import Incomplete
from ratchet.contracts.fakes import FakeScalingServer
from ratchet.contracts.ids import rollout_stream
from ratchet.contracts.serving import Route
from ratchet.flows.engine.reconcile import KEPT_SECONDS, reconcile
from tests.simulation.simulated_line import Scenario, SimulatedLine


@pytest.fixture
def sim() -> SimulatedLine:
    """A line whose next cycle is promoted, on servers that scale."""
    sim = SimulatedLine(Scenario(seed=1))
    server = FakeScalingServer(sim.router.world)
    server.up = sim.context.server.up  # type: ignore[attr-defined]
    object.__setattr__(sim.context, "server", server)
    return sim


def shares(sim: SimulatedLine) -> dict[str, float]:
    return sim.context.server.shares  # type: ignore[attr-defined,no-any-return]


def test_a_version_has_the_servers_for_its_sessions_before_it_gets_them(sim: SimulatedLine) -> None:
    checked, before = sim.router.watch, []

    def watch(route: Route) -> None:
        checked(route)
        for backend in route.backends[1:] if len(route.backends) > 1 else route.backends:
            if shares(sim):
                before.append((backend.weight, shares(sim).get(backend.tag, 0)))

    sim.router.watch = watch
    sim.live()
    assert len({weight for weight, _ in before}) > 2, before
    assert all(share >= weight for weight, share in before), before


def test_the_former_champion_keeps_its_servers_for_an_hour_and_then_one(sim: SimulatedLine) -> None:
    sim.live()
    reconcile(sim.context)
    line = sim.context.line_view()
    assert line.champion is not None
    if line.previous is None:
        pytest.skip("the scenario ended without a promotion")
    assert shares(sim)[line.champion.tag] == 100
    promoted = next(row.at for row in reversed(line.rows) if row.kind in ("champion", "rolled_back"))
    sim.clock.sleep(max(0.0, KEPT_SECONDS + 1 - (sim.clock.now() - promoted).total_seconds()))
    assert sim.clock.now() - promoted > timedelta(seconds=KEPT_SECONDS)
    reconcile(sim.context)
    assert shares(sim) == {line.champion.tag: 100, line.previous.tag: 0}


@pytest.mark.slow
def test_a_rollout_waits_while_counts_of_a_replica_are_missing(sim: SimulatedLine) -> None:
    def missing(_line: str, _since: object, _until: object) -> dict[str, int]:
        raise Incomplete("router-1 has not told its counts")

    told = sim.router.forwarded
    sim.router.forwarded = missing  # type: ignore[method-assign]
    sim.context.judge.enough = int(sim.context.loop.rollout.dark * 2)  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="not ended"):
        sim.live(turns=300)
    rollout = sim.context.rollout_view(rollout_stream(sim.cycle_stream()))
    assert rollout is not None
    assert rollout.end is None, "missing counts are no reason to go back"
    assert len(rollout.steps) == 1, "and none to advance"
    sim.router.forwarded = told  # type: ignore[method-assign]
    sim.live(turns=2000)
    rollout = sim.context.rollout_view(rollout_stream(sim.cycle_stream()))
    assert rollout is not None
    assert rollout.end == "promoted"
