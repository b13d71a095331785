"""Tests of adapters in the champion's process: where one is refused, and the reaction of a rollout when the process dies."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from ratchet.contracts.fakes import FakeSharingServer, fake_model
from ratchet.contracts.loop import Loop
from ratchet.contracts.model import ModelRef
from ratchet.contracts.serving import Outage
from ratchet.contracts.steps import State
from ratchet.flows.core.rollouts.rollout import Finish, Hold
from ratchet.flows.engine.choice.adapters import cannot_share
from ratchet.flows.engine.reconcile import reconcile
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.unit.flows.engine.rollouts.rollout_line import RolloutLine

BASE = fake_model("base")


class Line(RolloutLine[FakeSharingServer]):
    """A line in the first step of a rollout, whose versions share a process."""

    def __init__(self) -> None:
        super().__init__(FakeSharingServer)

    def die(self) -> None:
        self.server.die(self.view.candidate.tag, self.sim.clock.now())


def test_a_death_holds_the_rollout_and_the_step_begins_again() -> None:
    line = Line()
    first = line.view.steps[-1]
    line.sim.clock.sleep(120)
    line.die()
    decision = line.tick()
    assert isinstance(decision, Hold)
    assert "share has died" in decision.reason
    assert line.view.outages == ()
    repairs = reconcile(line.sim.context)
    assert {text for text in repairs if text.startswith("started")} == {
        f"started the server of {one.tag}" for one in (line.view.champion, line.view.candidate)
    }
    line.tick()
    assert len(line.view.outages) == 1
    again = line.view.steps[1]
    assert (again.index, again.weight) == (first.index, first.weight)
    assert line.view.steps[0].until is not None
    assert again.since - line.view.steps[0].until > timedelta(seconds=60)
    assert line.view.end is None


def test_deaths_before_the_rollout_do_not_count() -> None:
    line = Line()
    for seconds in (300, 200, 100):
        at = line.view.first.at - timedelta(seconds=seconds)
        line.server.deaths.setdefault(line.view.candidate.tag, []).append(Outage(since=at, until=at + timedelta(seconds=9)))
    line.tick()
    assert line.view.end is None
    assert line.view.outages == ()


def test_no_evidence_is_read_while_the_process_is_down() -> None:
    line = Line()
    line.die()

    def refuse(*_: object) -> None:
        raise AssertionError("failures of a process that is down are no evidence")

    line.sim.context.metrics.evidence = refuse  # type: ignore[method-assign, assignment]
    assert isinstance(line.tick(), Hold)


def test_it_holds_until_the_route_leads_to_the_new_process() -> None:
    line = Line()
    line.die()
    for version in (line.view.champion, line.view.candidate):
        endpoint = line.server.ensure(version)
        line.server.up[version.tag] = endpoint.model_copy(update={"url": "http://moved"})
    assert isinstance(line.tick(), Hold)
    assert line.view.outages == ()
    reconcile(line.sim.context)
    line.tick()
    assert len(line.view.outages) == 1


def test_the_third_death_ends_the_rollout_for_the_shared_process() -> None:
    line = Line()
    for _ in range(2):
        line.die()
        reconcile(line.sim.context)
        line.tick()
        assert line.view.end is None
    line.die()
    decision = line.tick()
    assert isinstance(decision, Finish)
    assert decision.end == "rolled_back"
    assert decision.reason.startswith("shared process")
    route = line.sim.router.read("sim")
    assert route is not None
    assert [backend.tag for backend in route.backends] == [line.view.champion.tag]


def test_after_deaths_a_rollout_still_ends_by_its_evidence() -> None:
    line = Line()
    line.die()
    reconcile(line.sim.context)
    for _ in range(60):
        line.tick(20)
        if line.view.end:
            break
    assert line.view.end == "promoted"


def with_setting(line: SimulatedLine, server: FakeSharingServer) -> None:
    loop = Loop.model_validate(line.context.loop.model_dump() | {"serving": {"adapters": "shared"}})
    line.context = replace(line.context, server=server, loop=loop)


@pytest.mark.parametrize(
    ("start", "told"),
    [(BASE, None), (fake_model("other"), "the process of the champion v-")],
)
def test_only_adapters_over_the_model_that_the_process_has_loaded_fit(start: ModelRef, told: str | None) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    with_setting(sim, FakeSharingServer(sim.world))
    found = cannot_share(sim.context, start, 8)
    assert (found is None) if told is None else told in str(found)


def test_a_champion_that_is_an_adapter_holds_no_other() -> None:
    sim = SimulatedLine(Scenario(seed=1))
    with_setting(sim, FakeSharingServer(sim.world))
    champion = sim.context.line_view().champion
    assert champion is not None
    adapter = champion.model_copy(update={"model": fake_model("adapter").model_copy(update={"parent": BASE.files})})
    view = replace(sim.context.line_view(), champion=adapter)
    object.__setattr__(sim.context, "line_view", lambda: view)
    told = cannot_share(sim.context, adapter.model.whole, 8)
    assert told is not None
    assert "is an adapter" in told


def test_a_whole_candidate_has_a_process_of_its_own() -> None:
    sim = SimulatedLine(Scenario(seed=1, people="auto"))
    with_setting(sim, FakeSharingServer(sim.world))
    sim.executor.context = sim.context
    sim.live()
    assert sim.view().state is State.PROMOTED, sim.view().reason
