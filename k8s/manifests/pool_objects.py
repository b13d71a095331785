"""Karpenter's NodePool and the EC2 node class that it refers to.

Frozen models of exactly the fields that Ratchet emits (see `pod_objects.py`). `pools.py` fills them.

Sources: Karpenter v1.14.1 (karpenter.sh/v1, karpenter.k8s.aws/v1).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ratchet.k8s.manifests.pod_objects import Meta, Shape


class NodeClassRef(Shape):
    """Reference to a node class. Karpenter requires all three fields."""

    group: str
    kind: str
    name: str


class Requirement(Shape):
    """Allowed values of a node label."""

    key: str
    operator: Literal["In"] = "In"
    values: tuple[str, ...] = Field(min_length=1)


class NodeTaint(Shape):
    """Taint that a pool's nodes carry."""

    key: str
    value: str | None = None
    effect: Literal["NoSchedule", "NoExecute"]


class NodeLabels(Shape):
    """Labels and annotations of a pool's nodes."""

    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class NodeSpec(Shape):
    """Node class, requirements, taints and lifetime of a pool's nodes."""

    node_class_ref: NodeClassRef
    requirements: tuple[Requirement, ...]
    taints: tuple[NodeTaint, ...] = ()
    expire_after: Literal["Never"] = "Never"
    termination_grace_period: str


class NodeTemplate(Shape):
    """Template of the nodes that a pool makes."""

    metadata: NodeLabels
    spec: NodeSpec


class Budget(Shape):
    """Number of nodes that Karpenter may disrupt at once for the given reasons."""

    nodes: str
    reasons: tuple[Literal["Drifted", "Underutilized", "Empty"], ...]


class Disruption(Shape):
    """When and how many nodes Karpenter may remove."""

    consolidation_policy: Literal["WhenEmpty"] = "WhenEmpty"
    consolidate_after: str
    budgets: tuple[Budget, ...]


class NodePoolSpec(Shape):
    """Specification of a pool. With `replicas` the pool is static, and then `limits` may only count nodes."""

    replicas: int | None = None
    limits: dict[str, str]
    disruption: Disruption
    template: NodeTemplate


class NodePool(Shape):
    """Karpenter NodePool, static or dynamic; a cluster-wide object."""

    api_version: Literal["karpenter.sh/v1"] = "karpenter.sh/v1"
    kind: Literal["NodePool"] = "NodePool"
    metadata: Meta
    spec: NodePoolSpec


class ImageTerm(Shape):
    """Selector of the machine image."""

    alias: str
    """family@version. The version must be pinned because otherwise nodes of one gang may differ."""


class TagTerm(Shape):
    """Selector of AWS resources by their tags."""

    tags: dict[str, str]


class ReservationTerm(Shape):
    """Selector of one capacity reservation by its id."""

    id: str


class PlacementGroup(Shape):
    """EC2 placement group by its name."""

    name: str


class NetworkInterface(Shape):
    """One network interface of an EC2 machine, by card and device."""

    network_card_index: int
    device_index: int
    interface_type: Literal["interface", "efa-only"]


class Ec2NodeClassSpec(Shape):
    """Image, role, network, capacity and local disks of EC2 nodes."""

    ami_selector_terms: tuple[ImageTerm, ...]
    role: str
    subnet_selector_terms: tuple[TagTerm, ...]
    security_group_selector_terms: tuple[TagTerm, ...]
    capacity_reservation_selector_terms: tuple[ReservationTerm, ...] | None = None
    placement_group_selector: PlacementGroup | None = None
    instance_store_policy: Literal["RAID0"] = "RAID0"
    network_interfaces: tuple[NetworkInterface, ...] | None = None


class Ec2NodeClass(Shape):
    """Karpenter's description of how an EC2 machine becomes a node."""

    api_version: Literal["karpenter.k8s.aws/v1"] = "karpenter.k8s.aws/v1"
    kind: Literal["EC2NodeClass"] = "EC2NodeClass"
    metadata: Meta
    spec: Ec2NodeClassSpec


class Switch(Shape):
    """A feature that is on."""

    enabled: bool = True


class Accelerator(Shape):
    """GPUs of a machine."""

    type: str
    count: int


class ZoneList(Shape):
    """Zones for new nodes."""

    zones: tuple[str, ...]


class NamedReservation(Shape):
    """A reservation of Compute Engine in the cluster's project."""

    name: str


class SpecificReservations(Shape):
    """Reservations that nodes must come from."""

    affinity: Literal["Specific"] = "Specific"
    specific: tuple[NamedReservation, ...]


class MachineChoice(Shape):
    """One kind of machine that a ComputeClass may use, and how it is bought."""

    machine_type: str
    gpu: Accelerator | None = None
    spot: bool | None = None
    flex_start: Switch | None = None
    reservations: SpecificReservations | None = None
    location: ZoneList | None = None


class Consolidation(Shape):
    """When idle nodes are removed."""

    consolidation_delay_minutes: int


class ClassNodes(Shape):
    """Labels of the nodes of a ComputeClass."""

    node_labels: dict[str, str]


class ComputeClassSpec(Shape):
    """Machines that GKE makes for pods that select the class, and for no others."""

    priorities: tuple[MachineChoice, ...]
    node_pool_auto_creation: Switch = Switch()
    node_pool_config: ClassNodes
    autoscaling_policy: Consolidation
    when_unsatisfiable: Literal["DoNotScaleUp"] = "DoNotScaleUp"


class ComputeClass(Shape):
    """GKE's description of the nodes that it makes for pods.

    Source: https://cloud.google.com/kubernetes-engine/docs/reference/crds/computeclass. Google publishes no schema; no test validates it.
    """

    api_version: Literal["cloud.google.com/v1"] = "cloud.google.com/v1"
    kind: Literal["ComputeClass"] = "ComputeClass"
    metadata: Meta
    spec: ComputeClassSpec
