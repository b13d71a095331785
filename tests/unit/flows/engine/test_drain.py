"""Tests that the reconciler stops a model server only when that cuts no answer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import pytest

from contracts.errors import Retryable
from contracts.serving import Backend, Endpoint, Route
from flows.engine.reconcile import reconcile
from tests.simulation.simulated_line import Scenario, SimulatedLine

OLD = "v-old"
STOPPED = f"stopped the server of {OLD}"


@pytest.fixture
def sim() -> SimulatedLine:
    """A line whose route is in force, and the server of a version that it no longer wants."""
    sim = SimulatedLine(Scenario(seed=1))
    sim.router.watch = lambda _route: None
    sim.router.counts = lambda _since, _until: {}
    reconcile(sim.context)
    sim.context.server.up[OLD] = Endpoint(tag=OLD, url="http://old", model=OLD)  # type: ignore[attr-defined]
    return sim


def test_a_server_stops_when_no_request_to_it_is_in_flight(sim: SimulatedLine) -> None:
    sim.router.open = lambda: {OLD: 1}
    sim.router.counts = lambda _since, _until: {OLD: 1}
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


@pytest.mark.parametrize("error", [Retryable("not yet"), AttributeError("in_flight")], ids=["unknown", "a router of an older release"])
def test_without_the_requests_in_flight_a_server_stops_after_the_time_to_drain(sim: SimulatedLine, error: Exception) -> None:
    last = sim.clock.now()

    def unknown() -> Mapping[str, int]:
        raise error

    def counts(since: datetime, until: datetime) -> Mapping[str, int]:
        return {OLD: 1} if since <= last < until else {}

    sim.router.open, sim.router.counts = unknown, counts
    sim.clock.sleep(1)
    assert STOPPED not in reconcile(sim.context)
    sim.clock.sleep(sim.context.loop.serving.drain)
    assert STOPPED in reconcile(sim.context)


def test_a_request_that_hangs_does_not_keep_a_server_for_ever(sim: SimulatedLine) -> None:
    begun = sim.clock.now()
    sim.router.open = lambda: {OLD: 1}
    sim.router.counts = lambda since, until: {OLD: 1} if since <= begun < until else {}
    sim.clock.sleep(sim.context.loop.serving.drain - 1)
    assert STOPPED not in reconcile(sim.context)
    sim.clock.sleep(2)
    assert STOPPED in reconcile(sim.context)


def test_without_a_route_in_force_no_server_stops(sim: SimulatedLine) -> None:
    sim.router.routes.clear()
    sim.router.set = lambda _route: None  # type: ignore[method-assign]
    assert STOPPED not in reconcile(sim.context)


def test_the_time_to_drain_is_a_setting(sim: SimulatedLine) -> None:
    asked: list[timedelta] = []
    sim.router.open = lambda: {OLD: 1}
    sim.router.counts = lambda since, until: asked.append(until - since) or {}  # type: ignore[func-returns-value]
    serving = sim.context.loop.serving.model_copy(update={"drain": 7.0})
    object.__setattr__(sim.context, "loop", sim.context.loop.model_copy(update={"serving": serving}))
    assert STOPPED in reconcile(sim.context)
    assert asked == [timedelta(seconds=7)]
