"""Tests of the bypass of a router that is down, as the keeper calls it."""

from __future__ import annotations

from dataclasses import replace

from ratchet.contracts.fakes import FakeBypassingRouter, FakeServer
from ratchet.flows.engine.reconcile import reconcile
from ratchet.flows.engine.rollouts.bypass import bypass
from tests.simulation.simulated_line import Scenario, SimulatedLine


def test_the_bypass_leads_to_the_champion_whose_server_answers() -> None:
    sim = SimulatedLine(Scenario(seed=1))
    assert bypass(sim.context) == [], "the usual router has none"
    router = FakeBypassingRouter(sim.world)
    context = replace(sim.context, router=router)
    reconcile(context)
    champion = context.line_view().champion
    assert champion is not None
    assert bypass(context) == []
    router.is_down = True
    assert bypass(context) == [f"requests go to {champion.tag}"]
    assert bypass(context) == [], "a repeated call changes nothing"
    server = context.server
    assert isinstance(server, FakeServer)
    server.up.clear()
    router.is_down = False
    assert bypass(context) == [], "without a server, nothing is changed"
    reconcile(context)
    assert bypass(context) == ["requests go to the router"]
    router.can_bypass, router.is_down = False, True
    assert bypass(context) == [], "the settings of the line do not allow it"
