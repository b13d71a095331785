"""Findings on a cluster: what prevents a gang from running, and what to do about it.

`cluster_facts.py` collects the facts; this module interprets them. A gang that waits for nodes in use by other pods is not a finding.
Findings are about gangs that could never run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ratchet.contracts.errors import ConfigError, Permanent
from ratchet.contracts.jobs.cluster import ClusterSettings
from ratchet.contracts.jobs.training import JobSpec
from ratchet.k8s.api.client import Cluster
from ratchet.k8s.gangs.meter import refuse_what_cannot_be_metered
from ratchet.k8s.manifests.environment import render_environment
from ratchet.k8s.manifests.gang_manifest import RAY_SECRET
from ratchet.k8s.manifests.pod_objects import VolcanoJob
from ratchet.k8s.manifests.policies import JOB_ACCOUNT, RENDER, SCHEDULER_CONFIG, VOLCANO_NAMESPACE, dry_run_namespace
from ratchet.k8s.manifests.render import Site
from ratchet.k8s.preflight import schedulability
from ratchet.k8s.preflight.cluster_facts import ClusterFacts, Unread, collect_facts
from ratchet.k8s.preflight.schedulability import Member


@dataclass(frozen=True)
class Finding:
    """One finding, printed as one line."""

    level: Literal["stop", "note"]
    """stop: no gang can run until it is resolved. note: unknown, or useful to know."""
    about: str
    """Part of the cluster or of the settings that the finding is about."""
    text: str
    """Description of the problem."""
    remedy: str = ""
    """Action that resolves it. Empty if there is none."""

    def __str__(self) -> str:
        return f"{self.level:4} {self.about}: {self.text}" + (f"; {self.remedy}" if self.remedy else "")


def find_problems(cluster: Cluster, site: Site, jobs: Sequence[tuple[str, JobSpec | str]]) -> list[Finding]:
    """Collect the facts of the cluster and return the findings for a gang of each job.

    `jobs` are pairs of a method and a sample job, or the reason why there is no job.
    """
    gangs, found = [], list(_check_settings(site))
    for method, job in jobs:
        try:
            if isinstance(job, str):
                raise ConfigError(job)
            gangs.append(site.gang(job))
        except ConfigError as error:
            found.append(_stop(method, f"cannot render a gang: {error}", "change the loop file"))
    facts = collect_facts(cluster, site.settings, gangs, site.node_class)
    return [*found, *findings(facts, site.settings, gangs)]


def _check_settings(site: Site) -> Iterator[Finding]:
    """Yield findings that depend on the settings only."""
    try:
        render_environment(site.settings, site.profile)
    except ConfigError as error:
        yield _stop("pool", str(error), "change the loop file")
    try:
        refuse_what_cannot_be_metered(site.settings, site.profile)
    except Permanent as error:
        yield _stop("caps", str(error), "change the loop file")


def findings(facts: ClusterFacts, settings: ClusterSettings, gangs: Sequence[VolcanoJob]) -> list[Finding]:
    """Return the findings for `gangs`, stops first. An empty list means that no known problem stops a gang."""
    if facts.unreachable:
        return [_stop("server", facts.unreachable, "check KUBECONFIG, cluster.context and whether the API server runs")]
    members = schedulability.members(gangs)
    found = [
        *_access(facts, settings),
        *_volcano(facts, settings, members),
        *_volume(facts, settings),
        *_secrets(facts, settings),
        *_quotas(facts, members),
        *_nodes(facts, settings, members),
        *(_stop("pod template", refusal, "fix the profile or the loop file; a Job with it would hang") for refusal in facts.refused),
        *(_stop("admission", refusal, f"{RENDER}, with every line of the namespace (--with)") for refusal in facts.denied_jobs),
    ]
    return sorted(found, key=lambda finding: finding.level == "note")


def _stop(about: str, text: str, remedy: str) -> Finding:
    return Finding("stop", about, " ".join(text.split()), remedy)  # a server's message may have several lines


def _note(about: str, text: str, remedy: str = "") -> Finding:
    return Finding("note", about, " ".join(text.split()), remedy)


def _unread(about: str, why: Unread) -> Finding:
    return _note(about, f"not checked: {why}")


def _access(facts: ClusterFacts, settings: ClusterSettings) -> Iterator[Finding]:
    space = settings.namespace
    if facts.denied:
        yield _stop("rights", f"you may not {', '.join(facts.denied)}", f"{RENDER}, and run as its service account")
    if facts.namespace is False:
        yield _stop("namespace", f"there is no namespace {space}", RENDER)
    elif isinstance(facts.namespace, Unread):
        yield _unread("namespace", facts.namespace)
    if facts.dry_runs is False:
        yield _stop("namespace", f"there is no namespace {dry_run_namespace(settings)}, in which pod templates are tried", RENDER)
    if facts.account is False:
        yield _stop("service account", f"{space} has no service account {JOB_ACCOUNT}", RENDER)
    elif isinstance(facts.account, Unread):
        yield _unread("service account", facts.account)


def _volcano(facts: ClusterFacts, settings: ClusterSettings, members: Sequence[Member]) -> Iterator[Finding]:
    if not facts.volcano:
        yield _stop("volcano", "the server knows no batch.volcano.sh/v1alpha1", "install Volcano 1.14.1, with its CRDs")
        return
    yield from _queue(facts, settings, members)
    yield from _scheduler(facts, settings)


def _queue(facts: ClusterFacts, settings: ClusterSettings, members: Sequence[Member]) -> Iterator[Finding]:
    queue, name = facts.queue, settings.queue
    if isinstance(queue, Unread):
        yield _unread("queue", queue)
    elif queue is None:
        yield _stop("queue", f"there is no Volcano queue {name}", RENDER)
    elif (state := queue.get("status", {}).get("state", "")) == "":
        yield _stop("volcano", f"no controller has processed the queue {name} yet", "start Volcano's controllers")
    elif state != "Open":
        yield _stop("queue", f"the queue {name} is {state}", f"open it: vcctl queue operate --action open --name {name}")
    else:
        for gang, text in schedulability.over_capability(queue, members):
            yield _stop("queue", f"{name} may hold {text} that {gang} requests", f"raise cluster.pool.max_nodes, and {RENDER}")


def _scheduler(facts: ClusterFacts, settings: ClusterSettings) -> Iterator[Finding]:
    text, where = facts.scheduler, f"ConfigMap {SCHEDULER_CONFIG} in {VOLCANO_NAMESPACE}"
    if isinstance(text, Unread):
        yield _unread("scheduler", text)
        return
    if text is None:
        yield _note(
            "scheduler", f"there is no {where}: the scheduler's configuration was not checked", "make sure that its actions lack `enqueue`"
        )
        return
    found = re.search(r"""^\s*["']?actions["']?\s*:\s*["']?([^"'\n]*)""", text, re.MULTILINE)
    actions = [word.strip() for word in found[1].split(",")] if found else []
    if "allocate" not in actions:
        yield _stop("scheduler", f"{where} does not name the action allocate", RENDER)
    if "enqueue" in actions:
        empty = "nodes are added only for existing pods, and `enqueue` creates no pods before the nodes exist"
        if settings.pool.kind == "none":
            yield _note("scheduler", f"{where} names the action enqueue: a gang larger than the current nodes gets no pods", "remove it")
        else:
            yield _stop("scheduler", f"{where} names the action enqueue, and the pool can be empty: {empty}", f"remove it: {RENDER}")
    if not re.search(r"""name["']?\s*:\s*["']?gang\b""", text):
        yield _stop("scheduler", f"{where} lacks the plugin gang: pods would start one by one", RENDER)


def _volume(facts: ClusterFacts, settings: ClusterSettings) -> Iterator[Finding]:
    if isinstance(facts.bucket, Unread):
        yield _stop("volume", str(facts.bucket), "create the bucket, or grant the service rights to it")
    elif settings.volume.bucket and settings.volume.bucket.disk is None:
        yield _note(
            "volume", "jobs request no disk space, and a job that fills its node's disk is evicted", "set cluster.volume.bucket.disk"
        )
    name, claim = settings.volume.claim, facts.claim
    if name is None or facts.namespace is False:
        return
    if isinstance(claim, Unread):
        yield _unread("volume", claim)
    elif claim is None:
        yield _stop("volume", f"{settings.namespace} has no PersistentVolumeClaim {name}", RENDER)
    else:
        phase = claim.get("status", {}).get("phase", "Pending")
        if phase != "Bound":
            yield _stop("volume", f"the claim {name} is {phase}", "provide a volume, or use a storage class that binds immediately")
        if "ReadWriteMany" not in claim["spec"].get("accessModes", []):
            modes = ", ".join(claim["spec"].get("accessModes", []))
            yield _stop(
                "volume", f"the claim {name} is {modes}, but service and jobs write to it from several nodes", "make it ReadWriteMany"
            )


def _secrets(facts: ClusterFacts, settings: ClusterSettings) -> Iterator[Finding]:
    wanted: dict[str, set[str]] = {name: {"token"} if name == RAY_SECRET else set() for name in facts.secrets or {}}
    for reference in settings.secrets.values():
        name, key = reference.split("/")
        wanted.setdefault(name, set()).add(key)
    for name, keys in (facts.secrets or {}).items():
        if isinstance(keys, Unread):
            yield _note("secrets", f"the Secret {name} was not checked: {keys}")
        elif keys is None:
            yield _stop(
                "secrets", f"{settings.namespace} has no Secret {name}", f"create it with the key {', '.join(sorted(wanted[name]))}"
            )
        elif lacking := sorted(wanted[name] - keys):
            yield _stop("secrets", f"the Secret {name} lacks the key {', '.join(lacking)}", "add it")


def _quotas(facts: ClusterFacts, members: Sequence[Member]) -> Iterator[Finding]:
    """Check quotas for each gang as a whole, and limit ranges for each container."""
    for quota in facts.quotas:
        for gang, text in schedulability.over_quota(quota, members):
            yield _stop("quota", f"{quota['metadata']['name']} leaves {text} that {gang} requests", "raise it")
    for limits in facts.limits:
        for gang, text in schedulability.over_limits(limits, members):
            yield _stop("limit range", f"{limits['metadata']['name']} allows a container {text} that {gang} requests", "raise it")


def _nodes(facts: ClusterFacts, settings: ClusterSettings, members: Sequence[Member]) -> Iterator[Finding]:
    kind = settings.pool.kind
    if settings.pool.karpenter and not facts.karpenter:
        yield _stop("pool", f"cluster.pool.kind = {kind}, but the server knows no karpenter.sh/v1", "install Karpenter, or set it to none")
        return
    if facts.node_class is False:
        yield _stop("pool", "the EC2NodeClass that the gang's pool refers to does not exist", RENDER)
    if isinstance(facts.node_class, Unread):
        yield _unread("pool", facts.node_class)
    if kind == "none":
        yield from _existing_nodes(facts, members)
    if kind == "dynamic":
        yield from _dynamic_pools(facts, members)


def _existing_nodes(facts: ClusterFacts, members: Sequence[Member]) -> Iterator[Finding]:
    if isinstance(facts.nodes, Unread):
        yield _unread("nodes", facts.nodes)
        return
    for member in members:
        fit = schedulability.on_nodes(facts.nodes, member)
        if fit.enough:
            continue
        pods = f"{member.count} pods" + (", each on a separate node" if member.apart else "")
        text = f"{member.gang} has {pods}, but the nodes can hold at most {fit.room}"
        yield _stop("taints" if fit.tainted and fit.with_taints >= member.count else "nodes", f"{text}: {fit.why}", fit.remedy)


def _dynamic_pools(facts: ClusterFacts, members: Sequence[Member]) -> Iterator[Finding]:
    if isinstance(facts.pools, Unread):
        yield _unread("pool", facts.pools)
        return
    for member in members:
        reasons = [schedulability.pool_refuses(pool, member) for pool in facts.pools]
        if reasons and not all(reasons):
            continue
        details = "; ".join(f"{pool['metadata']['name']}: {why}" for pool, why in zip(facts.pools, reasons, strict=True))
        yield _stop("pool", f"no NodePool makes nodes for {member.gang}" + (f" ({details})" if details else ""), RENDER)
