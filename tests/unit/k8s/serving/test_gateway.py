"""Tests of the router that sets weights of an HTTPRoute, on an API server in memory. A real one tests owners of fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError, Incomplete, Retryable
from ratchet.extend.testkit import make_route
from ratchet.k8s.serving.gateway import HTTP_ROUTE, GatewayRouter, GatewayRouterOptions, namespace_of, open_gateway_router
from tests.memory_cluster import MemoryCluster

URL = "http://{tag}.models.svc:8000"


class Bench:
    """A router whose Gateway does what `gateway` says while the router waits."""

    def __init__(self) -> None:
        self.cluster, self.now = MemoryCluster(), 0.0
        self.gateway: Callable[[], None] = lambda: self.judge("True")
        options = GatewayRouterOptions(url="http://gateway", gateway="web", gateway_namespace="gateways")
        self.router = GatewayRouter(lambda: self.cluster, options, lambda: self.now, self.sleep)
        self.router.join("line", "models", (10, 100))

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.gateway()

    def live(self) -> dict[str, Any]:
        found = self.cluster.get(HTTP_ROUTE, "ratchet-line", "models")
        assert found is not None
        return found

    def judge(self, status: str) -> None:
        """Let the Gateway look at the route."""
        found = self.live()
        words = {"status": status, "observedGeneration": found["metadata"].get("generation"), "reason": "NoSuchService", "message": "m"}
        conditions = [{"type": kind, **words} for kind in ("Accepted", "ResolvedRefs")]
        parents = [{"parentRef": {"name": "web", "namespace": "gateways"}, "conditions": conditions}]
        self.cluster.put(HTTP_ROUTE, {**found, "status": {"parents": parents}})


def test_weights_are_in_force_when_the_gateway_has_accepted_them() -> None:
    bench = Bench()
    assert bench.router.read("line") is None
    with pytest.raises(Incomplete, match="does not exist"):
        bench.router.in_flight("line")
    bench.router.set(make_route(90, 10, url=URL))
    assert bench.router.read("line") == make_route(90, 10, url=URL)
    assert bench.router.read("other") is None
    bench.judge("False")
    assert bench.router.read("line") is None
    with pytest.raises(Incomplete, match="NoSuchService"):
        bench.router.in_flight("line")


@pytest.mark.parametrize(("gateway", "reason"), [(lambda: None, "has not looked at it"), (None, "ResolvedRefs|Accepted is False")])
def test_weights_that_no_gateway_accepts_are_reported(gateway: Callable[[], None] | None, reason: str) -> None:
    bench = Bench()
    bench.gateway = gateway or (lambda: bench.judge("False"))
    with pytest.raises(Retryable, match=f"not in force after 30 s: .*({reason})"):
        bench.router.set(make_route(100, url=URL))


def test_shares_of_a_rollout_must_be_exact() -> None:
    with pytest.raises(ConfigError, match="at most 4 decimals"):
        Bench().router.join("line", "models", (100 / 3,))


def test_the_router_needs_services_and_valid_options() -> None:
    assert namespace_of("kubernetes", {"namespace": "models"}) == "models"
    with pytest.raises(ConfigError, match="names Services"):
        namespace_of("embedded", {})
    with pytest.raises(ConfigError, match="gateway"):
        open_gateway_router(None, None, None, 0, False, url="http://g")  # type: ignore[arg-type]
