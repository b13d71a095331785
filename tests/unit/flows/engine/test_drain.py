"""Tests that the reconciler stops a model server only when that cuts no answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ratchet.contracts.errors import Incomplete, Retryable
from ratchet.contracts.serving import Backend, Endpoint, Route
from ratchet.flows.engine.reconcile import reconcile
from tests.simulation.simulated_line import Scenario, SimulatedLine

OLD = "v-old"
STOPPED = f"stopped the server of {OLD}"


@pytest.fixture
def sim(tmp_path: Path) -> SimulatedLine:
    """A line whose route is in force, and the server of a version that it no longer wants."""
    sim = SimulatedLine(Scenario(seed=1))
    sim.router.watch = lambda _route: None
    object.__setattr__(sim.context, "scratch", tmp_path)
    reconcile(sim.context)
    sim.context.server.up[OLD] = Endpoint(tag=OLD, url="http://old", model=OLD)  # type: ignore[attr-defined]
    return sim


def test_a_server_stops_when_no_request_to_it_is_in_flight(sim: SimulatedLine) -> None:
    sim.router.open = lambda: {OLD: 1}
    assert STOPPED not in reconcile(sim.context)
    assert STOPPED not in reconcile(sim.context), "each look decides again"
    sim.router.open = lambda: {"other": 3}
    assert STOPPED in reconcile(sim.context)


def test_a_server_in_the_route_does_not_stop(sim: SimulatedLine) -> None:
    route = sim.router.read("sim")
    assert route is not None
    extra = Backend(tag=OLD, url="http://old", model=OLD, weight=1)

    def with_old(_line: str) -> Route:
        return route.model_copy(update={"backends": (*route.backends, extra)})

    sim.router.read = with_old  # type: ignore[method-assign]
    assert STOPPED not in reconcile(sim.context)
    extra = extra.model_copy(update={"weight": 0})
    assert STOPPED in reconcile(sim.context)


def unknown(error: Exception) -> Callable[[], Mapping[str, int]]:
    def raises() -> Mapping[str, int]:
        raise error

    return raises


@pytest.mark.parametrize(
    "open_requests",
    [lambda: {OLD: 1}, unknown(Retryable("not yet")), unknown(AttributeError("in_flight"))],
    ids=["a request hangs", "the router does not report", "a router of another package without it"],
)
def test_a_server_stops_at_the_latest_after_the_time_to_drain(sim: SimulatedLine, open_requests: Callable[[], Mapping[str, int]]) -> None:
    sim.router.open = open_requests
    assert STOPPED not in reconcile(sim.context)
    sim.clock.sleep(sim.context.loop.serving.drain - 1)
    assert STOPPED not in reconcile(sim.context)
    sim.clock.sleep(1)
    assert STOPPED in reconcile(sim.context)


def test_a_server_does_not_stop_while_a_replica_of_the_router_may_use_it(sim: SimulatedLine) -> None:
    sim.router.open = unknown(Incomplete("router-1 has not confirmed the route"))
    for _ in range(3):
        assert STOPPED not in reconcile(sim.context)
        sim.clock.sleep(sim.context.loop.serving.drain)
    sim.router.open = dict
    assert STOPPED in reconcile(sim.context)


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_a_step_of_the_wall_clock_cuts_off_no_request(sim: SimulatedLine, step: float) -> None:
    sim.router.open = lambda: {OLD: 1}
    reconcile(sim.context)
    sim.clock.set(step)
    assert STOPPED not in reconcile(sim.context)
    sim.clock.sleep(sim.context.loop.serving.drain)
    assert STOPPED in reconcile(sim.context)


def test_the_time_to_drain_begins_again_when_a_version_had_traffic_in_between(sim: SimulatedLine) -> None:
    sim.router.open = lambda: {OLD: 1}
    reconcile(sim.context)
    route = sim.router.read("sim")
    assert route is not None
    extra = Backend(tag=OLD, url="http://old", model=OLD, weight=1)
    sim.router.routes["sim"] = route.model_copy(update={"backends": (*route.backends, extra)})
    sim.clock.sleep(60)
    reconcile(sim.context)
    sim.clock.sleep(61)
    assert STOPPED not in reconcile(sim.context)
    sim.clock.sleep(120)
    assert STOPPED in reconcile(sim.context)


def test_without_a_route_in_force_no_server_stops(sim: SimulatedLine) -> None:
    sim.router.routes.clear()
    sim.router.set = lambda _route: None  # type: ignore[method-assign]
    assert STOPPED not in reconcile(sim.context)


def test_the_time_to_drain_is_a_setting(sim: SimulatedLine) -> None:
    sim.router.open = lambda: {OLD: 1}
    serving = sim.context.loop.serving.model_copy(update={"drain": 0.0})
    object.__setattr__(sim.context, "loop", sim.context.loop.model_copy(update={"serving": serving}))
    assert STOPPED in reconcile(sim.context)
