"""Renders an HTTPRoute of the Gateway API whose weights are those of a line's route, and reads a live one. No I/O.

`rules`, `parentRefs` and `hostnames` are atomic lists under server-side apply, so a field manager owns each of them as a whole.

Source: Gateway API 1.5, gateway.networking.k8s.io/v1.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from ratchet.contracts.errors import ConfigError, Permanent
from ratchet.contracts.schema import parse, stamped
from ratchet.contracts.serving import Backend, Endpoint, Pin, Route, RouterHeader
from ratchet.k8s.manifests.gang_manifest import LINE, RATCHET
from ratchet.k8s.manifests.pod_objects import Meta, Shape
from ratchet.k8s.manifests.serving import VERSION as SERVED

Object = dict[str, Any]
MANAGER = "ratchet-routes"
"""Field manager of every HTTPRoute that the service writes."""
ROUTE = "ratchet.dev/route"
"""Annotation with the line's route from which the object was rendered."""
SINCE = "ratchet.dev/since"
"""Annotation with the time at which a bypass was put in force."""
PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/messages/count_tokens",
    "/v1/models",
)
"""Paths that are routed to model servers: those of Ratchet's own router. Others, such as those that load adapters, are not reachable."""
FIELDS = ("parentRefs", "hostnames", "rules")
"""Fields of the specification that the service needs."""
_DIGITS = 4
"""Maximum number of decimals of a percentage. 100 % is then 1,000,000, the largest weight of a backend."""


class ParentRef(Shape):
    """Gateway to which a route is attached."""

    name: str
    namespace: str | None = None
    section_name: str | None = None


class PathMatch(Shape):
    """Path of a request."""

    type: Literal["Exact"] = "Exact"
    value: str


class HeaderMatch(Shape):
    """Header of a request."""

    type: Literal["Exact"] = "Exact"
    name: str
    value: str


class RouteMatch(Shape):
    """Conditions that a request must all meet."""

    path: PathMatch
    headers: tuple[HeaderMatch, ...] | None = None


class BackendRef(Shape):
    """Service that answers, with its weight."""

    name: str
    port: int
    weight: int = Field(default=1, ge=0, le=1_000_000)


class RouteRule(Shape):
    """Requests that match, and the Services among which they are distributed."""

    matches: tuple[RouteMatch, ...]
    backend_refs: tuple[BackendRef, ...]


class HttpRouteSpec(Shape):
    """Specification of an HTTPRoute."""

    parent_refs: tuple[ParentRef, ...]
    hostnames: tuple[str, ...] | None = None
    rules: tuple[RouteRule, ...]


class HttpRoute(Shape):
    """Rules by which a Gateway distributes requests."""

    api_version: Literal["gateway.networking.k8s.io/v1"] = "gateway.networking.k8s.io/v1"
    kind: Literal["HTTPRoute"] = "HTTPRoute"
    metadata: Meta
    spec: HttpRouteSpec


def integer_weights(percentages: Sequence[float]) -> tuple[int, ...]:
    """Return integers in exactly the ratio of percentages. Raises ConfigError for a percentage with more than four decimals."""
    exact = [Decimal(repr(round(float(one), 8))) for one in percentages]  # 100 - 66.6667 is not 33.3333 in binary
    digits = max((max(0, -int(one.normalize().as_tuple().exponent)) for one in exact), default=0)
    if digits > _DIGITS:
        told = ", ".join(f"{one:g}" for one in percentages)
        raise ConfigError(
            f"weights of an HTTPRoute are integers, so percentages have at most {_DIGITS} decimals, not {told}; change rollout.steps or "
            "rollout.holdback"
        )
    return tuple(int(one * 10**digits) for one in exact)


def service_of(url: str, namespace: str) -> tuple[str, int]:
    """Return name and port of the Service behind the URL of a model server, `http://NAME.NAMESPACE.svc:PORT`.

    Raises Permanent for another URL or namespace, because a route cannot name it.
    """
    found = urlsplit(url)
    name, _, rest = (found.hostname or "").partition(".")
    if rest != f"{namespace}.svc" or found.port is None:
        raise Permanent(f'{url} is no Service in the namespace {namespace}, so no HTTPRoute can name it; set serving.kind = "kubernetes"')
    return name, found.port


def weighted_route(route: Route, name: str, namespace: str, parent: ParentRef, hostnames: Sequence[str], pins: bool = False) -> HttpRoute:
    """Render the HTTPRoute of a line. With `pins`, requests with the header x-ratchet-pin go to the version that it names.

    A pin to the candidate while there is none reaches no server: an answer of the champion would be mistaken for one of the candidate.
    Raises Permanent if no backend has a weight above 0 or one is no Service of the namespace, and ConfigError if a weight is not exact.
    """
    if sum(backend.weight for backend in route.backends) <= 0:
        raise Permanent(f"the route {route.annotation} has no backend with a weight above 0")
    weights = integer_weights([backend.weight for backend in route.backends])
    refs = [_ref(backend, weight, namespace) for backend, weight in zip(route.backends, weights, strict=True)]
    pinned = {Pin.CHAMPION: refs[:1], Pin.CANDIDATE: refs[1:2]} if pins else {}
    rules = [_rule(tuple(ref.model_copy(update={"weight": 1}) for ref in found), pin) for pin, found in pinned.items()]
    return HttpRoute(
        metadata=Meta(
            name=name,
            namespace=namespace,
            labels={**RATCHET, LINE: route.line},
            annotations={ROUTE: stamped(route).decode()},
        ),
        spec=HttpRouteSpec(
            parent_refs=(parent,),
            hostnames=tuple(hostnames) or None,
            rules=(*rules, _rule(tuple(ref for ref in refs if ref.weight))),
        ),
    )


def bypass_route(
    champion: Endpoint, line: str, name: str, namespace: str, parent: ParentRef, hostnames: Sequence[str], since: datetime
) -> HttpRoute:
    """Render the HTTPRoute that sends all requests of a line to the champion's servers, past the routers.

    Its paths are exact, so they take precedence over a route with the same host names and the prefix /v1. Raises Permanent if the server
    is no Service of the namespace.
    """
    service, port = service_of(champion.url, namespace)
    return HttpRoute(
        metadata=Meta(
            name=name,
            namespace=namespace,
            labels={**RATCHET, LINE: line, SERVED: champion.tag},
            annotations={SINCE: since.isoformat()},
        ),
        spec=HttpRouteSpec(
            parent_refs=(parent,), hostnames=tuple(hostnames) or None, rules=(_rule((BackendRef(name=service, port=port),)),)
        ),
    )


def written_route(live: Object, line: str) -> Route | None:
    """Return the line's route from which a live object was rendered; None if it is missing, damaged, or of another line."""
    try:
        route = parse(Route, live["metadata"]["annotations"][ROUTE].encode())
    except (LookupError, TypeError, ValueError):
        return None
    return route if route.line == line else None


def difference(live: Object, wanted: HttpRoute) -> str:
    """Return how the needed fields of a live object differ from `wanted`; empty if they do not. Defaults of the API do not count."""
    spec: Object = wanted.model_dump(mode="json", by_alias=True, exclude_none=True)["spec"]
    found = [field for field in FIELDS if not _holds(live.get("spec", {}).get(field), spec.get(field))]
    return f"{', '.join(f'spec.{field}' for field in found)} differ from the line's route" if found else ""


def other_managers(live: Object) -> dict[str, list[str]]:
    """Return field manager -> needed fields of a live object that it owns, without those of Ratchet's own manager.

    A field may have several owners. An owner that wrote another value than Ratchet's makes the next apply a conflict.
    """
    owners: dict[str, list[str]] = {}
    for entry in live.get("metadata", {}).get("managedFields") or ():
        if entry.get("manager") == MANAGER and entry.get("operation") == "Apply":
            continue
        owned = ((entry.get("fieldsV1") or {}).get("f:spec") or {}).keys()
        fields = [f"spec.{field}" for field in FIELDS if f"f:{field}" in owned]
        if fields:
            owners.setdefault(str(entry.get("manager")), []).extend(fields)
    return owners


def not_accepted(live: Object, parent: ParentRef) -> str:
    """Return why the Gateway `parent` has not put the present generation of a live object in force; empty if it has."""
    generation, namespace = live["metadata"].get("generation"), live["metadata"].get("namespace")
    about = f"the Gateway {parent.name}"
    states = [
        one
        for one in live.get("status", {}).get("parents") or ()
        if one["parentRef"].get("name") == parent.name
        and one["parentRef"].get("namespace", namespace) == (parent.namespace or namespace)
        and one["parentRef"].get("sectionName") == parent.section_name
    ]
    if not states:
        return f"{about} has not looked at it; does it exist, and does a listener admit routes of the namespace {namespace}?"
    for state in states:
        conditions = {one["type"]: one for one in state.get("conditions") or ()}
        for kind in ("Accepted", "ResolvedRefs"):
            found = conditions.get(kind)
            if found is None or found.get("observedGeneration") != generation:
                return f"{about} has not looked at generation {generation} yet ({kind})"
            if found.get("status") != "True":
                told = f"{found.get('reason')}: {found.get('message')}"
                return f"{about} refuses generation {generation}: {kind} is {found.get('status')}, {told}"
    return ""


def _ref(backend: Backend, weight: int, namespace: str) -> BackendRef:
    name, port = service_of(backend.url, namespace)
    return BackendRef(name=name, port=port, weight=weight)


def _rule(refs: tuple[BackendRef, ...], pin: Pin | None = None) -> RouteRule:
    headers = None if pin is None else (HeaderMatch(name=RouterHeader.PIN, value=pin),)
    return RouteRule(matches=tuple(RouteMatch(path=PathMatch(value=path), headers=headers) for path in PATHS), backend_refs=refs)


def _holds(live: Any, wanted: Any) -> bool:
    """Return whether a live value is the wanted one, apart from keys that the API server has added to objects."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(_holds(live.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        given = live or []
        return isinstance(given, list) and len(given) == len(wanted) and all(map(_holds, given, wanted))
    return bool(live == wanted)
