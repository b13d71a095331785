"""Where nodes come from, and how many a line may hold: Volcano's queue and its scheduler's configuration, Karpenter's pools and their node
class. Pure. Knows capacity; refuses to know jobs. Why each field is as it is: docs/kubernetes.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from contracts.cluster import ClusterSettings
from contracts.errors import ConfigError
from k8s.cluster_objects import ConfigMap, Queue, QueueSpec
from k8s.gang import GANG, RATCHET
from k8s.objects import Meta
from k8s.policies import SCHEDULER_CONFIG, SCHEDULER_KEY, VOLCANO_NAMESPACE
from k8s.pool_objects import (
    Budget,
    Disruption,
    Ec2NodeClass,
    Ec2NodeClassSpec,
    ImageTerm,
    NetworkInterface,
    NodeClassRef,
    NodeLabels,
    NodePool,
    NodePoolSpec,
    NodeSpec,
    NodeTaint,
    NodeTemplate,
    PlacementGroup,
    Requirement,
    ReservationTerm,
    TagTerm,
)
from k8s.profile import Profile
from k8s.quantities import multiple

IDLE = "15m"
"""A node that no pod uses any more goes back after this long."""
LEAVE = "5m"
"""From a node's end being decided to its being forced. Pods take 110 s at most."""
REPLACE = "REPLACE-ME"
"""Stands where only the account's owner knows the word."""
SCHEDULER = """actions: "allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
  - name: drf
  - name: predicates
  - name: capacity
  - name: nodeorder
  - name: binpack
"""
"""Without `enqueue`: it weighs a gang against the nodes that exist, and an empty pool then stays empty for ever."""


@dataclass(frozen=True)
class Account:
    """What only the owner of the AWS account knows."""

    cluster: str = REPLACE
    """Name of the EKS cluster: its subnets and security groups carry the tag karpenter.sh/discovery with it."""
    ami: str = f"al2023@{REPLACE}"
    """family@version, pinned."""
    role: str = ""
    """IAM role of the nodes; empty: KarpenterNodeRole-CLUSTER."""
    placement_group: str | None = None
    reservations: tuple[str, ...] = ()
    """Capacity reservations, by id."""


def queue(settings: ClusterSettings, profile: Profile) -> Queue:
    """Capped at what the pool may hold, so that no gang waits for more; nobody takes from it what it has."""
    whole = {"cpu": profile.cpu, "memory": profile.memory, **profile.resources}
    if profile.gpus:
        whole[profile.gpu_resource] = str(profile.gpus)
    capability = {name: multiple(amount, settings.pool.max_nodes) for name, amount in whole.items()}
    return Queue(metadata=Meta(name=settings.queue, labels=dict(RATCHET)), spec=QueueSpec(capability=capability))


def scheduler() -> ConfigMap:
    """Volcano's, for the whole cluster. Its scheduler reads the file anew when it changes."""
    return ConfigMap(metadata=Meta(name=SCHEDULER_CONFIG, namespace=VOLCANO_NAMESPACE), data={SCHEDULER_KEY: SCHEDULER})


def node_class(settings: ClusterSettings, profile: Profile, account: Account) -> Ec2NodeClass:
    """How an EC2 machine becomes a node: pinned image, local disks as one, a fabric adapter on every card."""
    found = (TagTerm(tags={"karpenter.sh/discovery": account.cluster}),)
    return Ec2NodeClass(
        metadata=Meta(name=_class(settings, profile).name, labels=dict(RATCHET)),
        spec=Ec2NodeClassSpec(
            ami_selector_terms=(ImageTerm(alias=account.ami),),
            role=account.role or f"KarpenterNodeRole-{account.cluster}",
            subnet_selector_terms=found,
            security_group_selector_terms=found,
            capacity_reservation_selector_terms=tuple(ReservationTerm(id=one) for one in account.reservations) or None,
            placement_group_selector=PlacementGroup(name=account.placement_group) if account.placement_group else None,
            network_interfaces=_interfaces(profile.network_cards) if profile.network_cards else None,
        ),
    )


def dynamic_pool(settings: ClusterSettings, profile: Profile) -> NodePool:
    """Grows with pods that do not fit, up to the settings' nodes. A gang of which some pods fit already can deadlock with it: the guardian
    watches for that."""
    resource = profile.gpu_resource if profile.gpus else "cpu"
    limit = multiple(str(profile.gpus) if profile.gpus else profile.cpu, settings.pool.max_nodes)
    return _pool(settings, profile, node_class_name(settings), {resource: limit}, None, {})


def static_pool(name: str, nodes: int, settings: ClusterSettings, profile: Profile) -> NodePool:
    """Of one gang, `name`: as many nodes as it has, at once. The gang's nodes carry its label; 0 nodes empties the pool.

    ConfigError for more nodes than cluster.pool.max_nodes, or where no pool can be rendered for the profile.
    """
    if nodes > settings.pool.max_nodes:
        raise ConfigError(f"a gang of {nodes} nodes is more than cluster.pool.max_nodes = {settings.pool.max_nodes}; raise it")
    return _pool(settings, profile, name, {"nodes": str(settings.pool.max_nodes)}, nodes, {GANG: name})


def _pool(
    settings: ClusterSettings, profile: Profile, name: str, limits: dict[str, str], replicas: int | None, labels: dict[str, str]
) -> NodePool:
    template = NodeTemplate(
        metadata=NodeLabels(labels={**RATCHET, **profile.labels, **labels}, annotations=dict(profile.node_annotations)),
        spec=NodeSpec(
            node_class_ref=_class(settings, profile),
            requirements=_requirements(settings, profile),
            taints=tuple(NodeTaint(key=t.key, value=t.value, effect=t.effect) for t in profile.taints),
            termination_grace_period=LEAVE,
        ),
    )
    return NodePool(
        metadata=Meta(name=name, labels=dict(RATCHET)),
        spec=NodePoolSpec(
            replicas=replicas,
            limits=limits,
            disruption=Disruption(consolidate_after=IDLE, budgets=(Budget(nodes="0", reasons=("Drifted", "Underutilized")),)),
            template=template,
        ),
    )


def _requirements(settings: ClusterSettings, profile: Profile) -> tuple[Requirement, ...]:
    found = [Requirement(key="karpenter.sh/capacity-type", values=(settings.pool.capacity,))]
    if profile.instance_types:
        found.append(Requirement(key="node.kubernetes.io/instance-type", values=profile.instance_types))
    if settings.pool.zone:
        found.append(Requirement(key="topology.kubernetes.io/zone", values=(settings.pool.zone,)))
    return tuple(found)


def _class(settings: ClusterSettings, profile: Profile) -> NodeClassRef:
    """ConfigError where there is none."""
    if profile.node_class:
        group, kind, name = profile.node_class.split("/")
        return NodeClassRef(group=group, kind=kind, name=name)
    if profile.provider == "aws":
        return NodeClassRef(group="karpenter.k8s.aws", kind="EC2NodeClass", name=node_class_name(settings))
    raise ConfigError(
        f"cluster.pool.kind = {settings.pool.kind}, but profile {settings.profile!r} has no Karpenter node class: take one of AWS, name a"
        ' node_class in a profile of your own, or set cluster.pool.kind = "none" and make the nodes by hand'
    )


def node_class_name(settings: ClusterSettings) -> str:
    """Of the namespace and the profile: two lines of one namespace and one kind of node share it."""
    stem = settings.profile.rsplit("/", 1)[-1].removesuffix(".toml").lower()
    return f"{settings.namespace}-{re.sub(r'[^a-z0-9-]+', '-', stem).strip('-') or 'nodes'}"


def _interfaces(cards: int) -> tuple[NetworkInterface, ...]:
    """The node's own address on the first card, and on each card an adapter for the fabric alone, which takes no address."""
    own = NetworkInterface(network_card_index=0, device_index=0, interface_type="interface")
    return (own, *(NetworkInterface(network_card_index=card, device_index=1, interface_type="efa-only") for card in range(cards)))
