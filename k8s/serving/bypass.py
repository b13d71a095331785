"""Sends clients' requests to the champion's servers while no replica of the router answers, by a second HTTPRoute of the Gateway.

The Gateway API has no failover between backends. The second route names the same hosts and exact paths, which take precedence over the
prefix in the chart's route, so it is in force as long as it exists. The service applies it when the routers are gone, and deletes it when
they are back. `decide` is pure; the rest asks the API server and the exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cached_property
from typing import NamedTuple

from pydantic import Field

from ratchet.contracts.errors import Retryable
from ratchet.contracts.serving import Endpoint
from ratchet.k8s.api.client import Cluster, FieldConflict, Kind, Object
from ratchet.k8s.manifests.http_route import MANAGER, SINCE, bypass_route
from ratchet.k8s.serving.gateway import HTTP_ROUTE, Attachment

ENDPOINT_SLICE = Kind("discovery.k8s.io/v1", "endpointslices")
SERVICE_NAME = "kubernetes.io/service-name"
"""Label of an EndpointSlice with the name of its Service."""


class BypassOptions(Attachment):
    """Settings in `[serving.router_options.bypass]`: requests go to the champion's servers while all routers are down.

    `hostnames` must be those of the line's route, as in the chart's `gateway.hostnames`. Other ones would not take precedence.
    """

    service: str = Field(pattern=r"^[a-z0-9][-a-z0-9]*/[a-z0-9][-a-z0-9]*$")
    """Namespace and name of the routers' Service: `NAMESPACE/RELEASE-router`."""
    after: float = Field(default=30, ge=20, le=3600)
    """Seconds for which every replica must have been silent, and minimum seconds for which the bypass stays in force. A replica that
    runs reports every 15 s at least."""


class Routers(NamedTuple):
    """What is known of all replicas of the router."""

    ready: int
    """Number of ready endpoints of their Service."""
    told: datetime | None
    """When one of them has reported last. None: none ever has."""


def decide(routers: Routers, since: datetime | None, now: datetime, after: float) -> bool:
    """Return whether the bypass is to be in force.

    Args:
        routers: What is known of the replicas.
        since: When the bypass was put in force. None: it is not.
        now: The present time.
        after: Seconds of silence before it begins, and least seconds until it ends.
    """
    silent = routers.told is None or (now - routers.told).total_seconds() >= after
    if since is None:
        return routers.told is not None and not routers.ready and silent
    return not routers.ready or silent or (now - since).total_seconds() < after


class Bypass:
    """The bypass of one line. `told` returns when a replica has reported last, and `now` the present time in UTC."""

    def __init__(
        self,
        connected: Callable[[], Cluster],
        options: BypassOptions,
        line: str,
        namespace: str,
        told: Callable[[], datetime | None],
        now: Callable[[], datetime],
    ) -> None:
        """`connected` returns the API server's client, at its first use. `namespace` is that of the model servers."""
        self._connected = connected
        self._options = options
        self._line, self._namespace, self.name = line, namespace, f"ratchet-{line}-bypass"
        self._told = told
        self._now = now

    @cached_property
    def _cluster(self) -> Cluster:
        return self._connected()

    def since(self) -> datetime | None:
        """Return since when the bypass is in force; None if it is not."""
        return _since(self._cluster.get(HTTP_ROUTE, self.name, self._namespace), self._now())

    def look(self, champion: Endpoint) -> str:
        """Apply or delete the bypass if it is time. Return what was done; empty if nothing was.

        Raises Retryable if another field manager owns a field of it, which is named and not overwritten.
        """
        live, now = self._cluster.get(HTTP_ROUTE, self.name, self._namespace), self._now()
        since, ready = _since(live, now), self._ready()
        if since is None and ready:
            return ""  # the usual case, in which the bucket is not asked
        routers = Routers(ready, self._told())
        if not decide(routers, since, now, self._options.after):
            if live is None:
                return ""
            self._cluster.delete(HTTP_ROUTE, self.name, self._namespace)
            about = f"HTTPRoute {self._namespace}/{self.name}"
            return f"routers are ready again, so {about} is deleted, which was in force since {since:%H:%M:%S} UTC"
        if self._apply(champion, since or now, live) and since is None:
            return (
                f"no router is ready and none has reported for {self._options.after:g} s, so HTTPRoute {self._namespace}/{self.name} sends "
                f"requests to {champion.tag}; their answers leave no trace, and a rollout waits"
            )
        return ""

    def _apply(self, champion: Endpoint, since: datetime, live: Object | None) -> bool:
        wanted = bypass_route(champion, self._line, self.name, self._namespace, self._options.parent, self._options.hostnames, since)
        body = wanted.model_dump(mode="json", by_alias=True, exclude_none=True)
        if live is not None and live["metadata"].get("labels", {}) == body["metadata"]["labels"]:
            return False
        try:
            self._cluster.apply(HTTP_ROUTE, body, manager=MANAGER, force=False)
        except FieldConflict as error:
            raise Retryable(f"HTTPRoute {self._namespace}/{self.name} is not changed: {'; '.join(error.owners)}") from error
        return True

    def _ready(self) -> int:
        """Return the number of ready endpoints of the routers' Service. An endpoint without the condition is ready, as the API defines."""
        namespace, _, name = self._options.service.partition("/")
        slices = self._cluster.list(ENDPOINT_SLICE, namespace, {SERVICE_NAME: name}).items
        return sum((one.get("conditions") or {}).get("ready") is not False for found in slices for one in found.get("endpoints") or ())


def _since(live: Object | None, now: datetime) -> datetime | None:
    """Return since when a live object is in force. One whose annotation is damaged counts from now on."""
    if live is None:
        return None
    try:
        return datetime.fromisoformat(live["metadata"]["annotations"][SINCE])
    except (LookupError, TypeError, ValueError):
        return now
