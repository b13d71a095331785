"""Objects that a cluster must hold before a gang of a line can run, in the order of application, with purpose and owner.

No I/O. `policies.py`, `pools.py` and `serving.py` build the objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.jobs.cluster import ClusterSettings
from ratchet.k8s.api.quantities import parse
from ratchet.k8s.manifests import admission, policies, pools
from ratchet.k8s.manifests.cluster_objects import (
    ClaimSpec,
    StorageClass,
    StorageRequest,
    Topology,
    TopologyTerm,
    ValidatingPolicy,
    VolumeClaim,
)
from ratchet.k8s.manifests.gang_manifest import RATCHET, RAY_SECRET
from ratchet.k8s.manifests.pod_objects import Meta, Shape
from ratchet.k8s.manifests.pool_objects import Ec2NodeClass
from ratchet.k8s.manifests.pools import REPLACE, Account
from ratchet.k8s.manifests.serving import ModelServer, judge_fleet
from ratchet.k8s.profiles.profile import Profile

LUSTRE_SIZES = {1000: 9000, 500: 18000, 250: 36000, 125: 72000}
"""Throughput of a volume on Managed Lustre in MB/s per TiB -> size of the smallest volume in GiB. Larger ones are multiples of it."""
By = Literal["an administrator, once", "the service, per gang", "you, per run; the service does not observe it"]
ONCE: By = "an administrator, once"
PER_GANG: By = "the service, per gang"
BY_HAND: By = "you, per run; the service does not observe it"


class Rendered(NamedTuple):
    """An object, its purpose, and the party that applies it."""

    shape: Shape
    why: str
    by: By


@dataclass(frozen=True)
class Extras:
    """Settings for the cluster's setup that a loop file does not contain."""

    account: Account = field(default_factory=Account)
    """Values of the AWS account."""
    size: str | None = None
    """Size of the shared volume. None means 1Ti, or the smallest volume of Managed Lustre."""
    lustre: int | None = None
    """Throughput of a volume on Google's Managed Lustre, in MB/s per TiB. None means that no storage class is rendered."""
    storage_class: str | None = None
    """Storage class whose volumes support writes from many nodes. None means the cluster's default class."""
    judge: tuple[Path, ModelServer] | None = None
    """A judge's model on the shared volume and its server settings. None means that no judges are rendered."""
    others: tuple[admission.Line, ...] = ()
    """Other lines in the same namespace, which the admission rules also allow."""


def extras(
    *,
    eks: str | None = None,
    ami: str | None = None,
    node_role: str | None = None,
    placement_group: str | None = None,
    reservation: Sequence[str] = (),
    storage_class: str | None = None,
    size: str | None = None,
    lustre: str | None = None,
    judge: str | None = None,
    vllm: str | None = None,
    others: Sequence[admission.Line] = (),
) -> Extras:
    """Build Extras from command-line options; omitted options keep their defaults.

    Raises ConfigError if only one of `judge` and `vllm` is given.
    """
    standard = Account()
    account = Account(eks or standard.cluster, ami or standard.ami, node_role or "", placement_group, tuple(reservation))
    if (judge is None) != (vllm is None):
        raise ConfigError("judges need both the folder of their model (--judge) and vLLM's image (--vllm)")
    if lustre and size:
        _refuse_size(size, int(lustre))
    if lustre and storage_class:
        raise ConfigError("--lustre renders a storage class of its own; leave out --storage-class")
    served = (Path(judge), ModelServer(image=vllm)) if judge and vllm else None
    return Extras(account, size, int(lustre) if lustre else None, storage_class, served, tuple(others))


def _refuse_size(size: str, throughput: int) -> None:
    """Raise ConfigError if no volume on Managed Lustre of this throughput has the size."""
    step = LUSTRE_SIZES[throughput]
    try:
        gib = parse(size) / 2**30
    except ValueError as error:
        raise ConfigError(f"--size: {error}") from error
    if gib <= 0 or gib % step:
        raise ConfigError(f"--size {size}: a volume of {throughput} MB/s per TiB has {step}Gi or a multiple of it")


def render_environment(settings: ClusterSettings, profile: Profile, extras: Extras | None = None) -> list[Rendered]:
    """Return the objects in the order of application. Raises ConfigError if pool and profile do not fit."""
    return [Rendered(shape, why, ONCE) for shape, why in _all(settings, profile, extras or Extras())]


def _all(settings: ClusterSettings, profile: Profile, extras: Extras) -> Iterator[tuple[Shape, str]]:
    level = policies.security_level(settings, profile)
    spaces = (
        f"namespace of the line's gangs; enforces pod-security level {level}",
        "namespace in which pod templates are tried; stores no pod",
    )
    yield from zip(policies.namespaces(settings, profile), spaces, strict=True)
    if settings.account is None:
        yield policies.controller_account(settings), "identity of the service, if it runs in the cluster"
    yield from zip(policies.job_accounts(settings), _ACCOUNTS, strict=True)
    yield from zip(policies.roles(settings), _RIGHTS, strict=True)
    for rule in admission.admission_rules([(settings, profile), *extras.others]):
        yield (
            rule,
            "limits the service to its own gangs, pools and dry runs; RBAC cannot" if isinstance(rule, ValidatingPolicy) else "in force",
        )
    yield from zip(policies.network(settings), _NETWORK, strict=True)
    if settings.account is None:
        yield (
            policies.service_network(settings),
            "allows all outgoing traffic of the service; the service itself allows jobs the traffic within their gang",
        )
    yield pools.queue(settings, profile), f"limits the line's gangs to {settings.pool.max_nodes} nodes; not reclaimable"
    yield pools.scheduler(), "configures Volcano's scheduler for the whole cluster, without `enqueue`, which would keep an empty pool empty"
    yield from _nodes(settings, profile, extras.account)
    if extras.lustre and not settings.volume.claim:
        raise ConfigError("--lustre makes the volume of cluster.volume.claim, which the loop file does not name")
    if settings.volume.claim and extras.lustre:
        yield lustre_class(settings, extras.lustre), "volumes on Managed Lustre, near the machines of the line"
    if settings.volume.claim:
        yield (
            _claim(settings.volume.claim, settings, extras),
            "run folders, checkpoints and artifacts; service and jobs mount it at the same path",
        )
    if extras.judge:
        model, server = extras.judge
        for shape in judge_fleet(model, settings, profile, server):
            yield shape, "judges, which the service and its jobs can connect to"


_LIMIT = "limits what the service may create or change, beyond what RBAC can express"
_ACCOUNTS = ("identity of the jobs, without rights and without a token", "the same name for dry runs")
_RIGHTS = (
    "rights of the service in the namespace; they do not include creating pods",
    "grants the role to the service",
    "right of the service to try pod templates",
    "grants the role to the service",
    "rights of the service in the whole cluster and on its pools",
    "grants the role to the service",
    "lets the service read the scheduler's configuration, for `ratchet k8s lint`",
    "grants the role to the service",
)
_NETWORK = ("denies all traffic of the namespace's pods", "allows DNS for all pods")


def _nodes(settings: ClusterSettings, profile: Profile, account: Account) -> Iterator[tuple[Shape, str]]:
    if settings.pool.kind == "none":
        return
    if settings.pool.kind == "compute-class":
        yield pools.compute_class(settings, profile, account.reservations), "the nodes that GKE makes for the line's gangs"
        return
    if profile.provider == "aws" and not profile.node_class:
        yield pools.node_class(settings, profile, account), "configures the EC2 machines of the line's pools"
    if settings.pool.kind == "dynamic":
        yield pools.dynamic_pool(settings, profile), "nodes on demand for the line's gangs"
    else:
        pools.static_pool("any", 0, settings, profile)  # raises ConfigError now instead of at the first gang


def _claim(name: str, settings: ClusterSettings, extras: Extras) -> VolumeClaim:
    smallest = f"{LUSTRE_SIZES[extras.lustre]}Gi" if extras.lustre else "1Ti"
    chosen = lustre_class(settings, extras.lustre).metadata.name if extras.lustre else extras.storage_class
    spec = ClaimSpec(storage_class_name=chosen, resources=StorageRequest(requests={"storage": extras.size or smallest}))
    return VolumeClaim(metadata=Meta(name=name, namespace=settings.namespace, labels=dict(RATCHET)), spec=spec)


def lustre_class(settings: ClusterSettings, throughput: int) -> StorageClass:
    """Return the storage class of volumes on Managed Lustre with this throughput, in MB/s per TiB, in the zones of the pool.

    Source: https://cloud.google.com/kubernetes-engine/docs/reference/lustre-csi-driver/lustre-csi-driver-reference
    """
    zones = settings.pool.allowed_zones
    where = (Topology(match_label_expressions=(TopologyTerm(key="topology.gke.io/zone", values=zones),)),) if zones else None
    return StorageClass(
        metadata=Meta(name=f"{settings.namespace}-lustre", labels=dict(RATCHET)),
        provisioner="lustre.csi.storage.gke.io",
        parameters={"perUnitStorageThroughput": str(throughput)},
        allowed_topologies=where,
    )


def reminders(settings: ClusterSettings, profile: Profile, extras: Extras, nemo: bool) -> list[str]:
    """Return notes on what is needed but not rendered: secret values, third-party software and the profile's notes."""
    rendered = render_environment(settings, profile, extras)
    found = [f"Secret {reference.split('/')[0]} with the key {reference.split('/')[1]}" for reference in sorted(settings.secrets.values())]
    if nemo:
        found.append(
            f"Secret {RAY_SECRET} with the key token: any long random string, with which the processes of a Ray cluster authenticate"
        )
    if extras.lustre:
        found.append("the CSI driver of Managed Lustre (gcloud container clusters update --update-addons=LustreCsiDriver=ENABLED)")
    elif settings.volume.claim and extras.storage_class is None:
        found.append(
            "a storage class whose volumes support writes from many nodes (--storage-class); the cluster's default class seldom does"
        )
    if settings.volume.host_path:
        found.append(f"{settings.volume.mount} on every node, with the same files")
    if bucket := settings.volume.bucket:
        found.append(
            f"{bucket.url}, with a rule that aborts incomplete multipart uploads, and rights to list, read, write and delete there"
        )
        found.append("the same rights for jobs: keys in cluster.secrets, or a role for the service account ratchet-job")
    if any(isinstance(one.shape, Ec2NodeClass) and REPLACE in one.shape.model_dump_json() for one in rendered):
        found.append(
            f"the values for {REPLACE} in the EC2NodeClass: --eks NAME --ami FAMILY@VERSION"
            + (", and --reservation ID" if settings.pool.capacity == "reserved" else "")
        )
    if settings.pool.kind == "compute-class":
        found.append("GKE 1.33.3 or later, which creates node pools for a ComputeClass")
        if settings.pool.capacity == "flex-start":
            found.append("quota for flex-start (preemptible GPUs of the region); a node lives at most seven days")
        if settings.pool.capacity == "reserved" and not extras.account.reservations:
            found.append(f"the name in place of {REPLACE} in the ComputeClass: --reservation NAME")
    elif settings.pool.kind != "none":
        gate = " with the feature gate StaticCapacity" if settings.pool.kind == "static" else ""
        found.append(f"Karpenter{gate}, and its interruption queue if the capacity is spot")
    return found + list(profile.notes)
