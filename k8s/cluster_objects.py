"""Shapes of what a cluster must hold before a gang can run: namespace, accounts and rights, network policies, queue, configuration, volume
claim. Frozen models of exactly the fields that we emit, as in objects.py; what goes into them is the business of policies.py and
environment.py.

Shapes: Kubernetes API 1.35, Volcano v1.14.1 (scheduling.volcano.sh/v1beta1).
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from k8s.objects import Meta, Shape


class Namespace(Shape):
    api_version: Literal["v1"] = "v1"
    kind: Literal["Namespace"] = "Namespace"
    metadata: Meta


class ServiceAccount(Shape):
    api_version: Literal["v1"] = "v1"
    kind: Literal["ServiceAccount"] = "ServiceAccount"
    metadata: Meta
    automount_service_account_token: bool


class Rule(Shape):
    """What may be done, to what."""

    api_groups: tuple[str, ...]
    """"" is the core group."""
    resources: tuple[str, ...]
    resource_names: tuple[str, ...] | None = None
    verbs: tuple[str, ...]


class Role(Shape):
    api_version: Literal["rbac.authorization.k8s.io/v1"] = "rbac.authorization.k8s.io/v1"
    kind: Literal["Role", "ClusterRole"]
    metadata: Meta
    rules: tuple[Rule, ...]


class RoleRef(Shape):
    api_group: Literal["rbac.authorization.k8s.io"] = "rbac.authorization.k8s.io"
    kind: Literal["Role", "ClusterRole"]
    name: str


class Subject(Shape):
    kind: Literal["ServiceAccount"] = "ServiceAccount"
    name: str
    namespace: str


class RoleBinding(Shape):
    api_version: Literal["rbac.authorization.k8s.io/v1"] = "rbac.authorization.k8s.io/v1"
    kind: Literal["RoleBinding", "ClusterRoleBinding"]
    metadata: Meta
    role_ref: RoleRef
    subjects: tuple[Subject, ...]


class Selector(Shape):
    """Objects with all of these labels; without any: all of them."""

    match_labels: dict[str, str] | None = None


class IpBlock(Shape):
    """`except` is a keyword, hence the name here."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    cidr: str
    excluded: tuple[str, ...] | None = Field(default=None, alias="except")


class Peer(Shape):
    pod_selector: Selector | None = None
    namespace_selector: Selector | None = None
    ip_block: IpBlock | None = None


class PolicyPort(Shape):
    protocol: Literal["TCP", "UDP"] = "TCP"
    port: int


class Ingress(Shape):
    """`from` is a keyword, hence the name here."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    sources: tuple[Peer, ...] | None = Field(default=None, alias="from")
    ports: tuple[PolicyPort, ...] | None = None


class Egress(Shape):
    to: tuple[Peer, ...] | None = None
    ports: tuple[PolicyPort, ...] | None = None


class NetworkPolicySpec(Shape):
    pod_selector: Selector
    policy_types: tuple[Literal["Ingress", "Egress"], ...]
    ingress: tuple[Ingress, ...] | None = None
    egress: tuple[Egress, ...] | None = None


class NetworkPolicy(Shape):
    api_version: Literal["networking.k8s.io/v1"] = "networking.k8s.io/v1"
    kind: Literal["NetworkPolicy"] = "NetworkPolicy"
    metadata: Meta
    spec: NetworkPolicySpec


class QueueSpec(Shape):
    """`capability` caps what the queue's gangs hold together."""

    weight: int = 1
    reclaimable: bool = False
    capability: dict[str, str]


class Queue(Shape):
    """Cluster-wide, as Volcano has it."""

    api_version: Literal["scheduling.volcano.sh/v1beta1"] = "scheduling.volcano.sh/v1beta1"
    kind: Literal["Queue"] = "Queue"
    metadata: Meta
    spec: QueueSpec


class ConfigMap(Shape):
    api_version: Literal["v1"] = "v1"
    kind: Literal["ConfigMap"] = "ConfigMap"
    metadata: Meta
    data: dict[str, str]


class StorageRequest(Shape):
    requests: dict[str, str]


class ClaimSpec(Shape):
    access_modes: tuple[Literal["ReadWriteMany"], ...] = ("ReadWriteMany",)
    storage_class_name: str | None = None
    """None: the cluster's default class, which is seldom one that many nodes may write."""
    resources: StorageRequest


class VolumeClaim(Shape):
    api_version: Literal["v1"] = "v1"
    kind: Literal["PersistentVolumeClaim"] = "PersistentVolumeClaim"
    metadata: Meta
    spec: ClaimSpec
