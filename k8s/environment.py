"""What a cluster must hold before a gang of a line can run: one list of objects in the order of applying, each with what it is for and who
applies it. Pure; the objects themselves are made in policies.py, pools.py and serving.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from contracts.cluster import ClusterSettings
from contracts.errors import ConfigError
from k8s import policies, pools
from k8s.cluster_objects import ClaimSpec, StorageRequest, VolumeClaim
from k8s.gang import RATCHET, RAY_SECRET
from k8s.objects import Meta, Shape
from k8s.pool_objects import Ec2NodeClass
from k8s.pools import REPLACE, Account
from k8s.profile import Profile
from k8s.serving import Server, judge_fleet

By = Literal["an administrator, once", "the service, per gang"]
ONCE: By = "an administrator, once"
PER_GANG: By = "the service, per gang"


class Rendered(NamedTuple):
    """One object."""

    shape: Shape
    why: str
    by: By


@dataclass(frozen=True)
class Extras:
    """What a loop file does not say, because only the person who sets up the cluster needs it."""

    account: Account = field(default_factory=Account)
    size: str = "1Ti"
    """Of the shared volume."""
    storage_class: str | None = None
    """One whose volumes many nodes may write."""
    judge: tuple[Path, Server] | None = None
    """A judge's model on the shared volume, and how it is served."""


def extras(
    *,
    eks: str | None = None,
    ami: str | None = None,
    node_role: str | None = None,
    placement_group: str | None = None,
    reservation: Sequence[str] = (),
    storage_class: str | None = None,
    size: str | None = None,
    judge: str | None = None,
    vllm: str | None = None,
) -> Extras:
    """From single words, as a command line has them; what is not given keeps its default."""
    standard, volume = Account(), Extras()
    account = Account(eks or standard.cluster, ami or standard.ami, node_role or "", placement_group, tuple(reservation))
    if (judge is None) != (vllm is None):
        raise ConfigError("judges need both the folder of their model and vLLM's image")
    served = (Path(judge), Server(image=vllm)) if judge and vllm else None
    return Extras(account, size or volume.size, storage_class, served)


def render_environment(settings: ClusterSettings, profile: Profile, extras: Extras | None = None) -> list[Rendered]:
    """In the order of applying. ConfigError where pool and profile do not fit."""
    return [Rendered(shape, why, ONCE) for shape, why in _all(settings, profile, extras or Extras())]


def _all(settings: ClusterSettings, profile: Profile, extras: Extras) -> Iterator[tuple[Shape, str]]:
    level = policies.security_level(settings, profile)
    yield policies.namespace(settings, profile), f"where the line's gangs live; pods are admitted up to pod-security level {level}"
    ours, jobs = policies.accounts(settings)
    yield ours, "the service's identity, where it runs in the cluster"
    yield jobs, "the jobs' identity: no right, no token"
    yield from zip(policies.roles(settings), _RIGHTS, strict=True)
    yield from zip(policies.network(settings), _NETWORK, strict=True)
    yield pools.queue(settings, profile), f"caps the line's gangs at {settings.pool.max_nodes} nodes; nobody reclaims from it"
    yield pools.scheduler(), "of Volcano's scheduler, for the whole cluster: without `enqueue`, which would keep an empty pool empty"
    yield from _nodes(settings, profile, extras.account)
    if settings.volume.claim:
        yield _claim(settings.volume.claim, settings, extras), "run folders, checkpoints, artifacts: service and jobs see it at one path"
    if extras.judge:
        model, server = extras.judge
        for shape in judge_fleet(model, settings, profile, server):
            yield shape, "judges, scaled and ended one by one, reached by the service and its jobs"


_RIGHTS = (
    "what the service may do in the namespace. `create pods` is for trying templates with a dry run; rights cannot tell that apart",
    "gives it to the service",
    "what the service may see of the whole cluster, and what of pools is its own",
    "gives it to the service",
    "lets the service read the scheduler's configuration, for `ratchet k8s lint`",
    "gives it to the service",
)
_NETWORK = (
    "no pod of the namespace speaks or is spoken to",
    "but all may ask for names",
    "and the service may reach the API server and whatever else it uses; jobs are opened to their own gang only, by the service",
)


def _nodes(settings: ClusterSettings, profile: Profile, account: Account) -> Iterator[tuple[Shape, str]]:
    if settings.pool.kind == "none":
        return
    if profile.provider == "aws" and not profile.node_class:
        yield pools.node_class(settings, profile, account), "how an EC2 machine becomes a node of the line's pools"
    if settings.pool.kind == "dynamic":
        yield pools.dynamic_pool(settings, profile), "nodes on demand; its gangs are the only ones who may use them"
    else:
        pools.static_pool("any", 0, settings, profile)  # says now, not at the first gang, where none can be rendered


def _claim(name: str, settings: ClusterSettings, extras: Extras) -> VolumeClaim:
    spec = ClaimSpec(storage_class_name=extras.storage_class, resources=StorageRequest(requests={"storage": extras.size}))
    return VolumeClaim(metadata=Meta(name=name, namespace=settings.namespace, labels=dict(RATCHET)), spec=spec)


def reminders(settings: ClusterSettings, profile: Profile, extras: Extras, nemo: bool) -> list[str]:
    """What is needed and is not rendered: values that nobody writes into a file, and other people's software."""
    rendered = render_environment(settings, profile, extras)
    found = [f"Secret {reference.split('/')[0]} with the key {reference.split('/')[1]}" for reference in sorted(settings.secrets.values())]
    if nemo:
        found.append(f"Secret {RAY_SECRET} with the key token: any long random word, shown by the processes of a Ray cluster to each other")
    if settings.volume.claim and extras.storage_class is None:
        found.append("a storage class whose volumes many nodes may write: --storage-class; the cluster's default seldom is one")
    if settings.volume.host_path:
        found.append(f"{settings.volume.mount} on every node, the same files everywhere")
    if bucket := settings.volume.bucket:
        found.append(f"{bucket.url}, with a rule that ends unfinished uploads in parts, and rights to list, read, write and delete there")
        found.append("those rights for jobs, too: keys in cluster.secrets, or a role for the service account ratchet-job")
    if any(isinstance(one.shape, Ec2NodeClass) and REPLACE in one.shape.model_dump_json() for one in rendered):
        found.append(f"the words for {REPLACE} in the EC2NodeClass: --eks NAME --ami FAMILY@VERSION")
    if settings.pool.kind != "none":
        gate = " with the feature gate StaticCapacity" if settings.pool.kind == "static" else ""
        found.append(f"Karpenter{gate}, and its interruption queue where capacity is spot")
    return found + list(profile.notes)
