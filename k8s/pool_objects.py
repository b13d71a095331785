"""Shapes of what brings nodes on demand: Karpenter's NodePool and the EC2 node class it points at. Frozen models of exactly the fields that
we emit, as in objects.py; what goes into them is pools.py's business.

Shapes: Karpenter v1.14.1 (karpenter.sh/v1, karpenter.k8s.aws/v1).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from k8s.objects import Meta, Shape


class NodeClassRef(Shape):
    """All three; the name alone is refused."""

    group: str
    kind: str
    name: str


class Requirement(Shape):
    """Of a node."""

    key: str
    operator: Literal["In"] = "In"
    values: tuple[str, ...] = Field(min_length=1)


class NodeTaint(Shape):
    key: str
    value: str | None = None
    effect: Literal["NoSchedule", "NoExecute"]


class NodeLabels(Shape):
    """Of the nodes that a pool makes."""

    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class NodeSpec(Shape):
    node_class_ref: NodeClassRef
    requirements: tuple[Requirement, ...]
    taints: tuple[NodeTaint, ...] = ()
    expire_after: Literal["Never"] = "Never"
    termination_grace_period: str


class NodeTemplate(Shape):
    metadata: NodeLabels
    spec: NodeSpec


class Budget(Shape):
    nodes: str
    reasons: tuple[Literal["Drifted", "Underutilized", "Empty"], ...]


class Disruption(Shape):
    consolidation_policy: Literal["WhenEmpty"] = "WhenEmpty"
    consolidate_after: str
    budgets: tuple[Budget, ...]


class NodePoolSpec(Shape):
    """`replicas` makes it static, and then `limits` may only count nodes."""

    replicas: int | None = None
    limits: dict[str, str]
    disruption: Disruption
    template: NodeTemplate


class NodePool(Shape):
    api_version: Literal["karpenter.sh/v1"] = "karpenter.sh/v1"
    kind: Literal["NodePool"] = "NodePool"
    metadata: Meta
    spec: NodePoolSpec


class ImageTerm(Shape):
    alias: str
    """family@version; a pinned version, or nodes of one gang may differ."""


class TagTerm(Shape):
    """What is found by tags."""

    tags: dict[str, str]


class ReservationTerm(Shape):
    id: str


class PlacementGroup(Shape):
    name: str


class NetworkInterface(Shape):
    network_card_index: int
    device_index: int
    interface_type: Literal["interface", "efa-only"]


class Ec2NodeClassSpec(Shape):
    ami_selector_terms: tuple[ImageTerm, ...]
    role: str
    subnet_selector_terms: tuple[TagTerm, ...]
    security_group_selector_terms: tuple[TagTerm, ...]
    capacity_reservation_selector_terms: tuple[ReservationTerm, ...] | None = None
    placement_group_selector: PlacementGroup | None = None
    instance_store_policy: Literal["RAID0"] = "RAID0"
    network_interfaces: tuple[NetworkInterface, ...] | None = None


class Ec2NodeClass(Shape):
    api_version: Literal["karpenter.k8s.aws/v1"] = "karpenter.k8s.aws/v1"
    kind: Literal["EC2NodeClass"] = "EC2NodeClass"
    metadata: Meta
    spec: Ec2NodeClassSpec
