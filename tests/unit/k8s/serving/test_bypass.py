"""Tests of when requests bypass the routers of a line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.serving import Endpoint
from ratchet.k8s.serving.bypass import ENDPOINT_SLICE, Bypass, BypassOptions, Routers, decide
from ratchet.k8s.serving.gateway import HTTP_ROUTE
from tests.memory_cluster import MemoryCluster

NOW = datetime(2026, 1, 1, tzinfo=UTC)
AFTER = 30.0


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("ready", "told", "since", "expected"),
    [
        (2, 1, None, False),
        (2, 3600, None, False),  # replicas that answer and do not reach the bucket
        (0, 10, None, False),  # replicas that are replaced
        (0, 29.9, None, False),
        (0, 30, None, True),
        (0, None, None, False),  # an installation whose routers have never run
        (0, 600, 600, True),
        (2, 1, 5, True),  # back too soon
        (2, 1, 30, False),
        (2, 600, 600, True),  # ready, and none has reported since
        (0, 1, 600, True),
    ],
)
def test_requests_bypass_routers_that_are_gone_until_they_are_back(
    ready: int, told: float | None, since: float | None, expected: bool
) -> None:
    known = Routers(ready, None if told is None else ago(told))
    assert decide(known, None if since is None else ago(since), NOW, AFTER) is expected


@given(st.integers(0, 3), st.floats(0, 1000), st.floats(0, 1000))
def test_it_never_begins_while_a_router_is_ready_nor_ends_while_none_is(ready: int, told: float, since: float) -> None:
    known = Routers(ready, ago(told))
    assert not (ready and decide(known, None, NOW, AFTER))
    assert ready or decide(known, ago(since), NOW, AFTER)


def test_the_route_follows_the_champion_and_is_deleted_at_the_end() -> None:
    cluster, told, clock = MemoryCluster(), [ago(60)], [NOW]
    options = BypassOptions(gateway="web", service="prod/prod-router", after=AFTER)
    bypass = Bypass(lambda: cluster, options, "shop", "models", lambda: told[0], lambda: clock[0])

    def endpoints(ready: bool) -> None:
        meta = {"name": "prod-router-x", "namespace": "prod", "labels": {"kubernetes.io/service-name": "prod-router"}}
        cluster.put(ENDPOINT_SLICE, {"metadata": meta, "endpoints": [{"conditions": {"ready": ready}}]})

    def served() -> str:
        live = cluster.get(HTTP_ROUTE, "ratchet-shop-bypass", "models")
        return "" if live is None else str(live["spec"]["rules"][0]["backendRefs"][0]["name"])

    def version(number: int) -> Endpoint:
        return Endpoint(tag=f"v-{number}", url=f"http://serve-{number}.models.svc:8000", model="m")

    endpoints(True)
    assert (bypass.look(version(1)), served()) == ("", "")
    endpoints(False)
    assert "sends requests to v-1" in bypass.look(version(1))
    assert (served(), bypass.since()) == ("serve-1", NOW)
    clock[0] += timedelta(seconds=5)
    assert (bypass.look(version(2)), served(), bypass.since()) == ("", "serve-2", NOW)
    writes = len(cluster.writes)
    assert (bypass.look(version(2)), len(cluster.writes)) == ("", writes)
    endpoints(True)
    clock[0] = told[0] = NOW + timedelta(seconds=40)
    assert "routers are ready again" in bypass.look(version(2))
    assert (served(), bypass.since()) == ("", None)
