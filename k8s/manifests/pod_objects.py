"""Kubernetes objects as frozen models of exactly the fields that Ratchet emits.

A misspelled field is an error here instead of a field that a server drops. `manifest` turns a model into the JSON that the API takes.
This module defines shapes only; `gang_manifest.py` fills them.

Sources: Kubernetes API 1.35 (core/v1), Volcano v1.14.1 (batch.volcano.sh/v1alpha1).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class Shape(BaseModel):
    """Base model: snake_case in Python, camelCase in JSON. Unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Meta(Shape):
    """ObjectMeta of an object or of a pod template."""

    name: str | None = None
    namespace: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class FieldRef(Shape):
    """Reference to a field of the pod itself (downward API)."""

    field_path: str


class SecretKey(Shape):
    """Reference to one key of a Secret."""

    name: str
    key: str


class ValueFrom(Shape):
    """Source of an environment variable: a pod field or a Secret key."""

    field_ref: FieldRef | None = None
    secret_key_ref: SecretKey | None = None


class Env(Shape):
    """One environment variable, given by value or by source."""

    name: str
    value: str | None = None
    value_from: ValueFrom | None = None


class Port(Shape):
    """Named port that a container listens on."""

    name: str
    container_port: int


class Mount(Shape):
    """Mount of a volume, or of a folder in it, in a container."""

    name: str
    mount_path: str
    sub_path: str | None = None
    read_only: bool | None = None


class Resources(Shape):
    """Resource requests and limits of a container."""

    requests: dict[str, str]
    limits: dict[str, str]


class Capabilities(Shape):
    """Linux capabilities of a container. By default all are dropped."""

    drop: tuple[str, ...] = ("ALL",)
    add: tuple[str, ...] | None = None


class ContainerSecurity(Shape):
    """Security context of one container."""

    allow_privilege_escalation: bool = False
    privileged: bool | None = None
    read_only_root_filesystem: bool = True
    capabilities: Capabilities = Capabilities()


class Seccomp(Shape):
    """Seccomp profile of a pod; the container runtime's default profile by default."""

    type: Literal["RuntimeDefault", "Unconfined"] = "RuntimeDefault"


class PodSecurity(Shape):
    """Security context of a whole pod."""

    run_as_non_root: bool | None = None
    run_as_user: int | None = None
    run_as_group: int | None = None
    fs_group: int | None = None
    seccomp_profile: Seccomp = Seccomp()


class Container(Shape):
    """One container of a pod."""

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
    """Keeps the end of a failed container's log in the pod's status. The pod is gone before its log can be read."""
    security_context: ContainerSecurity = ContainerSecurity()


class Claim(Shape):
    """Volume source: a PersistentVolumeClaim by name."""

    claim_name: str


class HostPath(Shape):
    """Volume source: a path on the node."""

    path: str
    type: Literal["Directory", "DirectoryOrCreate"] | None = None


class EmptyDir(Shape):
    """Volume source: an empty folder that exists as long as the pod."""

    medium: Literal["Memory"] | None = None
    size_limit: str | None = None


class SecretVolume(Shape):
    """Volume source: the keys of a Secret as files."""

    secret_name: str
    default_mode: int = 0o440


class Volume(Shape):
    """Named volume of a pod with exactly one source."""

    name: str
    persistent_volume_claim: Claim | None = None
    host_path: HostPath | None = None
    empty_dir: EmptyDir | None = None
    secret: SecretVolume | None = None


class Toleration(Shape):
    """Toleration of a node taint.

    `effect` is always set. The API server rejects `toleration_seconds` without NoExecute, but a Volcano Job accepts such a template.
    """

    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "NoExecute"]
    toleration_seconds: int | None = None


class Match(Shape):
    """Label selector: objects that have all of these labels."""

    match_labels: dict[str, str]


class AffinityTerm(Shape):
    """Selected pods, and the node label that defines one placement domain."""

    label_selector: Match
    topology_key: str


class PodAntiAffinity(Shape):
    """Terms that keep a pod off domains where selected pods already run."""

    required_during_scheduling_ignored_during_execution: tuple[AffinityTerm, ...]


class Affinity(Shape):
    """Placement rules of a gang's pod."""

    pod_anti_affinity: PodAntiAffinity | None = None


class PodSpec(Shape):
    """Specification of a gang's pod, placed by Volcano's scheduler. It is never restarted in place."""

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
    """Metadata and specification from which a task's pods are made."""

    metadata: Meta
    spec: PodSpec


class Policy(Shape):
    """Action that Volcano takes on a pod event or exit code.

    The first match applies, so policies on exit codes come before policies on events.
    """

    action: Literal["RestartJob", "TerminateJob", "CompleteJob"]
    event: Literal["PodEvicted", "PodFailed", "Unknown", "TaskCompleted"] | None = None
    exit_code: int | None = None


class Task(Shape):
    """One task of a Volcano Job: identical pods made from one template."""

    name: str
    replicas: int
    min_available: int
    policies: tuple[Policy, ...] | None = None
    template: PodTemplate


class VolcanoJobSpec(Shape):
    """Specification of a Volcano Job."""

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
    """One gang as a Volcano Job."""

    api_version: Literal["batch.volcano.sh/v1alpha1"] = "batch.volcano.sh/v1alpha1"
    kind: Literal["Job"] = "Job"
    metadata: Meta
    spec: VolcanoJobSpec


def manifest(shape: Shape) -> dict[str, Any]:
    """Return the JSON that the API takes. Fields with the value None are left out."""
    found: dict[str, Any] = _bare(shape.model_dump(mode="json", by_alias=True))
    return found


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _bare(item) for key, item in value.items() if item is not None}
    return [_bare(item) for item in value] if isinstance(value, list) else value
