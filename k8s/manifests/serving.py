"""Renders the objects that all model servers have, and a judge fleet, whose model lies on the shared volume. No I/O.

It defines how model servers are probed and terminated. `version_server.py` renders the servers of versions. Not tested on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.jobs.cluster import ClusterSettings
from ratchet.k8s.manifests.gang_manifest import PART_OF, RATCHET, taint_tolerations
from ratchet.k8s.manifests.pod_objects import (
    Capabilities,
    Claim,
    ContainerSecurity,
    EmptyDir,
    Env,
    HostPath,
    Match,
    Meta,
    Mount,
    PodSecurity,
    Port,
    Resources,
    Shape,
    Volume,
)
from ratchet.k8s.manifests.policies import COMPONENT, JOB_ACCOUNT, open_server
from ratchet.k8s.manifests.serving_objects import (
    AutoscalerSpec,
    BudgetSpec,
    Deployment,
    DeploymentSpec,
    HorizontalPodAutoscaler,
    HttpGet,
    Lifecycle,
    LifecycleHandler,
    Metric,
    MetricName,
    MetricTarget,
    NodeAffinity,
    NodeExpression,
    NodeTerm,
    NodeTerms,
    PodDisruptionBudget,
    PodsMetric,
    Probe,
    RollingUpdate,
    ScaleTarget,
    ServerAffinity,
    ServerContainer,
    ServerPodSpec,
    ServerPodTemplate,
    Service,
    ServicePort,
    ServiceSpec,
    SleepAction,
    Strategy,
)
from ratchet.k8s.profiles.profile import Profile
from ratchet.runtime.telemetry import NO_TELEMETRY

PORT = 8000
DRAIN = 15
"""Seconds in which a terminating server still answers, until clients send no new requests."""
GRACE = 120
"""Seconds from the start of termination to SIGKILL, including the drain. Long answers can finish."""
LOAD = 1800
"""Maximum seconds for loading a model."""
VERSION = "ratchet.dev/version"


@dataclass(frozen=True)
class ModelServer:
    """Settings of one kind of server."""

    image: str
    """Container image with `vllm` on its PATH."""
    gpus: int = 1
    """GPUs per server; the model is split over them by tensor parallelism."""
    cpu: str = "8"
    memory: str = "64Gi"
    replicas: int = 1
    """Number of servers, or the minimum number with an autoscaler."""
    most: int = 0
    """Maximum number of servers for an autoscaler; 0 means a fixed number of `replicas`."""
    metric: str = ""
    """Metric per pod that counts waiting requests, by its name in the cluster's metrics adapter. Required for `most`."""
    waiting: int = 4
    """Target number of waiting requests per server; above it, the autoscaler adds servers."""
    arguments: tuple[str, ...] = ()
    """Additional arguments of `vllm serve`."""


def probe(period: int, times: int) -> Probe:
    """Return a probe of /health every `period` seconds, which fails after this number of failures in a row."""
    return Probe(http_get=HttpGet(path="/health", port="http"), period_seconds=period, failure_threshold=times)


def server_container(
    image: str,
    profile: Profile,
    command: tuple[str, ...],
    env: tuple[Env, ...],
    asked: dict[str, str],
    model: Mount,
    startup: Probe,
    more: tuple[Mount, ...] = (),
) -> ServerContainer:
    """Render the container of a model server, which requests `asked` and mounts the volumes `shm` and `tmp`, too."""
    return ServerContainer(
        name="server",
        image=image,
        image_pull_policy=profile.image_pull,
        command=command,
        env=(*(Env(name=key, value=value) for key, value in ENVIRONMENT.items()), *env),
        ports=(Port(name="http", container_port=PORT),),
        resources=Resources(requests=asked, limits=asked),
        volume_mounts=(
            model,
            Mount(name="shm", mount_path="/dev/shm"),  # noqa: S108 -- inside the pod
            Mount(name="tmp", mount_path="/tmp"),  # noqa: S108 -- inside the pod
            *more,
        ),
        security_context=ContainerSecurity(capabilities=Capabilities()),
        startup_probe=startup,
        readiness_probe=probe(5, 3),
        liveness_probe=probe(20, 6),
        lifecycle=Lifecycle(pre_stop=LifecycleHandler(sleep=SleepAction(seconds=DRAIN))),
    )


def server_objects(
    meta: Meta, selector: Match, pod: ServerPodSpec, *, replicas: int | None, load: int, headless: bool = False
) -> tuple[Shape, ...]:
    """Render Deployment, Service, PodDisruptionBudget and network policies of model servers.

    `replicas` is None if an autoscaler decides. `load` is the maximum number of seconds for loading the model.
    """
    return (
        Deployment(
            metadata=meta,
            spec=DeploymentSpec(
                replicas=replicas,
                selector=selector,
                # Start a new server before ending an old one. Otherwise an update of a single server would interrupt service.
                strategy=Strategy(rolling_update=RollingUpdate(max_surge=1, max_unavailable=0)),
                progress_deadline_seconds=load + 600,
                template=ServerPodTemplate(metadata=Meta(labels=meta.labels), spec=pod),
            ),
        ),
        Service(
            metadata=meta,
            spec=ServiceSpec(
                cluster_ip="None" if headless else None,
                selector=selector.match_labels,
                ports=(ServicePort(name="http", port=PORT, target_port="http"),),
            ),
        ),
        PodDisruptionBudget(metadata=meta, spec=BudgetSpec(max_unavailable=1, selector=selector)),
        *open_server(meta.namespace or "", meta.name or "", selector.match_labels, PORT),
    )


def judge_fleet(model: Path, settings: ClusterSettings, profile: Profile, server: ModelServer) -> tuple[Shape, ...]:
    """Render judges of one model behind the name `ratchet-judge`, which the service and its jobs can connect to.

    Raises ConfigError if the server does not fit the settings or the profile.
    """
    return _serve("ratchet-judge", "judge", model, {**RATCHET, COMPONENT: "judge"}, settings, profile, server)


def _serve(
    name: str, model: str, folder: Path, labels: dict[str, str], settings: ClusterSettings, profile: Profile, server: ModelServer
) -> tuple[Shape, ...]:
    _fits(folder, settings, profile, server)
    selector = Match(match_labels={COMPONENT: labels[COMPONENT], "app.kubernetes.io/name": name})
    meta = Meta(name=name, namespace=settings.namespace, labels={**labels, **selector.match_labels})
    pod = _pod(model, folder, settings, profile, server)
    found = server_objects(meta, selector, pod, replicas=None if server.most else server.replicas, load=LOAD)
    return (*found, _autoscaler(meta, server)) if server.most else found


def _fits(folder: Path, settings: ClusterSettings, profile: Profile, server: ModelServer) -> None:
    if settings.volume.bucket:
        raise ConfigError("cluster.volume.bucket: servers on the cluster read the model from a file system; use a claim or host_path")
    if not folder.is_relative_to(settings.volume.mount) or folder == Path(settings.volume.mount):
        raise ConfigError(
            f"the model {folder} is not below the volume at {settings.volume.mount}, from which servers read it; move it there"
        )
    if server.gpus > profile.gpus:
        raise ConfigError(f"a server of {server.gpus} GPUs does not fit a node of profile {settings.profile!r}, which has {profile.gpus}")
    if server.most and (not server.metric or server.most < server.replicas):
        raise ConfigError(
            "an autoscaler needs a metric of waiting requests and a maximum that is not below the minimum number of servers; CPU load"
            " does not reflect GPU load, so there is no default metric"
        )


def _pod(model: str, folder: Path, settings: ClusterSettings, profile: Profile, server: ModelServer) -> ServerPodSpec:
    asked = {"cpu": server.cpu, "memory": server.memory}
    if server.gpus:
        asked[profile.gpu_resource] = str(server.gpus)
    command = ("vllm", "serve", str(folder), "--served-model-name", model, "--port", str(PORT), "--disable-uvicorn-access-log")
    spread = ("--tensor-parallel-size", str(server.gpus)) if server.gpus > 1 else ()
    volume = settings.volume
    shared = Volume(name="shared", persistent_volume_claim=Claim(claim_name=volume.claim)) if volume.claim else None
    container = server_container(
        image=server.image,
        profile=profile,
        command=(*command, *spread, *server.arguments),
        env=(),
        asked=asked,
        model=Mount(name="shared", mount_path=str(folder), sub_path=str(folder.relative_to(volume.mount)), read_only=True),
        startup=probe(10, LOAD // 10),
    )
    return ServerPodSpec(
        service_account_name=JOB_ACCOUNT,
        termination_grace_period_seconds=GRACE,
        node_selector=dict(profile.labels),
        affinity=ServerAffinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=ELSEWHERE)),
        tolerations=taint_tolerations(profile),
        security_context=PodSecurity(run_as_non_root=True, run_as_user=profile.user, run_as_group=profile.user, fs_group=profile.user),
        containers=(container,),
        volumes=(
            shared or Volume(name="shared", host_path=HostPath(path=volume.mount, type="Directory")),
            Volume(name="shm", empty_dir=EmptyDir(medium="Memory", size_limit="16Gi")),
            Volume(name="tmp", empty_dir=EmptyDir()),
        ),
    )


ELSEWHERE = NodeTerms(node_selector_terms=(NodeTerm(match_expressions=(NodeExpression(key=PART_OF, values=(RATCHET[PART_OF],)),)),))
"""Keeps servers off the nodes of the line's pools. A gang needs whole nodes and would never start on a node with a server."""
ENVIRONMENT = {**NO_TELEMETRY, "HF_HUB_OFFLINE": "1", "HOME": "/tmp", "XDG_CACHE_HOME": "/tmp/cache"}  # noqa: S108 -- in the pod


def _autoscaler(meta: Meta, server: ModelServer) -> HorizontalPodAutoscaler:
    metric = Metric(pods=PodsMetric(metric=MetricName(name=server.metric), target=MetricTarget(average_value=str(server.waiting))))
    spec = AutoscalerSpec(
        scale_target_ref=ScaleTarget(name=meta.name or ""), min_replicas=server.replicas, max_replicas=server.most, metrics=(metric,)
    )
    return HorizontalPodAutoscaler(metadata=meta, spec=spec)
