"""Implements the `Router` port by the weights of one HTTPRoute of the Gateway API, for users who have a Gateway and want no further proxy.

The Gateway distributes requests, not sessions, and does not tell which version answered. So nothing is attributed: a rollout decides by
mirrored prompts only. The service is the only writer of the HTTPRoute, under one field manager. What another manager has changed is
reported and never overwritten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from ratchet.contracts.errors import ConfigError, Incomplete, Retryable
from ratchet.contracts.model import Frozen
from ratchet.contracts.serving import Route
from ratchet.contracts.wording import invalid_options
from ratchet.k8s.api.client import Cluster, FieldConflict, Kind, Object, connect
from ratchet.k8s.manifests.http_route import (
    MANAGER,
    HttpRoute,
    ParentRef,
    difference,
    integer_weights,
    not_accepted,
    other_managers,
    weighted_route,
    written_route,
)

HTTP_ROUTE = Kind("gateway.networking.k8s.io/v1", "httproutes")
_POLL_SECONDS = 0.25
"""Seconds between two looks at whether the Gateway has accepted changed weights."""
_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
"""Names of Gateways and namespaces."""


class Attachment(Frozen):
    """The Gateway to which an HTTPRoute is attached."""

    gateway: str = Field(pattern=_NAME)
    """Name of the Gateway to which the HTTPRoute is attached."""
    gateway_namespace: str | None = Field(default=None, pattern=_NAME)
    """Namespace of the Gateway. None: that of the model servers."""
    listener: str | None = None
    """Listener of the Gateway. None: all that admit the route."""
    hostnames: tuple[str, ...] = ()
    """Host names of the route. Empty: those of the listener."""

    @property
    def parent(self) -> ParentRef:
        """The Gateway as the parent of an HTTPRoute."""
        return ParentRef(name=self.gateway, namespace=self.gateway_namespace, section_name=self.listener)


class GatewayRouterOptions(Attachment):
    """Settings in `[serving.router_options]` for routers of kind "gateway"."""

    url: str = Field(pattern=r"^https?://[^/@\s]+$")
    """Base URL for clients, without /v1: that of the Gateway."""
    name: str = Field(default="", pattern=r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$")
    """Name of the HTTPRoute, which is in the namespace of the model servers. Empty: `ratchet-` and the name of the line."""
    pins: bool = False
    """Whether a request chooses its version by the header `x-ratchet-pin: champion` or `candidate`. For testers. A Gateway cannot remove
    the header before it looks at it, so enable this only if users' requests cannot carry it. Off: the header has no effect."""
    context: str | None = None
    """Context of the kubeconfig. None: the current one, or the service account of the service's pod."""
    accepted: float = Field(default=30, gt=0, le=600)
    """Maximum seconds until the Gateway accepts changed weights. After that, the change is reported and tried again."""


class GatewayRouter:
    """The HTTPRoute of one line. `clock` returns a monotonic time, `sleep` waits. `join` must follow the constructor."""

    attribution = False

    def __init__(
        self,
        connected: Callable[[], Cluster],
        options: GatewayRouterOptions,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`connected` returns the API server's client, at its first use."""
        self._connected = connected
        self._options = options
        self._clock = clock
        self._sleep = sleep

    def join(self, line: str, namespace: str, shares: Sequence[float] = ()) -> None:
        """Route a line whose model servers are in `namespace`. `shares` are the percentages that rollouts will set.

        Raises ConfigError if a share is not exact in integers.
        """
        integer_weights([*shares, *(100 - share for share in shares)])
        self._namespace = namespace
        self._name = self._options.name or f"ratchet-{line}"

    @cached_property
    def _cluster(self) -> Cluster:
        return self._connected()

    def set(self, route: Route) -> None:
        """Write the weights, and return when the Gateway has accepted them.

        Raises Retryable if another field manager owns a needed field with another value, which is named and not overwritten, or if the
        Gateway does not accept the weights in time.
        """
        wanted = self._rendered(route)
        body = wanted.model_dump(mode="json", by_alias=True, exclude_none=True)
        try:
            live = self._cluster.apply(HTTP_ROUTE, body, manager=MANAGER, force=False)
        except FieldConflict as error:
            raise Retryable(f"{self._about()} is not changed: {self._remedy('; '.join(error.owners))}") from error
        if differs := self._difference(live, wanted):  # a field that another manager has added, so that there is no conflict
            raise Retryable(f"{self._about()} is not as it should be: {differs}")
        begun = self._clock()
        while why := not_accepted(live, self._options.parent):
            if self._clock() - begun >= self._options.accepted:
                raise Retryable(f"{self._about()} is written and not in force after {self._options.accepted:g} s: {why}")
            self._sleep(_POLL_SECONDS)
            live = self._live() or {"metadata": {}}

    def read(self, line: str) -> Route | None:
        """Return the route in force: the live weights are those of a route of the line, and the Gateway has accepted this generation."""
        live = self._live()
        route = None if live is None else written_route(live, line)
        return None if live is None or route is None or self._obstacle(live, route) else route

    def forwarded(self, line: str, since: datetime, until: datetime) -> Mapping[str, int]:
        """Raise Retryable: the Gateway API has no counts."""
        raise Retryable(f"{self._about()}: a Gateway does not tell how many requests of {line} it sent from {since} to {until}")

    def in_flight(self, line: str) -> Mapping[str, int]:
        """Raise Incomplete with the reason if the route that was set last is not in force, otherwise Retryable: there are no counts."""
        live = self._live()
        if live is None:
            raise Incomplete(f"{self._about()} does not exist")
        route = written_route(live, line)
        why = f"it has no route of {line}" if route is None else self._obstacle(live, route)
        if why:
            raise Incomplete(f"{self._about()}: {why}")
        raise Retryable(f"{self._about()}: a Gateway does not tell which requests are in flight")

    def url(self) -> str:
        """Return the base URL for clients, without /v1."""
        return self._options.url

    def stop(self) -> None:
        """Do nothing: the Gateway belongs to the cluster and answers while no service runs."""

    def _rendered(self, route: Route) -> HttpRoute:
        options = self._options
        return weighted_route(route, self._name, self._namespace, options.parent, options.hostnames, options.pins)

    def _live(self) -> Object | None:
        return self._cluster.get(HTTP_ROUTE, self._name, self._namespace)

    def _obstacle(self, live: Object, route: Route) -> str:
        """Return why the route that is written on a live object is not in force; empty if it is."""
        return self._difference(live, self._rendered(route)) or not_accepted(live, self._options.parent)

    def _difference(self, live: Object, wanted: HttpRoute) -> str:
        """Return how a live object differs from the wanted one, and who owns its fields; empty if it does not."""
        differs, others = difference(live, wanted), other_managers(live)
        if not differs:
            return ""
        told = "; ".join(f"{manager} owns {', '.join(fields)}" for manager, fields in others.items())
        return f"{differs}: {self._remedy(told)}" if others else differs

    def _remedy(self, owners: str) -> str:
        return (
            f"{owners}. Ratchet does not overwrite fields of other field managers, and rollouts and rollbacks wait; let that tool leave "
            f"the fields to {MANAGER}, and give them back as docs/kubernetes/routing.md says"
        )

    def _about(self) -> str:
        return f"HTTPRoute {self._namespace}/{self._name}"


def open_gateway_router(_folder: Path, _receiver: Path, _token: Path, _port: int, _assume_consent: bool, **options: Any) -> GatewayRouter:
    """Weights of an HTTPRoute, without a router of Ratchet. The model servers must be of kind "kubernetes"."""
    try:
        parsed = GatewayRouterOptions.model_validate(options)
    except ValidationError as error:
        raise invalid_options("serving.router_options", GatewayRouterOptions, error) from None
    return GatewayRouter(lambda: connect(parsed.context), parsed)


def namespace_of(kind: str, options: Mapping[str, Any]) -> str:
    """Return the namespace of the model servers of a line from `serving.kind` and `serving.options`.

    Raises ConfigError if they do not run on a cluster.
    """
    if kind != "kubernetes" or not options.get("namespace"):
        raise ConfigError(f'an HTTPRoute to model servers names Services, and serving.kind = "{kind}" has none; set it to "kubernetes"')
    return str(options["namespace"])
