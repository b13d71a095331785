"""Shapes of servers that run until they are taken away: Deployment, Service, PodDisruptionBudget, HorizontalPodAutoscaler. Frozen models of
exactly the fields that we emit, as in objects.py, whose containers and volumes they share; what goes into them is serving.py's business.

Shapes: Kubernetes API 1.35.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from k8s.objects import ContainerSecurity, Env, Match, Meta, Mount, PodSecurity, Port, Resources, Shape, Toleration, Volume


class HttpGet(Shape):
    path: str
    port: str


class Probe(Shape):
    http_get: HttpGet
    period_seconds: int
    failure_threshold: int
    timeout_seconds: int = 5


class SleepAction(Shape):
    seconds: int


class LifecycleHandler(Shape):
    sleep: SleepAction


class Lifecycle(Shape):
    pre_stop: LifecycleHandler


class ServerContainer(Shape):
    name: str
    image: str
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    command: tuple[str, ...]
    env: tuple[Env, ...] = ()
    ports: tuple[Port, ...]
    resources: Resources
    volume_mounts: tuple[Mount, ...] = ()
    security_context: ContainerSecurity = ContainerSecurity()
    startup_probe: Probe
    readiness_probe: Probe
    liveness_probe: Probe
    lifecycle: Lifecycle


class NodeExpression(Shape):
    key: str
    operator: Literal["NotIn"] = "NotIn"
    values: tuple[str, ...]


class NodeTerm(Shape):
    match_expressions: tuple[NodeExpression, ...]


class NodeTerms(Shape):
    node_selector_terms: tuple[NodeTerm, ...]


class NodeAffinity(Shape):
    required_during_scheduling_ignored_during_execution: NodeTerms


class ServerAffinity(Shape):
    node_affinity: NodeAffinity


class ServerPodSpec(Shape):
    """Scheduled by the cluster's own scheduler, one pod at a time: a server is no gang."""

    service_account_name: str
    automount_service_account_token: bool = False
    enable_service_links: bool = False
    termination_grace_period_seconds: int
    node_selector: dict[str, str] = Field(default_factory=dict)
    affinity: ServerAffinity
    tolerations: tuple[Toleration, ...] = ()
    security_context: PodSecurity
    containers: tuple[ServerContainer, ...]
    volumes: tuple[Volume, ...]


class ServerPodTemplate(Shape):
    metadata: Meta
    spec: ServerPodSpec


class RollingUpdate(Shape):
    max_surge: int
    max_unavailable: int


class Strategy(Shape):
    type: Literal["RollingUpdate"] = "RollingUpdate"
    rolling_update: RollingUpdate


class DeploymentSpec(Shape):
    """`replicas` is left out where an autoscaler owns it."""

    replicas: int | None = None
    selector: Match
    strategy: Strategy
    progress_deadline_seconds: int
    template: ServerPodTemplate


class Deployment(Shape):
    api_version: Literal["apps/v1"] = "apps/v1"
    kind: Literal["Deployment"] = "Deployment"
    metadata: Meta
    spec: DeploymentSpec


class ServicePort(Shape):
    name: str
    port: int
    target_port: str


class ServiceSpec(Shape):
    selector: dict[str, str]
    ports: tuple[ServicePort, ...]


class Service(Shape):
    api_version: Literal["v1"] = "v1"
    kind: Literal["Service"] = "Service"
    metadata: Meta
    spec: ServiceSpec


class BudgetSpec(Shape):
    max_unavailable: int
    selector: Match


class PodDisruptionBudget(Shape):
    api_version: Literal["policy/v1"] = "policy/v1"
    kind: Literal["PodDisruptionBudget"] = "PodDisruptionBudget"
    metadata: Meta
    spec: BudgetSpec


class ScaleTarget(Shape):
    api_version: Literal["apps/v1"] = "apps/v1"
    kind: Literal["Deployment"] = "Deployment"
    name: str


class MetricName(Shape):
    name: str


class MetricTarget(Shape):
    type: Literal["AverageValue"] = "AverageValue"
    average_value: str


class PodsMetric(Shape):
    metric: MetricName
    target: MetricTarget


class Metric(Shape):
    type: Literal["Pods"] = "Pods"
    pods: PodsMetric


class AutoscalerSpec(Shape):
    scale_target_ref: ScaleTarget
    min_replicas: int
    max_replicas: int
    metrics: tuple[Metric, ...]


class HorizontalPodAutoscaler(Shape):
    api_version: Literal["autoscaling/v2"] = "autoscaling/v2"
    kind: Literal["HorizontalPodAutoscaler"] = "HorizontalPodAutoscaler"
    metadata: Meta
    spec: AutoscalerSpec
