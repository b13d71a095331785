"""Implements the `Server` port on a cluster: one Deployment of model servers per version, found again by its labels."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError, model_validator

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.model import Frozen
from ratchet.contracts.ports import Artifacts
from ratchet.contracts.serving import Capabilities, Endpoint, ModelVersion, Outage
from ratchet.contracts.wording import invalid_options
from ratchet.k8s.api.client import POD, Cluster, Kind, Object, connect
from ratchet.k8s.manifests.pod_objects import Shape
from ratchet.k8s.manifests.serving import VERSION
from ratchet.k8s.manifests.version_server import (
    ServingSite,
    replicas_for,
    server_labels,
    server_name,
    server_url,
    version_server,
)
from ratchet.k8s.profiles.profile import Profile, load_profile
from ratchet.k8s.serving.placement import has_ended, obstacle, of_deployment, ready, ready_pods
from ratchet.runtime.bucket_artifacts import ARTIFACTS_URL

DEPLOYMENT = Kind("apps/v1", "deployments")
SERVICE = Kind("v1", "services")
BUDGET = Kind("policy/v1", "poddisruptionbudgets")
POLICY = Kind("networking.k8s.io/v1", "networkpolicies")
KINDS = {"Deployment": DEPLOYMENT, "Service": SERVICE, "PodDisruptionBudget": BUDGET, "NetworkPolicy": POLICY}
"""Kinds of the objects of a version, in the order in which they are created."""
_POLL_SECONDS = 0.5
_TRIES, _CONNECT_SECONDS = 3, 2.0
"""Tries to connect to a server before it counts as away, and seconds for each address."""
_PASSED_ON = ("AWS_ENDPOINT_URL", "AWS_DEFAULT_REGION", "AWS_REGION")
"""Variables of the service that the init container needs, too. None of them is a secret."""


class ClusterServerOptions(Frozen):
    """Settings in `[serving.options]` for servers of kind "kubernetes"."""

    namespace: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    """Namespace of the model servers."""
    image: str
    """Image of the server: vLLM's, or for the engine "embedded" the trainer's."""
    engine: Literal["vllm", "embedded"] = "vllm"
    """Program in the image. embedded: Ratchet's own server, for small models on a CPU."""
    fetch_image: str
    """Image of Ratchet, in which the init container fetches the model."""
    context: str | None = None
    """Context of the kubeconfig. None: the current one, or the service account of the service's pod."""
    profile: str = "generic-gpu"
    """Machine profile of the servers' nodes: a shipped one, or the path of a file relative to the loop file."""
    replicas: int = Field(default=1, ge=1, le=1000)
    """Number of servers that answer all sessions of the line."""
    gpus: int = Field(default=1, ge=0)
    """GPUs per server; the model is split over them by tensor parallelism."""
    cpu: str = "8"
    """CPU of a server, as a Kubernetes quantity."""
    memory: str = "64Gi"
    """Memory of a server."""
    disk: str = Field(default="64Gi", pattern=r"^[1-9][0-9]*(Ki|Mi|Gi|Ti)$")
    """Disk of a server, which must hold the model."""
    arguments: tuple[str, ...] = ()
    """Additional arguments of the server."""
    python: str = "python3"
    """Python interpreter in the images."""
    executable: str = Field(default="vllm", pattern=r"^\S+$")
    """Program of vLLM in the image, which is started as `EXECUTABLE serve MODEL ARGUMENTS`."""
    account: str = "ratchet-model"
    """Service account of the servers' pods, for example one that may read the artifacts' bucket. It needs no rights in the cluster."""
    secrets: dict[str, str] = Field(default_factory=dict)
    """Variable of the init container -> `secret/key` of a Secret in the namespace, for a bucket without roles. Never a value."""
    pull_secrets: tuple[str, ...] = ()
    """Secrets with the credentials of the images' registry."""
    placed: float = Field(default=60, gt=0)
    """Seconds after which an obstacle, such as a full cluster or a missing image, is reported."""
    load: int = Field(default=1800, ge=10)
    """Maximum seconds from the start of a server until it answers."""

    @model_validator(mode="after")
    def _references_only(self) -> ClusterServerOptions:
        for variable, reference in self.secrets.items():
            if reference.count("/") != 1 or not all(reference.split("/")):
                raise ValueError(f"secrets.{variable} is not of the form secret/key; reference a Secret in the namespace, never a value")
        return self


class _Seen(NamedTuple):
    """A version that answered."""

    at: datetime
    ready: frozenset[tuple[str, str]]
    """Its pods that were ready (`ready_pods`)."""


class ClusterServer:
    """Model servers of one line in one namespace.

    A version starts with one server, and `scale` adapts their number. The servers of other versions are never touched. `clock` returns a
    monotonic time, `now` the time, and `sleep` waits.
    """

    capabilities = Capabilities(sampling=True, seed=True, logprobs=True, scales=True, probes=True)

    def __init__(
        self,
        connected: Callable[[], Cluster],
        options: ClusterServerOptions,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`connected` returns the API server's client, at its first use. `join` must follow."""
        self._connected = connected
        self._options = options
        self._replicas = options.replicas
        self._placed = options.placed
        self._clock = clock
        self._sleep = sleep
        self._now = now
        self._seen = dict[str, _Seen]()
        """Tag of a version -> the last time at which it was seen to answer."""
        self.names: Callable[[], tuple[str, ...]] = tuple
        """Returns the model names by which clients may call the line. A changed name replaces the servers one by one."""

    def join(self, line: str, folder: Path) -> None:
        """Serve the versions of a line, whose loop file is in `folder`. Raises ConfigError if its machine profile is not valid."""
        self._line = line
        self._site = site_of(self._options, load_profile(self._options.profile, folder, "serving.options.profile"))

    @cached_property
    def _cluster(self) -> Cluster:
        return self._connected()

    def ensure(self, version: ModelVersion) -> Endpoint:
        """Return the endpoint of a version, of which at least one server answers. Starts one if there is none.

        Raises Retryable if none answers in time, within a minute with the obstacle if there is one; the Deployment stays and goes on.
        """
        there = self._deployment(version)
        self._apply(version, max(1, _wanted(there)))
        self._await(version, 1)
        return self._endpoint(version.tag, server_name(version))

    def scale(self, version: ModelVersion, share: float, wait: bool = True) -> bool:
        """Give a version as many servers as its share of the sessions, in percent, needs. Return whether their number has changed.

        Never none. With `wait`, returns when all of them answer. Raises Retryable as `ensure`; without `wait` only if none answers, nothing
        was changed, and more than time is missing.
        """
        wanted = replicas_for(share, self._replicas)
        there = self._deployment(version)
        changed = there is None or _wanted(there) != wanted
        if changed:
            self._apply(version, wanted)
        elif not wait and there is not None and not ready(there) and (why := self._hindrance(there, self._pods(version))):
            raise Retryable(f"the model server of {version.tag} cannot start: {why}")
        if wait:
            self._await(version, wanted)
            if version.tag not in self._seen:  # it is known before the first tick that its route follows
                self._seen[version.tag] = _Seen(self._now(), ready_pods(self._pods(version)))
        return changed

    def running(self) -> list[Endpoint]:
        """Return the endpoints of all versions of which at least one server answers."""
        found = self._cluster.list(DEPLOYMENT, self._site.namespace, server_labels(self._line)).items
        return [self._endpoint(one["metadata"]["labels"][VERSION], one["metadata"]["name"]) for one in found if _answers(one)]

    def newest_outage(self, version: ModelVersion) -> Outage | None:
        """Return the outage of a version that goes on, or that was over between the last call and this one; None if there is none.

        The version is away while no address of its Service takes a connection. The API server notices the loss of a node only after most of
        a minute. An outage that was over before this call is known from the pods: none of those that were ready at the last call is ready
        now. If a server ended by itself, this returns None. Raises Retryable if the version can be reached and the API server cannot.
        """
        now, before = self._now(), self._seen.get(version.tag)
        begun = before.at if before is not None else now
        if not self._reaches(version):
            try:
                pods = self._pods(version)
            except Retryable:
                return Outage(since=begun)
            return None if has_ended(pods) else Outage(since=begun)
        pods = self._pods(version)
        self._seen[version.tag] = _Seen(now, ready_pods(pods))
        if before is None or not before.ready or not self._seen[version.tag].ready.isdisjoint(before.ready) or has_ended(pods):
            return None
        return Outage(since=begun, until=now)

    def _pods(self, version: ModelVersion) -> list[Object]:
        found = self._cluster.list(POD, self._site.namespace, {**server_labels(self._line), VERSION: version.tag}).items
        return of_deployment(found, server_name(version))

    def _reaches(self, version: ModelVersion) -> bool:
        """Return whether an address of a version's Service takes a connection, also if the server behind it is slow."""
        host, _, port = server_url(server_name(version), self._site.namespace).removeprefix("http://").partition(":")
        for again in reversed(range(_TRIES)):
            try:
                with socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS):
                    return True
            except OSError:
                if again:
                    self._sleep(_POLL_SECONDS)
        return False

    def stop(self, tag: str) -> None:
        """Delete all objects of the version with this tag. Servers finish the answers that they have begun."""
        labels = {**server_labels(self._line), VERSION: tag}
        for deployment in self._cluster.list(DEPLOYMENT, self._site.namespace, labels).items:
            name = deployment["metadata"]["name"]
            for kind in reversed(KINDS.values()):
                self._cluster.delete(kind, name, self._site.namespace)
            self._cluster.delete(POLICY, f"to-{name}", self._site.namespace)

    def _deployment(self, version: ModelVersion) -> Object | None:
        return self._cluster.get(DEPLOYMENT, server_name(version), self._site.namespace)

    def _apply(self, version: ModelVersion, replicas: int) -> None:
        """Apply the objects of a version. A changed image or argument replaces its servers one by one, each after its successor answers."""
        if not self._site.artifacts:
            raise ConfigError(f'serving.kind = "kubernetes": {ARTIFACTS_URL} is not set, so servers could not fetch their models; set it')
        for shape in version_server(version, self._site, replicas, self.names()):
            body = _body(shape)
            self._cluster.apply(KINDS[body["kind"]], body)

    def _await(self, version: ModelVersion, replicas: int) -> None:
        """Wait until at least `replicas` servers of a version answer, at most the time in which one loads."""
        name, begun = server_name(version), self._clock()
        stuck_since: float | None = None
        while True:
            deployment = self._deployment(version)
            if deployment is not None and ready(deployment) >= replicas:
                return
            why = obstacle(deployment or {}, self._pods(version)) if deployment is not None else "its Deployment was deleted"
            now = self._clock()
            stuck_since = (now if stuck_since is None else stuck_since) if why else None
            if stuck_since is not None and now - stuck_since >= self._placed:
                raise Retryable(f"the model server of {version.tag} cannot start: {why}")
            if now - begun >= self._site.load + self._placed:
                answering = 0 if deployment is None else ready(deployment)
                raise Retryable(
                    f"{answering} of {replicas} model servers of {version.tag} answer after {now - begun:.0f} s; look at "
                    f"`kubectl logs -n {self._site.namespace} deployment/{name}`, or raise serving.options.load"
                )
            self._sleep(_POLL_SECONDS)

    def _hindrance(self, deployment: Object, pods: Sequence[Object]) -> str:
        """Return why no server of a Deployment answers, beyond the time in which one loads; empty if only that time is missing."""
        logs = f"look at `kubectl logs -n {self._site.namespace} deployment/{deployment['metadata']['name']}`"
        if why := obstacle(deployment, pods):
            return why
        if has_ended(pods):
            return f"its container has ended by itself; {logs}"
        begun = [datetime.fromisoformat(text) for pod in pods if (text := pod["metadata"].get("creationTimestamp"))]
        seconds = (self._now() - min(begun)).total_seconds() if begun else 0.0
        if seconds > self._site.load + self._placed:
            return f"it does not answer after {seconds:.0f} s; {logs}, or raise serving.options.load"
        return ""

    def _endpoint(self, tag: str, name: str) -> Endpoint:
        return Endpoint(tag=tag, url=server_url(name, self._site.namespace), model=tag)


def site_of(options: ClusterServerOptions, profile: Profile) -> ServingSite:
    """Return how the servers of a line run. The bucket of the artifacts is that of this process; it is empty where none is set."""
    return ServingSite(
        namespace=options.namespace,
        profile=profile,
        image=options.image,
        engine=options.engine,
        fetch_image=options.fetch_image,
        artifacts=os.environ.get(ARTIFACTS_URL, ""),
        environment=tuple((name, os.environ[name]) for name in _PASSED_ON if name in os.environ),
        secrets=tuple(sorted(options.secrets.items())),
        python=options.python,
        executable=options.executable,
        gpus=options.gpus,
        cpu=options.cpu,
        memory=options.memory,
        disk=options.disk,
        arguments=options.arguments,
        account=options.account,
        pull_secrets=options.pull_secrets,
        load=options.load,
    )


def _wanted(deployment: Object | None) -> int:
    return 0 if deployment is None else int(deployment["spec"].get("replicas") or 0)


def _answers(deployment: Object) -> bool:
    return int(deployment.get("status", {}).get("readyReplicas") or 0) > 0


def _body(shape: Shape) -> Object:
    return shape.model_dump(mode="json", by_alias=True, exclude_none=True)


def open_cluster_server(_folder: Path, _artifacts: Artifacts, served_model: str, **options: Any) -> ClusterServer:
    """Model servers on the cluster of the installation. RATCHET_ARTIFACTS_URL names the bucket from which they fetch their models."""
    try:
        parsed = ClusterServerOptions.model_validate(options)
    except ValidationError as error:
        raise invalid_options("serving.options", ClusterServerOptions, error) from None
    server = ClusterServer(lambda: connect(parsed.context), parsed)
    server.names = lambda: (served_model,)
    return server
