"""Tests of the HTTPRoute of a line: exact weights, pins, and how a live object is read."""

from __future__ import annotations

import copy
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.errors import ConfigError, Permanent
from ratchet.contracts.serving import Backend, Route
from ratchet.k8s.manifests.http_route import (
    MANAGER,
    PATHS,
    ParentRef,
    difference,
    integer_weights,
    not_accepted,
    other_managers,
    service_of,
    weighted_route,
    written_route,
)
from ratchet.router.app import APIS

GATEWAY = ParentRef(name="web", namespace="gateways")


def route(*weights: float) -> Route:
    backends = tuple(
        Backend(tag=f"v-{n}", url=f"http://serve-{n}.models.svc:8000", model=f"v-{n}", weight=weight) for n, weight in enumerate(weights)
    )
    return Route(line="shop", served_model="shop", backends=backends, annotation="rollout/1/2", salt="s")


def live(*weights: float) -> dict[str, Any]:
    """Return the object as an API server returns it, with the defaults of the API."""
    body = weighted_route(route(*weights), "ratchet-shop", "models", GATEWAY, ("shop.example",), pins=True).model_dump(
        mode="json", by_alias=True, exclude_none=True
    )
    body["metadata"]["generation"] = 3
    body["spec"]["parentRefs"][0] |= {"group": "gateway.networking.k8s.io", "kind": "Gateway"}
    for rule in body["spec"]["rules"]:
        for ref in rule["backendRefs"]:
            ref |= {"group": "", "kind": "Service"}
    return body


def accepted(generation: int = 3, **conditions: str) -> dict[str, Any]:
    found = [
        {"type": kind, "status": conditions.get(kind, "True"), "observedGeneration": generation, "reason": "R", "message": "m"}
        for kind in ("Accepted", "ResolvedRefs")
    ]
    return {"parents": [{"parentRef": {"name": "web", "namespace": "gateways"}, "conditions": found}]}


@given(st.lists(st.integers(0, 1_000_000).map(lambda n: n / 10_000), min_size=1, max_size=3))
def test_integers_have_exactly_the_ratio_of_the_percentages(percentages: list[float]) -> None:
    found = integer_weights(percentages)
    assert all(0 <= one <= 1_000_000 for one in found)
    exact = [Fraction(repr(one)) for one in percentages]
    assert all(a * y == b * x for a, x in zip(found, exact, strict=True) for b, y in zip(found, exact, strict=True))


@pytest.mark.parametrize(
    ("percentages", "expected"), [((95, 5), (95, 5)), ((99.5, 0.5), (995, 5)), ((66.6667, 100 - 66.6667), (666667, 333333))]
)
def test_weights_of_a_rollout_are_readable(percentages: tuple[float, ...], expected: tuple[int, ...]) -> None:
    assert integer_weights(percentages) == expected


@pytest.mark.parametrize("share", [100 / 3, 0.00001])
def test_a_percentage_that_is_not_exact_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.steps"):
        integer_weights((100 - share, share))


def test_only_the_paths_of_the_router_lead_to_model_servers() -> None:
    assert set(PATHS) == {api.path for api in APIS} | {"/v1/models"}


def test_a_pin_to_the_candidate_never_reaches_the_champion() -> None:
    champion, candidate, users = live(90, 10)["spec"]["rules"]
    assert [ref["name"] for ref in champion["backendRefs"]] == ["serve-0"]
    assert [ref["name"] for ref in candidate["backendRefs"]] == ["serve-1"]
    assert {(ref["name"], ref["weight"]) for ref in users["backendRefs"]} == {("serve-0", 90), ("serve-1", 10)}
    assert all(match["headers"] == [{"type": "Exact", "name": "x-ratchet-pin", "value": "candidate"}] for match in candidate["matches"])
    assert all("headers" not in match for match in users["matches"])
    assert live(100)["spec"]["rules"][1]["backendRefs"] == []
    assert [ref["name"] for ref in live(0, 100)["spec"]["rules"][2]["backendRefs"]] == ["serve-1"]


def test_without_pins_the_header_has_no_rule() -> None:
    [users] = weighted_route(route(90, 10), "ratchet-shop", "models", GATEWAY, ()).spec.rules
    assert all(match.headers is None for match in users.matches)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://serve-1.other.svc:8000", "http://serve-1.models.svc"])
def test_only_a_service_of_the_namespace_can_be_named(url: str) -> None:
    with pytest.raises(Permanent, match=r"serving\.kind"):
        service_of(url, "models")


def test_a_route_without_weight_is_refused() -> None:
    with pytest.raises(Permanent, match="weight above 0"):
        live(0, 0)


def test_a_written_route_is_read_again_and_damage_is_none() -> None:
    assert written_route(live(90, 10), "shop") == route(90, 10)
    assert written_route(live(90, 10), "other") is None
    damaged = live(90, 10)
    damaged["metadata"]["annotations"] = {"ratchet.dev/route": "{"}
    assert written_route(damaged, "shop") is None
    assert written_route({"metadata": {}}, "shop") is None


def test_defaults_of_the_api_are_no_difference_and_changed_fields_are_named() -> None:
    wanted = weighted_route(route(90, 10), "ratchet-shop", "models", GATEWAY, ("shop.example",), pins=True)
    found = live(90, 10)
    assert difference(found, wanted) == ""
    changed = copy.deepcopy(found)
    changed["spec"]["rules"][2]["backendRefs"][0]["weight"] = 1
    assert difference(changed, wanted) == "spec.rules differ from the line's route"
    changed["spec"]["hostnames"] = ["other.example"]
    assert difference(changed, wanted) == "spec.hostnames, spec.rules differ from the line's route"


def test_the_managers_of_needed_fields_are_named() -> None:
    found = live(90, 10)
    found["metadata"]["managedFields"] = [
        {"manager": MANAGER, "operation": "Apply", "fieldsV1": {"f:spec": {"f:parentRefs": {}}}},
        {"manager": "argocd-controller", "operation": "Update", "fieldsV1": {"f:spec": {"f:rules": {}, "f:hostnames": {}}}},
        {"manager": "traefik", "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": {}}},
    ]
    assert other_managers(found) == {"argocd-controller": ["spec.hostnames", "spec.rules"]}


def test_weights_are_in_force_when_the_gateway_has_accepted_this_generation() -> None:
    found = live(90, 10)
    assert "has not looked at it" in not_accepted(found, GATEWAY)
    assert not_accepted({**found, "status": accepted()}, GATEWAY) == ""
    assert "generation 3 yet" in not_accepted({**found, "status": accepted(generation=2)}, GATEWAY)
    refused = not_accepted({**found, "status": accepted(ResolvedRefs="False")}, GATEWAY)
    assert refused == "the Gateway web refuses generation 3: ResolvedRefs is False, R: m"
    other = ParentRef(name="web", namespace="gateways", section_name="tls")
    assert "has not looked at it" in not_accepted({**found, "status": accepted()}, other), "another listener has accepted"
