"""Capacity: Volcano's queue and scheduler configuration, Karpenter's node pools and their node class. No I/O.

This module does not depend on jobs. `docs/kubernetes/setup.md` gives the reason for each field.
"""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.jobs.cluster import ClusterSettings
from ratchet.k8s.api.quantities import multiple
from ratchet.k8s.manifests.cluster_objects import ConfigMap, Queue, QueueSpec
from ratchet.k8s.manifests.gang_manifest import GANG, NAMESPACE, RATCHET, node_class_name
from ratchet.k8s.manifests.pod_objects import Meta
from ratchet.k8s.manifests.policies import SCHEDULER_CONFIG, SCHEDULER_KEY, VOLCANO_NAMESPACE
from ratchet.k8s.manifests.pool_objects import (
    Accelerator,
    Budget,
    ClassNodes,
    ComputeClass,
    ComputeClassSpec,
    Consolidation,
    Disruption,
    Ec2NodeClass,
    Ec2NodeClassSpec,
    ImageTerm,
    MachineChoice,
    NamedReservation,
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
    SpecificReservations,
    Switch,
    TagTerm,
    ZoneList,
)
from ratchet.k8s.profiles.profile import Profile

IDLE_MINUTES = 15
IDLE = f"{IDLE_MINUTES}m"
"""Time without pods after which an idle node is removed."""
LEAVE = "5m"
"""Time from the decision to remove a node until it is forced. By default, pods need 110 s at most."""
REPLACE = "REPLACE-ME"
"""Placeholder for values that only the owner of the AWS account knows."""
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
"""Configuration without the action `enqueue`. That action compares a gang with the existing nodes, so an empty pool would never grow."""


@dataclass(frozen=True)
class Account:
    """Values that only the owner of the AWS account knows."""

    cluster: str = REPLACE
    """Name of the EKS cluster. Its subnets and security groups have the tag karpenter.sh/discovery with this value."""
    ami: str = f"al2023@{REPLACE}"
    """Machine image as family@version, with a pinned version."""
    role: str = ""
    """IAM role of the nodes. Empty means KarpenterNodeRole-CLUSTER."""
    placement_group: str | None = None
    """Name of the placement group of the nodes. None means no placement group."""
    reservations: tuple[str, ...] = ()
    """Ids of capacity reservations."""


def queue(settings: ClusterSettings, profile: Profile) -> Queue:
    """Return the line's queue, capped at the pool's maximum capacity.

    The cap keeps a gang from waiting for more than the pool can hold. The queue is not reclaimable, so other queues cannot take its
    resources.
    """
    whole = {"cpu": profile.cpu, "memory": profile.memory, **profile.resources}
    if profile.gpus:
        whole[profile.gpu_resource] = str(profile.gpus)
    capability = {name: multiple(amount, settings.pool.max_nodes) for name, amount in whole.items()}
    return Queue(metadata=Meta(name=settings.queue, labels=dict(RATCHET)), spec=QueueSpec(capability=capability))


def scheduler() -> ConfigMap:
    """Return the configuration of Volcano's scheduler, which applies to the whole cluster. The scheduler reloads it after a change."""
    return ConfigMap(metadata=Meta(name=SCHEDULER_CONFIG, namespace=VOLCANO_NAMESPACE), data={SCHEDULER_KEY: SCHEDULER})


def node_class(settings: ClusterSettings, profile: Profile, account: Account) -> Ec2NodeClass:
    """Return the EC2 node class: pinned image, local disks as one RAID0, and a fabric adapter on every card that the profile names.

    Raises ConfigError for reservations without cluster.pool.capacity = "reserved", because the pool would buy other capacity beside them.
    """
    reservations = account.reservations
    if settings.pool.capacity == "reserved":
        reservations = reservations or (REPLACE,)
    elif reservations:
        raise ConfigError(
            f'cluster.pool.capacity = "{settings.pool.capacity}", so the pool would not use the reservation {", ".join(reservations)}; set '
            'cluster.pool.capacity = "reserved", or leave out --reservation'
        )
    found = (TagTerm(tags={"karpenter.sh/discovery": account.cluster}),)
    return Ec2NodeClass(
        metadata=Meta(name=_class(settings, profile).name, labels=dict(RATCHET)),
        spec=Ec2NodeClassSpec(
            ami_selector_terms=(ImageTerm(alias=account.ami),),
            role=account.role or f"KarpenterNodeRole-{account.cluster}",
            subnet_selector_terms=found,
            security_group_selector_terms=found,
            capacity_reservation_selector_terms=tuple(ReservationTerm(id=one) for one in reservations) or None,
            placement_group_selector=PlacementGroup(name=account.placement_group) if account.placement_group else None,
            network_interfaces=_interfaces(profile.network_cards) if profile.network_cards else None,
        ),
    )


def dynamic_pool(settings: ClusterSettings, profile: Profile) -> NodePool:
    """Return a pool that grows with pods that do not fit, up to `pool.max_nodes` nodes.

    A gang of which some pods already fit can deadlock with it; the guardian resolves that case.
    """
    resource = profile.gpu_resource if profile.gpus else "cpu"
    limit = multiple(str(profile.gpus) if profile.gpus else profile.cpu, settings.pool.max_nodes)
    return _pool(settings, profile, node_class_name(settings), {resource: limit}, None, {})


def refuse_larger(nodes: int, settings: ClusterSettings) -> None:
    """Raise ConfigError if a gang of `nodes` nodes is larger than the whole pool that is bought for the line."""
    if nodes > settings.pool.max_nodes:
        raise ConfigError(f"a gang of {nodes} nodes is more than cluster.pool.max_nodes = {settings.pool.max_nodes}; raise it")


def static_pool(name: str, nodes: int, settings: ClusterSettings, profile: Profile) -> NodePool:
    """Return the pool of the gang `name`, with exactly `nodes` nodes. Zero nodes empty the pool.

    The nodes carry the gang's label. Raises ConfigError if `nodes` exceeds cluster.pool.max_nodes or no pool can be rendered for the
    profile.
    """
    refuse_larger(nodes, settings)
    return _pool(settings, profile, name, {"nodes": str(settings.pool.max_nodes)}, nodes, {GANG: name})


def _pool(
    settings: ClusterSettings, profile: Profile, name: str, limits: dict[str, str], replicas: int | None, labels: dict[str, str]
) -> NodePool:
    own = {**RATCHET, NAMESPACE: settings.namespace}
    template = NodeTemplate(
        metadata=NodeLabels(labels={**own, **profile.labels, **labels}, annotations=dict(profile.node_annotations)),
        spec=NodeSpec(
            node_class_ref=_class(settings, profile),
            requirements=_requirements(settings, profile),
            taints=tuple(NodeTaint(key=t.key, value=t.value, effect=t.effect) for t in profile.taints),
            termination_grace_period=LEAVE,
        ),
    )
    return NodePool(
        metadata=Meta(name=name, labels=own),
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
    if settings.pool.allowed_zones:
        found.append(Requirement(key="topology.kubernetes.io/zone", values=settings.pool.allowed_zones))
    return tuple(found)


def _class(settings: ClusterSettings, profile: Profile) -> NodeClassRef:
    """Return the node class that the profile's pools refer to. Raises ConfigError if there is none."""
    if profile.node_class:
        group, kind, name = profile.node_class.split("/")
        return NodeClassRef(group=group, kind=kind, name=name)
    if profile.provider == "aws":
        return NodeClassRef(group="karpenter.k8s.aws", kind="EC2NodeClass", name=node_class_name(settings))
    raise ConfigError(
        f"cluster.pool.kind = {settings.pool.kind}, but profile {settings.profile!r} has no Karpenter node class; use an AWS"
        ' profile, set node_class in your own profile, or set cluster.pool.kind = "none" and create the nodes yourself'
    )


def compute_class(settings: ClusterSettings, profile: Profile, reservations: tuple[str, ...] = ()) -> ComputeClass:
    """Return the class of nodes that GKE makes for the line's gangs. It has no limit of its own: the queue limits the gangs.

    Raises ConfigError for a profile of another provider, without instance types, or with further networks, which GKE does not set up.
    """
    name = settings.profile
    if profile.provider != "gke" or not profile.instance_types:
        raise ConfigError(f'cluster.pool.kind = "compute-class" needs a profile of GKE with instance_types; {name!r} is not one')
    if "networking.gke.io/interfaces" in profile.annotations:
        raise ConfigError(
            f"profile {name!r} needs nodes with several networks, which no ComputeClass makes; create the node pool yourself, and set "
            'cluster.pool.kind = "none"'
        )
    capacity, accelerator = settings.pool.capacity, profile.labels.get("cloud.google.com/gke-accelerator")
    zones = settings.pool.allowed_zones
    choices = tuple(
        MachineChoice(
            machine_type=machine,
            gpu=Accelerator(type=accelerator, count=profile.gpus) if accelerator and profile.gpus else None,
            spot=True if capacity == "spot" else None,
            flex_start=Switch() if capacity == "flex-start" else None,
            reservations=_specific(reservations) if capacity == "reserved" else None,
            location=ZoneList(zones=zones) if zones else None,
        )
        for machine in profile.instance_types
    )
    own = {**RATCHET, NAMESPACE: settings.namespace}
    return ComputeClass(
        metadata=Meta(name=node_class_name(settings), labels=own),
        spec=ComputeClassSpec(
            priorities=choices,
            node_pool_config=ClassNodes(node_labels=own),
            autoscaling_policy=Consolidation(consolidation_delay_minutes=IDLE_MINUTES),
        ),
    )


def _specific(reservations: tuple[str, ...]) -> SpecificReservations:
    return SpecificReservations(specific=tuple(NamedReservation(name=one) for one in reservations or (REPLACE,)))


def _interfaces(cards: int) -> tuple[NetworkInterface, ...]:
    """Return the node's IP interface on the first card, and one fabric-only adapter without an IP address on each card."""
    own = NetworkInterface(network_card_index=0, device_index=0, interface_type="interface")
    return (own, *(NetworkInterface(network_card_index=card, device_index=1, interface_type="efa-only") for card in range(cards)))
