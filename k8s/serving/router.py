"""Implements the `Router` port for replicas in pods: publishes routes in the exchange, and reads there what each replica tells.

The replicas (`router/replica/`) are a StatefulSet that the operator installs. This class neither starts nor stops them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, ValidationError

from ratchet.contracts.errors import Incomplete, Permanent, Retryable
from ratchet.contracts.ids import Digest, digest
from ratchet.contracts.model import Frozen
from ratchet.contracts.schema import parse, stamped, unstamped
from ratchet.contracts.serving import Endpoint, Route
from ratchet.contracts.wording import invalid_options
from ratchet.k8s.api.client import Cluster
from ratchet.k8s.serving.bypass import Bypass, BypassOptions
from ratchet.router.counts.forwarded import sent_between
from ratchet.router.replica.state import ROUTE_SECONDS
from ratchet.router.settings import RouterLine
from ratchet.runtime.serving.exchange import EXCHANGE, Exchange, Published, open_exchange

SILENT_SECONDS = 60.0
"""Age of an account at which a replica is silent. It tells one every 15 s, or more often."""


class ClusterRouterOptions(Frozen):
    """Settings in `[serving.router_options]` for routers of kind "kubernetes". Changes apply to a served line at once."""

    url: str = Field(pattern=r"^https?://[^/@\s]+$")
    """Base URL for clients, without /v1: that of the gateway, or of the router's Service."""
    name_versions: bool = False
    """As for routers of kind "local"."""
    deadline: float = Field(default=600, gt=0, le=800)
    """As for routers of kind "local"."""
    per_caller: int = Field(default=64, ge=1)
    """As for routers of kind "local", in each replica."""
    pins: bool = False
    """As for routers of kind "local"."""
    spool_mb: int = Field(default=256, ge=1)
    """As for routers of kind "local", in each replica. It must fit on the replica's volume."""
    bypass: BypassOptions | None = None
    """Whether requests go to the champion's servers while all replicas are down, and how. None: they fail."""


class _Replica(NamedTuple):
    """What one replica has told last."""

    name: str
    told: datetime
    is_silent: bool
    """Whether it should have told something since."""
    route: Digest | None
    in_flight: Mapping[str, int] | None
    forwarded: bytes | None
    ended: bool


class ClusterRouter:
    """The router of one line, in any number of replicas. `now` returns the present time in UTC."""

    attribution = True

    def __init__(
        self, opened: Callable[[], Exchange], assume_consent: bool, options: ClusterRouterOptions, now: Callable[[], datetime]
    ) -> None:
        """`opened` returns the exchange, at its first use."""
        self._opened = opened
        self._assume_consent = assume_consent
        self._options = options
        self._now = now
        self._bypass: Bypass | None = None

    @property
    def can_bypass(self) -> bool:
        """Whether the options have a bypass."""
        return self._options.bypass is not None

    def join(self, line: str, namespace: str, connected: Callable[[], Cluster]) -> None:
        """Prepare the bypass of a line, if its options have one. `namespace` is that of the model servers."""
        options = self._options.bypass
        if options is not None:
            self._bypass = Bypass(connected, options, line, namespace, lambda: self._told(line), self._now)

    def bypass(self, champion: Endpoint) -> str:
        """Send requests to the champion's server while all replicas are down, and to the replicas again. Return what was changed."""
        return "" if self._bypass is None else self._bypass.look(champion)

    @cached_property
    def _exchange(self) -> Exchange:
        return self._opened()

    def set(self, route: Route) -> None:
        """Publish a route. Replicas follow it within a second. Raises Permanent if no backend has a weight above 0."""
        if sum(backend.weight for backend in route.backends) <= 0:
            raise Permanent(f"the route {route.annotation} has no backend with a weight above 0")
        self._exchange.publish(route.line, Published.ROUTER, stamped(self._settings()))
        self._exchange.publish(route.line, Published.ROUTE, stamped(route))

    def read(self, line: str) -> Route | None:
        """Return the published route; None if there is none or it is damaged."""
        content = self._exchange.published(line, Published.ROUTE)
        try:
            return None if content is None else parse(Route, content)
        except ValueError:
            return None

    def forwarded(self, line: str, since: datetime, until: datetime) -> Mapping[str, int]:
        """Return version tag -> number of requests that all replicas have sent, also those that have ended since.

        Raises Incomplete if a replica has not told its counts since `until` or requests bypass the replicas, and Retryable if there is
        none.
        """
        if self._bypass is not None and (began := self._bypass.since()) is not None:
            raise Incomplete(f"requests go to the champion since {began:%H:%M:%S} UTC without the router, which was down")
        replicas = self._replicas(line)
        if not replicas:
            raise Retryable("no replica of the router has ever reported, so the requests that it sent are unknown")
        counts: Counter[str] = Counter()
        for one in replicas:
            if one.told < since:
                continue  # all of its requests are older
            if one.forwarded is None:
                raise Incomplete(f"the replica {one.name} of the router has not told its counts yet")
            counts.update(sent_between(one.forwarded, since, until))
            if one.is_silent and one.told < until:
                raise Incomplete(f"the replica {one.name} of the router has not told its counts since {one.told:%H:%M:%S} UTC")
        return dict(counts)

    def in_flight(self, line: str) -> Mapping[str, int]:
        """Return version tag -> number of requests in flight in all replicas.

        Raises Incomplete unless each of them has reported since the published route was set. A replica that has been silent for
        ROUTE_SECONDS uses its route no more and does not count.
        """
        content = self._exchange.published(line, Published.ROUTE)
        flying: Counter[str] = Counter()
        for one in self._replicas(line):
            if one.ended:
                continue
            if one.in_flight is None or content is None or one.route != digest(content):
                raise Incomplete(f"the replica {one.name} of the router has not confirmed the route; look again")
            flying.update(one.in_flight)
        return dict(flying)

    def url(self) -> str:
        """Return the base URL for clients, without /v1."""
        return self._options.url

    def stop(self) -> None:
        """Do nothing: the replicas belong to the installation on the cluster and answer while no service runs."""

    def _told(self, line: str) -> datetime | None:
        """Return when a replica has reported last. One that has ended has reported that, too."""
        return max((told for _, told in self._exchange.reports(line).values()), default=None)

    def _settings(self) -> RouterLine:
        options = self._options
        return RouterLine(
            folder="",
            receiver="",
            token="",
            assume_consent=self._assume_consent,
            name_versions=options.name_versions,
            deadline=options.deadline,
            per_caller=options.per_caller,
            spool_mb=options.spool_mb,
            pins=options.pins,
        )

    def _replicas(self, line: str) -> list[_Replica]:
        """Return the last reports of the replicas. Replicas that ended still count for their requests."""
        now, found = self._now(), []
        for name, (account, told) in self._exchange.reports(line).items():
            try:
                content = unstamped(account, "account of a replica")
                age = (now - told).total_seconds()
                ended = bool(content["ended"]) or age > ROUTE_SECONDS
                found.append(
                    _Replica(
                        name=name,
                        told=told,
                        is_silent=not ended and age > SILENT_SECONDS,
                        route=content["route"],
                        in_flight=content["in_flight"],
                        forwarded=None if content["forwarded"] is None else str(content["forwarded"]).encode(),
                        ended=ended,
                    )
                )
            except (ValueError, LookupError, TypeError) as error:
                raise Retryable(f"the account of the replica {name} is not readable ({type(error).__name__}); delete the object") from error
        return found


def open_cluster_router(_folder: Path, _receiver: Path, _token: Path, _port: int, assume_consent: bool, **options: Any) -> ClusterRouter:
    """The router's replicas on the cluster of the installation. RATCHET_EXCHANGE names the bucket that they follow."""
    try:
        parsed = ClusterRouterOptions.model_validate(options)
    except ValidationError as error:
        raise invalid_options("serving.router_options", ClusterRouterOptions, error) from None
    return ClusterRouter(lambda: open_exchange(os.environ.get(EXCHANGE)), assume_consent, parsed, lambda: datetime.now(UTC))
