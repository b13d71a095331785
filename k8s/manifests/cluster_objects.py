"""Kubernetes objects that a cluster must hold before a gang can run.

They are namespace, accounts, roles, network policies, queue, configuration and volume claim, as frozen models of exactly the fields
that Ratchet emits (see `pod_objects.py`). `policies.py`, `pools.py` and `environment.py` fill them.

Sources: Kubernetes API 1.35, Volcano v1.14.1 (scheduling.volcano.sh/v1beta1).
"""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from ratchet.k8s.manifests.pod_objects import Meta, Shape


class Namespace(Shape):
    """Namespace that holds a line's gangs."""

    api_version: Literal["v1"] = "v1"
    kind: Literal["Namespace"] = "Namespace"
    metadata: Meta


class ServiceAccount(Shape):
    """Identity of pods towards the API server."""

    api_version: Literal["v1"] = "v1"
    kind: Literal["ServiceAccount"] = "ServiceAccount"
    metadata: Meta
    automount_service_account_token: bool


class AccessRule(Shape):
    """Verbs that are allowed on resources of API groups."""

    api_groups: tuple[str, ...]
    """The empty string is the core group."""
    resources: tuple[str, ...]
    resource_names: tuple[str, ...] | None = None
    verbs: tuple[str, ...]


class Role(Shape):
    """Set of rules for one namespace (Role) or for the whole cluster (ClusterRole)."""

    api_version: Literal["rbac.authorization.k8s.io/v1"] = "rbac.authorization.k8s.io/v1"
    kind: Literal["Role", "ClusterRole"]
    metadata: Meta
    rules: tuple[AccessRule, ...]


class RoleRef(Shape):
    """Role that a binding grants."""

    api_group: Literal["rbac.authorization.k8s.io"] = "rbac.authorization.k8s.io"
    kind: Literal["Role", "ClusterRole"]
    name: str


class Subject(Shape):
    """Service account that a binding grants a role to."""

    kind: Literal["ServiceAccount"] = "ServiceAccount"
    name: str
    namespace: str


class RoleBinding(Shape):
    """Grant of a role to service accounts."""

    api_version: Literal["rbac.authorization.k8s.io/v1"] = "rbac.authorization.k8s.io/v1"
    kind: Literal["RoleBinding", "ClusterRoleBinding"]
    metadata: Meta
    role_ref: RoleRef
    subjects: tuple[Subject, ...]


class Selector(Shape):
    """Label selector: objects with all of these labels. Without labels it selects every object."""

    match_labels: dict[str, str] | None = None


class IpBlock(Shape):
    """Range of addresses without the excluded ranges. The Python name is `excluded` because `except` is a keyword."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    cidr: str
    excluded: tuple[str, ...] | None = Field(default=None, alias="except")


class Peer(Shape):
    """Other end of allowed traffic: pods, namespaces or an address range."""

    pod_selector: Selector | None = None
    namespace_selector: Selector | None = None
    ip_block: IpBlock | None = None


class PolicyPort(Shape):
    """Protocol and port of allowed traffic."""

    protocol: Literal["TCP", "UDP"] = "TCP"
    port: int


class Ingress(Shape):
    """Allowed incoming traffic. The Python name is `sources` because `from` is a keyword."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    sources: tuple[Peer, ...] | None = Field(default=None, alias="from")
    ports: tuple[PolicyPort, ...] | None = None


class Egress(Shape):
    """Allowed outgoing traffic. Without peers and ports it allows all."""

    to: tuple[Peer, ...] | None = None
    ports: tuple[PolicyPort, ...] | None = None


class NetworkPolicySpec(Shape):
    """Selected pods and the traffic that is allowed for them."""

    pod_selector: Selector
    policy_types: tuple[Literal["Ingress", "Egress"], ...]
    ingress: tuple[Ingress, ...] | None = None
    egress: tuple[Egress, ...] | None = None


class NetworkPolicy(Shape):
    """Network policy of a namespace."""

    api_version: Literal["networking.k8s.io/v1"] = "networking.k8s.io/v1"
    kind: Literal["NetworkPolicy"] = "NetworkPolicy"
    metadata: Meta
    spec: NetworkPolicySpec


class NamedRule(Shape):
    """Operations on resources that an admission policy checks."""

    api_groups: tuple[str, ...]
    api_versions: tuple[str, ...]
    operations: tuple[str, ...]
    resources: tuple[str, ...]


class MatchResources(Shape):
    """Objects that an admission policy checks."""

    namespace_selector: Selector | None = None
    resource_rules: tuple[NamedRule, ...]


class PolicyCondition(Shape):
    """Condition in CEL; the policy checks only requests for which it is true."""

    name: str
    expression: str


class PolicyVariable(Shape):
    """Named value in CEL that validations use."""

    name: str
    expression: str


class Validation(Shape):
    """Expression in CEL that must be true, and the message of the refusal."""

    expression: str
    message: str


class PolicyRules(Shape):
    """Rules of an admission policy. A rule that cannot be evaluated refuses the request."""

    failure_policy: Literal["Fail"] = "Fail"
    match_constraints: MatchResources
    match_conditions: tuple[PolicyCondition, ...] | None = None
    variables: tuple[PolicyVariable, ...] | None = None
    validations: tuple[Validation, ...]


class ValidatingPolicy(Shape):
    """Admission policy that the API server evaluates itself."""

    api_version: Literal["admissionregistration.k8s.io/v1"] = "admissionregistration.k8s.io/v1"
    kind: Literal["ValidatingAdmissionPolicy"] = "ValidatingAdmissionPolicy"
    metadata: Meta
    spec: PolicyRules


class PolicyBindingSpec(Shape):
    """Name of the policy, and the reaction to a violation."""

    policy_name: str
    validation_actions: tuple[Literal["Deny"], ...]


class PolicyBinding(Shape):
    """Binding that puts an admission policy in force."""

    api_version: Literal["admissionregistration.k8s.io/v1"] = "admissionregistration.k8s.io/v1"
    kind: Literal["ValidatingAdmissionPolicyBinding"] = "ValidatingAdmissionPolicyBinding"
    metadata: Meta
    spec: PolicyBindingSpec


class QueueSpec(Shape):
    """Limits of a Volcano queue. `capability` caps the sum of what the queue's gangs hold."""

    weight: int = 1
    reclaimable: bool = False
    capability: dict[str, str]


class Queue(Shape):
    """Volcano queue; a cluster-wide object."""

    api_version: Literal["scheduling.volcano.sh/v1beta1"] = "scheduling.volcano.sh/v1beta1"
    kind: Literal["Queue"] = "Queue"
    metadata: Meta
    spec: QueueSpec


class ConfigMap(Shape):
    """Configuration values of a namespace, by key."""

    api_version: Literal["v1"] = "v1"
    kind: Literal["ConfigMap"] = "ConfigMap"
    metadata: Meta
    data: dict[str, str]


class StorageRequest(Shape):
    """Storage size that a claim requests."""

    requests: dict[str, str]


class ClaimSpec(Shape):
    """Access modes, storage class and size of a volume claim."""

    access_modes: tuple[Literal["ReadWriteMany"], ...] = ("ReadWriteMany",)
    storage_class_name: str | None = None
    """None means the cluster's default class, which seldom supports writes from many nodes."""
    resources: StorageRequest


class VolumeClaim(Shape):
    """PersistentVolumeClaim for the volume that service and jobs share."""

    api_version: Literal["v1"] = "v1"
    kind: Literal["PersistentVolumeClaim"] = "PersistentVolumeClaim"
    metadata: Meta
    spec: ClaimSpec


class TopologyTerm(Shape):
    """Values of a label of nodes."""

    key: str
    values: tuple[str, ...]


class Topology(Shape):
    """Where volumes of a storage class may be."""

    match_label_expressions: tuple[TopologyTerm, ...]


class StorageClass(Shape):
    """Kind of volumes that a CSI driver makes for claims."""

    api_version: Literal["storage.k8s.io/v1"] = "storage.k8s.io/v1"
    kind: Literal["StorageClass"] = "StorageClass"
    metadata: Meta
    provisioner: str
    parameters: dict[str, str]
    reclaim_policy: Literal["Retain"] = "Retain"
    """A deleted claim keeps its files."""
    volume_binding_mode: Literal["Immediate"] = "Immediate"
    allowed_topologies: tuple[Topology, ...] | None = None
