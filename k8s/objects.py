"""Kubernetes objects as frozen models of exactly the fields that we emit: a misspelt field is an error here, not a field that a
server drops. `manifest` turns one into the JSON that the API takes. Knows shapes only; what goes into them is gang.py's business.

Shapes: Kubernetes API 1.35 (core/v1), Volcano v1.14.1 (batch.volcano.sh/v1alpha1).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Shape(BaseModel):
    """Names as in Python, camelCase outside; unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Meta(Shape):
    """ObjectMeta."""

    name: str | None = None
    namespace: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class FieldRef(Shape):
    field_path: str


class SecretKey(Shape):
    name: str
    key: str


class ValueFrom(Shape):
    field_ref: FieldRef | None = None
    secret_key_ref: SecretKey | None = None


class Env(Shape):
    """One variable: a value, or where it comes from."""

    name: str
    value: str | None = None
    value_from: ValueFrom | None = None


class Port(Shape):
    name: str
    container_port: int


class Mount(Shape):
    name: str
    mount_path: str
    sub_path: str | None = None
    read_only: bool | None = None


class Resources(Shape):
    requests: dict[str, str]
    limits: dict[str, str]


class Capabilities(Shape):
    drop: tuple[str, ...] = ("ALL",)
    add: tuple[str, ...] | None = None


class ContainerSecurity(Shape):
    allow_privilege_escalation: bool = False
    privileged: bool | None = None
    read_only_root_filesystem: bool = True
    capabilities: Capabilities = Capabilities()


class Seccomp(Shape):
    type: Literal["RuntimeDefault", "Unconfined"] = "RuntimeDefault"


class PodSecurity(Shape):
    run_as_non_root: bool | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    fs_group: int | None = None
    seccomp_profile: Seccomp = Seccomp()


class Container(Shape):
    name: str
    image: str
    image_pull_policy: Literal["IfNotPresent", "Always", "Never"] = "IfNotPresent"
    command: tuple[str, ...]
    working_dir: str | None = None
    env: tuple[Env, ...] = ()
    ports: tuple[Port, ...] | None = None
    resources: Resources
    volume_mounts: tuple[Mount, ...] = ()
    termination_message_policy: Literal["FallbackToLogsOnError"] = "FallbackToLogsOnError"
    """A container that dies leaves the end of its log in its pod's status: the pod is gone before anybody could ask for the log."""
    security_context: ContainerSecurity = ContainerSecurity()


class Claim(Shape):
    claim_name: str


class HostPath(Shape):
    path: str
    type: Literal["Directory", "DirectoryOrCreate"] | None = None


class EmptyDir(Shape):
    medium: Literal["Memory"] | None = None
    size_limit: str | None = None


class SecretVolume(Shape):
    secret_name: str
    default_mode: int = 0o440


class Volume(Shape):
    name: str
    persistent_volume_claim: Claim | None = None
    host_path: HostPath | None = None
    empty_dir: EmptyDir | None = None
    secret: SecretVolume | None = None


class Toleration(Shape):
    """`effect` always: the API server refuses seconds without NoExecute, and Volcano's Job accepts a template that it would refuse."""

    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "NoExecute"]
    toleration_seconds: int | None = None


class Match(Shape):
    match_labels: dict[str, str]


class AffinityTerm(Shape):
    label_selector: Match
    topology_key: str


class PodAntiAffinity(Shape):
    required_during_scheduling_ignored_during_execution: tuple[AffinityTerm, ...]


class Affinity(Shape):
    pod_anti_affinity: PodAntiAffinity | None = None


class PodSpec(Shape):
    scheduler_name: str = "volcano"
    restart_policy: Literal["Never"] = "Never"
    service_account_name: str | None = None
    automount_service_account_token: bool = False
    enable_service_links: bool = False
    termination_grace_period_seconds: int
    priority_class_name: str | None = None
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    affinity: Affinity | None = None
    host_network: bool | None = None
    security_context: PodSecurity
    containers: tuple[Container, ...]
    volumes: tuple[Volume, ...] = ()


class PodTemplate(Shape):
    metadata: Meta
    spec: PodSpec


class Policy(Shape):
    """What Volcano does when something happens to a pod; the first that matches counts, so exit codes come before events."""

    action: Literal["RestartJob", "TerminateJob", "CompleteJob"]
    event: Literal["PodEvicted", "PodFailed", "Unknown", "TaskCompleted"] | None = None
    exit_code: int | None = None


class Task(Shape):
    name: str
    replicas: int
    min_available: int
    policies: tuple[Policy, ...] | None = None
    template: PodTemplate


class VolcanoJobSpec(Shape):
    scheduler_name: str = "volcano"
    queue: str
    min_available: int
    max_retry: int
    ttl_seconds_after_finished: int | None = None
    priority_class_name: str | None = None
    plugins: dict[str, tuple[str, ...]]
    policies: tuple[Policy, ...]
    tasks: tuple[Task, ...]


class VolcanoJob(Shape):
    """A gang."""

    api_version: Literal["batch.volcano.sh/v1alpha1"] = "batch.volcano.sh/v1alpha1"
    kind: Literal["Job"] = "Job"
    metadata: Meta
    spec: VolcanoJobSpec


def manifest(shape: Shape) -> dict[str, Any]:
    """JSON as the API takes it: absent fields are left out, and so are maps without any."""
    found: dict[str, Any] = _bare(shape.model_dump(mode="json", by_alias=True))
    return found


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _bare(item) for key, item in value.items() if item is not None}
    return [_bare(item) for item in value] if isinstance(value, list) else value
