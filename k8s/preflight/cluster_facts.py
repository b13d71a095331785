"""Collects the facts of a live cluster that decide whether a gang can run.

`checks.py` interprets the facts. A resource that may not be read is recorded as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.jobs.cluster import BucketSettings, ClusterSettings
from ratchet.k8s.api.client import JOB, NODE, NODE_POOL, POD, QUEUE, SECRET, Cluster, Kind, Object
from ratchet.k8s.manifests.cluster_objects import AccessRule
from ratchet.k8s.manifests.gang_manifest import GANG
from ratchet.k8s.manifests.pod_objects import VolcanoJob, manifest
from ratchet.k8s.manifests.policies import (
    JOB_ACCOUNT,
    SCHEDULER_CONFIG,
    SCHEDULER_KEY,
    VOLCANO_NAMESPACE,
    dry_run_namespace,
    dry_run_rights,
    rights,
    wide_rights,
)
from ratchet.runtime.bucket import Bucket

NAMESPACE = Kind("v1", "namespaces", namespaced=False)
ACCOUNT = Kind("v1", "serviceaccounts")
CLAIM = Kind("v1", "persistentvolumeclaims")
QUOTA = Kind("v1", "resourcequotas")
LIMIT_RANGE = Kind("v1", "limitranges")
CONFIG_MAP = Kind("v1", "configmaps")
REVIEW = Kind("authorization.k8s.io/v1", "selfsubjectaccessreviews", namespaced=False)
OTHERS_REVIEW = Kind("authorization.k8s.io/v1", "subjectaccessreviews", namespaced=False)
EC2_NODE_CLASS = Kind("karpenter.k8s.aws/v1", "ec2nodeclasses", namespaced=False)
Found = TypeVar("Found")


class Unread(str):
    """Error message for a resource that could not be read. Its state is unknown."""


@dataclass(frozen=True)
class ClusterFacts:
    """Facts as the server reported them. None means that the object does not exist."""

    unreachable: str = ""
    """Error message if the server cannot be reached. In that case all other facts are unknown."""
    denied: tuple[str, ...] = ()
    """Missing rights, as `verb resource`."""
    volcano: bool = True
    """Whether the server has Volcano's resource definitions."""
    karpenter: bool = False
    """Whether the server has Karpenter's resource definitions."""
    namespace: bool | Unread = True
    """Whether the line's namespace exists."""
    account: bool | Unread = True
    """Whether the jobs' service account exists."""
    queue: Object | Unread | None = None
    """The line's Volcano queue."""
    scheduler: str | Unread | None = None
    """Text of the scheduler's configuration."""
    quotas: tuple[Object, ...] = ()
    """Resource quotas of the namespace."""
    limits: tuple[Object, ...] = ()
    """Limit ranges of the namespace."""
    nodes: tuple[Object, ...] | Unread = ()
    """All nodes of the cluster."""
    pools: tuple[Object, ...] | Unread = ()
    """All Karpenter NodePools."""
    node_class: bool | Unread = True
    """Whether the EC2 node class that a static pool refers to exists."""
    claim: Object | Unread | None = None
    """The PersistentVolumeClaim of the shared volume."""
    bucket: bool | Unread = True
    """Whether the bucket is accessible."""
    secrets: dict[str, frozenset[str] | Unread | None] | None = None
    """Maps each Secret to its keys; values are never kept. None means that no Secret was requested."""
    dry_runs: bool | Unread = True
    """Whether the namespace exists in which pod templates are tried."""
    refused: tuple[str, ...] = ()
    """Error messages of the server for pod templates that it does not admit."""
    denied_jobs: tuple[str, ...] = ()
    """Error messages of the server for gangs that it does not admit."""


def collect_facts(cluster: Cluster, settings: ClusterSettings, gangs: Sequence[VolcanoJob], node_class: str | None = None) -> ClusterFacts:
    """Collect the facts with reads and dry runs; change nothing.

    `node_class` is the EC2 node class that the line's static pool will refer to.
    """
    space = settings.namespace
    try:
        volcano = offers(cluster, "batch.volcano.sh", "v1alpha1") and offers(cluster, "scheduling.volcano.sh", "v1beta1")
        karpenter = offers(cluster, "karpenter.sh", "v1")
        denied = _denied(cluster, settings)
    except (Retryable, Permanent) as error:
        return ClusterFacts(unreachable=str(error))
    there = read_or_reason(lambda: cluster.get(NAMESPACE, space) is not None)
    tries = read_or_reason(lambda: cluster.get(NAMESPACE, dry_run_namespace(settings)) is not None)
    absent = there is False
    return ClusterFacts(
        denied=denied,
        volcano=volcano,
        karpenter=karpenter,
        namespace=there,
        account=True if absent else read_or_reason(lambda: cluster.get(ACCOUNT, JOB_ACCOUNT, space) is not None),
        queue=read_or_reason(lambda: cluster.get(QUEUE, settings.queue)) if volcano else None,
        scheduler=read_or_reason(lambda: _configuration(cluster)),
        quotas=_several(lambda: cluster.list(QUOTA, space).items),
        limits=_several(lambda: cluster.list(LIMIT_RANGE, space).items),
        nodes=read_or_reason(lambda: tuple(cluster.list(NODE).items)),
        pools=read_or_reason(lambda: tuple(cluster.list(NODE_POOL).items)) if karpenter else (),
        node_class=read_or_reason(lambda: cluster.get(EC2_NODE_CLASS, node_class) is not None) if node_class else True,
        claim=_claim(cluster, settings) if not absent else None,
        bucket=read_or_reason(partial(_answers, settings.volume.bucket)) if settings.volume.bucket else True,
        secrets=None if absent else _found(cluster, _secrets(settings, gangs), space),
        dry_runs=tries,
        refused=() if tries is False or "create pods" in denied else tuple(_refused_pods(cluster, settings, gangs)),
        denied_jobs=() if absent or not volcano or "create jobs.batch.volcano.sh" in denied else tuple(_denied_jobs(cluster, gangs)),
    )


def read_or_reason(ask: Callable[[], Found]) -> Found | Unread:
    try:
        return ask()
    except (Permanent, Retryable) as error:
        return Unread(error)


def _answers(bucket: BucketSettings) -> bool:
    Bucket(bucket).get("of-no-importance")
    return True


def _several(ask: Callable[[], list[Object]]) -> tuple[Object, ...]:
    found = read_or_reason(ask)
    return () if isinstance(found, Unread) else tuple(found)


def offers(cluster: Cluster, group: str, version: str) -> bool:
    """Return whether the server has this version of an API group. The server answers for it as for a resource of that name."""
    return cluster.get(Kind(group, version, namespaced=False), "") is not None


def _denied(cluster: Cluster, settings: ClusterSettings) -> tuple[str, ...]:
    asked: list[tuple[AccessRule, str | None]] = [(rule, settings.namespace) for rule in rights()]
    asked += [(rule, dry_run_namespace(settings)) for rule in dry_run_rights()]
    asked += [(rule, None) for rule in wide_rights(settings)]
    return tuple(word for rule, where in asked for word in denied_by(cluster, rule, where))


def denied_by(cluster: Cluster, rule: AccessRule, where: str | None, account: str | None = None) -> list[str]:
    """Return the parts of a rule that the API server denies in a namespace, as `verb resource`.

    The server is asked about the client's own account, or about a service account, given as NAMESPACE:NAME. Raises Permanent if the client
    may not ask about that one.
    """
    found = []
    for resource in rule.resources:
        name, _, part = resource.partition("/")
        for verb in rule.verbs:
            wanted: dict[str, Any] = {"group": rule.api_groups[0], "resource": name, "verb": verb}
            wanted |= ({"subresource": part} if part else {}) | ({"namespace": where} if where else {})
            if not _allowed(cluster, wanted, account):
                found.append(f"{verb} {resource}" + (f".{rule.api_groups[0]}" if rule.api_groups[0] else ""))
    return found


def _allowed(cluster: Cluster, wanted: dict[str, Any], account: str | None) -> bool:
    kind, name, who = REVIEW, "SelfSubjectAccessReview", dict[str, Any]()
    if account is not None:
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{account.partition(':')[0]}", "system:authenticated"]
        kind, name, who = OTHERS_REVIEW, "SubjectAccessReview", {"user": f"system:serviceaccount:{account}", "groups": groups}
    body = {"apiVersion": kind.api, "kind": name, "metadata": {}}
    answer = cluster.create(kind, body | {"spec": who | {"resourceAttributes": wanted}})
    return bool(answer["status"]["allowed"])


def _configuration(cluster: Cluster) -> str | None:
    found = cluster.get(CONFIG_MAP, SCHEDULER_CONFIG, VOLCANO_NAMESPACE)
    return None if found is None else str(found.get("data", {}).get(SCHEDULER_KEY, ""))


def _claim(cluster: Cluster, settings: ClusterSettings) -> Object | Unread | None:
    name = settings.volume.claim
    return read_or_reason(lambda: cluster.get(CLAIM, name, settings.namespace)) if name else None


def _secrets(settings: ClusterSettings, gangs: Sequence[VolcanoJob]) -> list[str]:
    named = {reference.split("/")[0] for reference in settings.secrets.values()}
    mounted = {
        volume.secret.secret_name for gang in gangs for task in gang.spec.tasks for volume in task.template.spec.volumes if volume.secret
    }
    return sorted(named | mounted)


def _found(cluster: Cluster, names: Sequence[str], namespace: str) -> dict[str, frozenset[str] | Unread | None]:
    """Return the keys of each Secret; None for a Secret that does not exist."""
    return {name: read_or_reason(partial(secret_key_names, cluster, name, namespace)) for name in names}


def secret_key_names(cluster: Cluster, name: str, namespace: str) -> frozenset[str] | None:
    found = cluster.get(SECRET, name, namespace)
    return None if found is None else frozenset(found.get("data", {}))


def _refused_pods(cluster: Cluster, settings: ClusterSettings, gangs: Sequence[VolcanoJob]) -> Iterator[str]:
    """Submit each pod template as a bare Pod in a dry run and yield the errors.

    A Volcano Job accepts templates that the server would refuse as a pod, and then hangs.
    """
    for gang in gangs:
        for task in gang.spec.tasks:
            try:
                cluster.create(POD, pod_of(gang, task.name, dry_run_namespace(settings)), dry_run=True)
            except Permanent as error:
                yield f"{_name(gang)}, task {task.name}: {error}"


def _denied_jobs(cluster: Cluster, gangs: Sequence[VolcanoJob]) -> Iterator[str]:
    """Submit each gang in a dry run and yield the errors. Admission rules refuse images and Secrets that they do not know."""
    for gang in gangs:
        try:
            cluster.create(JOB, manifest(gang), dry_run=True)
        except Permanent as error:
            yield f"{_name(gang)}: {error}"


def _name(gang: VolcanoJob) -> str:
    return gang.metadata.labels.get(GANG, gang.metadata.name or "")


def pod_of(gang: VolcanoJob, task: str, namespace: str) -> Object:
    """Return the first pod of a task as a separate Pod object in `namespace`."""
    (template,) = (one.template for one in gang.spec.tasks if one.name == task)
    body = manifest(template)
    meta = body["metadata"] | {"name": f"{gang.metadata.name}-{task}-0", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body["spec"]}
