"""Kubernetes objects of model servers that run until they are deleted.

They are Deployment, Service, PodDisruptionBudget and HorizontalPodAutoscaler, as frozen models of exactly the fields that Ratchet
emits. They share containers and volumes with `pod_objects.py`. `serving.py` fills them.

Source: Kubernetes API 1.35.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ratchet.k8s.manifests.pod_objects import (
    Container,
    Match,
    Meta,
    PodSecurity,
    Shape,
    Toleration,
    Volume,
)


class HttpGet(Shape):
    """HTTP request that a probe sends."""

    path: str
    port: str


class Probe(Shape):
    """Periodic check of a container over HTTP."""

    http_get: HttpGet
    period_seconds: int
    failure_threshold: int
    timeout_seconds: int = 5


class SleepAction(Shape):
    """Wait for a number of seconds in a lifecycle hook."""

    seconds: int


class LifecycleHandler(Shape):
    """Action of a lifecycle hook."""

    sleep: SleepAction


class Lifecycle(Shape):
    """Hooks of a container; `pre_stop` runs before SIGTERM."""

    pre_stop: LifecycleHandler


class ServerContainer(Container):
    """Container of a model server with its probes."""

    startup_probe: Probe
    readiness_probe: Probe
    liveness_probe: Probe
    lifecycle: Lifecycle


class PullSecret(Shape):
    """Secret with the credentials of an image registry."""

    name: str


class NodeExpression(Shape):
    """Node label and the values that exclude a node."""

    key: str
    operator: Literal["NotIn"] = "NotIn"
    values: tuple[str, ...]


class NodeTerm(Shape):
    """Expressions that a node must all match."""

    match_expressions: tuple[NodeExpression, ...]


class NodeTerms(Shape):
    """Alternatives of which a node must match at least one."""

    node_selector_terms: tuple[NodeTerm, ...]


class NodeAffinity(Shape):
    """Required node labels for placement; not enforced after a pod is placed."""

    required_during_scheduling_ignored_during_execution: NodeTerms


class ServerAffinity(Shape):
    """Placement rules of a server's pod."""

    node_affinity: NodeAffinity


class ServerPodSpec(Shape):
    """Specification of a server's pod. The cluster's default scheduler places each pod on its own, because servers are not a gang."""

    service_account_name: str
    automount_service_account_token: bool = False
    enable_service_links: bool = False
    termination_grace_period_seconds: int
    node_selector: dict[str, str] = Field(default_factory=dict)
    affinity: ServerAffinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    image_pull_secrets: tuple[PullSecret, ...] | None = None
    security_context: PodSecurity
    init_containers: tuple[Container, ...] | None = None
    containers: tuple[ServerContainer, ...]
    volumes: tuple[Volume, ...]


class ServerPodTemplate(Shape):
    """Metadata and specification from which a server's pods are made."""

    metadata: Meta
    spec: ServerPodSpec


class RollingUpdate(Shape):
    """Limits on extra and on missing pods during an update."""

    max_surge: int
    max_unavailable: int


class Strategy(Shape):
    """Update strategy of a Deployment."""

    type: Literal["RollingUpdate"] = "RollingUpdate"
    rolling_update: RollingUpdate


class DeploymentSpec(Shape):
    """Specification of a Deployment. `replicas` is left out if an autoscaler sets it."""

    replicas: int | None = None
    selector: Match
    strategy: Strategy
    progress_deadline_seconds: int
    template: ServerPodTemplate


class Deployment(Shape):
    """Set of identical server pods."""

    api_version: Literal["apps/v1"] = "apps/v1"
    kind: Literal["Deployment"] = "Deployment"
    metadata: Meta
    spec: DeploymentSpec


class ServicePort(Shape):
    """Port of a Service and the container port behind it."""

    name: str
    port: int
    target_port: str


class ServiceSpec(Shape):
    """Selected pods and ports of a Service. With `cluster_ip` "None", its name has the addresses of all ready pods."""

    cluster_ip: Literal["None"] | None = Field(default=None, alias="clusterIP")
    selector: dict[str, str]
    ports: tuple[ServicePort, ...]


class Service(Shape):
    """Stable name and address of a set of pods."""

    api_version: Literal["v1"] = "v1"
    kind: Literal["Service"] = "Service"
    metadata: Meta
    spec: ServiceSpec


class BudgetSpec(Shape):
    """Number of selected pods that may be unavailable at once."""

    max_unavailable: int
    selector: Match


class PodDisruptionBudget(Shape):
    """Limit on voluntary evictions of a server's pods."""

    api_version: Literal["policy/v1"] = "policy/v1"
    kind: Literal["PodDisruptionBudget"] = "PodDisruptionBudget"
    metadata: Meta
    spec: BudgetSpec


class ScaleTarget(Shape):
    """Deployment that an autoscaler scales."""

    api_version: Literal["apps/v1"] = "apps/v1"
    kind: Literal["Deployment"] = "Deployment"
    name: str


class MetricName(Shape):
    """Name of a metric in the cluster's metrics adapter."""

    name: str


class MetricTarget(Shape):
    """Average value per pod that an autoscaler aims at."""

    type: Literal["AverageValue"] = "AverageValue"
    average_value: str


class PodsMetric(Shape):
    """Metric per pod and its target."""

    metric: MetricName
    target: MetricTarget


class Metric(Shape):
    """Metric that an autoscaler scales by."""

    type: Literal["Pods"] = "Pods"
    pods: PodsMetric


class AutoscalerSpec(Shape):
    """Target, replica range and metrics of an autoscaler."""

    scale_target_ref: ScaleTarget
    min_replicas: int
    max_replicas: int
    metrics: tuple[Metric, ...]


class HorizontalPodAutoscaler(Shape):
    """Autoscaler of a Deployment, by metrics of its pods."""

    api_version: Literal["autoscaling/v2"] = "autoscaling/v2"
    kind: Literal["HorizontalPodAutoscaler"] = "HorizontalPodAutoscaler"
    metadata: Meta
    spec: AutoscalerSpec
