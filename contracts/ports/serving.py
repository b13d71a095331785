"""Ports to models that serve: their servers and clients, the router, live metrics, and the registry of versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from ratchet.contracts.evaluation import ChatAnswer, ChatRequest
from ratchet.contracts.jobs.training import StepFigures
from ratchet.contracts.ports.progress import Progress
from ratchet.contracts.serving import Capabilities, Endpoint, Evidence, ModelVersion, Outage, Route


class Server(Protocol):
    """Manages model servers. The servers keep running when the service process ends."""

    capabilities: Capabilities
    """Features that the servers support."""

    def ensure(self, version: ModelVersion) -> Endpoint:
        """Return the endpoint of a server for this version. Starts the server if necessary and waits until it is ready."""

    def running(self) -> list[Endpoint]:
        """Return the endpoints of all running servers."""
        ...

    def stop(self, tag: str) -> None:
        """Stop the server of the version with this tag, if one is running."""
        ...


class ScalingServer(Server, Protocol):
    """A `Server` whose `capabilities.scales` is true: a version may have several servers."""

    def scale(self, version: ModelVersion, share: float, wait: bool = True) -> bool:
        """Give a version as many servers as `share` percent of the sessions need, at least one. Return whether their number has changed.

        With `wait`, returns when all of them answer, and raises Retryable with the reason if they do not. Without, it returns at once, and
        raises Retryable if none answers and the reason is known why none can start.
        """
        ...


class SharingServer(Server, Protocol):
    """A server that loads adapters into the running process of another version (`Capabilities.sharing`)."""

    def cannot_share(self, host: ModelVersion, rank: int) -> str | None:
        """Return why an adapter of this rank cannot be loaded into the process of `host`, with the remedy, or None."""
        ...

    def outages(self, tag: str) -> Sequence[Outage]:
        """Return the times in which the process did not run into which the version with this tag is loaded, in their order.

        They are counted from the first loading on. Empty if the version has a process of its own.
        """
        ...


class ProbedServer(Server, Protocol):
    """A server that can say whether a version answers, and has answered (`Capabilities.probes`)."""

    def newest_outage(self, version: ModelVersion) -> Outage | None:
        """Return the outage of the version that goes on, or that was over between the last call and this one; None if there is none.

        In an outage, no server of the version can be reached, and nothing says that the version has caused that. Its beginning is the
        last time at which the version was seen to answer, as far as this process knows. It is called at each tick of a rollout and answers
        within seconds. Raises Retryable if it is not known.
        """
        ...


class ModelClient(Protocol):
    """Sends chat requests to a model over HTTP."""

    def chat(self, requests: Sequence[ChatRequest], progress: Progress | None = None) -> list[ChatAnswer]:
        """Return one answer per request, in order. A failed request returns an answer with `error` and raises no exception."""


class Router(Protocol):
    """Distributes sessions over model versions by weight, and attributes every answer to its version."""

    attribution: bool
    """Whether answers are attributed to versions. Without attribution, a rollout decides by mirrored prompts only, and `forwarded` raises
    Retryable."""

    def set(self, route: Route) -> None:
        """Replace the route of the line in `route`."""
        ...

    def read(self, line: str) -> Route | None:
        """Return the current route of a line. None if there is none, or if it is damaged: `set` then replaces it."""
        ...

    def forwarded(self, line: str, since: datetime, until: datetime) -> Mapping[str, int]:
        """Return version tag -> number of requests of a line that the router sent to this version in since <= time < until.

        A request counts when it is sent, with any outcome and independently of its trace. A version without requests may be absent. A
        rollout compares these numbers with the traces, to distinguish a version without traffic from one whose traces are lost. The
        result may be lower than the true number by the requests of a few seconds, never higher. Raises Retryable if there are no counts,
        and Incomplete if those of a replica are missing; the rollout then waits.
        """

    def in_flight(self, line: str) -> Mapping[str, int]:
        """Return version tag -> number of requests of a line that the router has sent and whose answers are not complete.

        The numbers belong to the route that was set last: a version that this route excludes, and that has no request in flight, gets no
        further request. Its model server can then be stopped. Raises Retryable if the numbers are not known, or not yet, and Incomplete if
        a replica may still follow another route: no model server is stopped then.
        """

    def url(self) -> str:
        """Return the base URL for clients, without /v1."""
        ...

    def stop(self) -> None:
        """Stop the processes of the router on this machine, if there are any."""
        ...


class BypassingRouter(Router, Protocol):
    """A router past which requests can be sent to the champion's server while it is down."""

    can_bypass: bool
    """Whether the settings of the line allow it."""

    def bypass(self, champion: Endpoint) -> str:
        """Send requests to this server if the router is down, and to the router again if it is back. Return what was changed, or "".

        Raises Retryable if that is not known or not possible now.
        """
        ...


class Metrics(Protocol):
    """Measurements of live traffic per model version."""

    def evidence(self, champion: str, candidate: str, since: datetime, until: datetime) -> Evidence:
        """Return the evidence for two version tags.

        It covers traces with origin = traffic and since <= time < until, and the feedback on them so far. The evidence names the tags and
        the window that were asked for.
        """


class Registry(Protocol):
    """Model registry: a derived copy of the ledger's versions for users of model registries."""

    def register(
        self,
        version: ModelVersion,
        folder: Path,
        tags: Mapping[str, str],
        metrics: Mapping[str, float],
        steps: Sequence[StepFigures] = (),
    ) -> str:
        """Register a version, idempotent by `version.tag`, and return the registry's reference to it.

        `folder` is the model folder, which is registered by reference. `steps` are the training curves.
        """

    def describe(self, line: str, tag: str, card: str) -> None:
        """Replace the description of a version by its model card, which is Markdown. Raises `Retryable` if it is not registered yet."""

    def alias(self, line: str, alias: str, tag: str) -> None:
        """Set the alias (`champion`, `candidate` or `previous`) of a line to the version with this tag."""

    def unalias(self, line: str, alias: str) -> None:
        """Remove an alias of a line. Does nothing if the line has no such alias."""

    def aliases(self, line: str) -> dict[str, str]:
        """Return alias -> version tag, as currently stored in the registry."""
