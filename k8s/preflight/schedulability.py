"""Checks whether pods fit nodes, pools, quotas and limit ranges: selectors, taints and amounts. No I/O.

A gang is described by what its pods request. Other pods on a node are ignored, because they will end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ratchet.k8s.api.client import Object
from ratchet.k8s.api.quantities import parse
from ratchet.k8s.manifests.pod_objects import PodSpec, VolcanoJob

EFFECTS = frozenset({"NoSchedule", "NoExecute"})
UNUSABLE = "node.kubernetes.io/"
"""Prefix of taints that mark a node as temporarily unhealthy or unschedulable."""


@dataclass(frozen=True)
class Member:
    """Pods of a gang with their number. All tasks of a gang request the same resources."""

    gang: str
    """Name of the Volcano Job."""
    count: int
    apart: bool
    """Whether two of the pods must not share a node."""
    pod: PodSpec

    @property
    def asked(self) -> dict[str, Fraction]:
        """Resources that one pod requests, in whole units."""
        total: dict[str, Fraction] = {}
        for container in self.pod.containers:
            for name, amount in container.resources.requests.items():
                total[name] = total.get(name, Fraction(0)) + parse(amount)
        return total


@dataclass(frozen=True)
class NodeFit:
    """Result of matching existing nodes with a gang's pods."""

    room: int
    """Number of pods that the matching nodes can hold if nothing else runs there."""
    with_taints: int
    """The same number if all taints were tolerated."""
    enough: bool
    """Whether `room` is sufficient for the gang."""
    tainted: tuple[str, ...]
    """Taints that exclude nodes, as key=value:effect."""
    why: str
    remedy: str


def members(gangs: Sequence[VolcanoJob]) -> list[Member]:
    """Return one Member for each gang."""
    found = []
    for gang in gangs:
        pod = gang.spec.tasks[0].template.spec
        found.append(Member(gang.metadata.name or "", sum(task.replicas for task in gang.spec.tasks), pod.affinity is not None, pod))
    return found


def on_nodes(nodes: Sequence[Object], member: Member) -> NodeFit:
    """Match nodes with the member's pods, and explain why the other nodes do not fit."""
    usable = [node for node in nodes if _usable(node)]
    selected = [node for node in usable if _carries(node["metadata"].get("labels", {}), member.pod.node_selector)]
    roomy = [node for node in selected if _pods(node, member)]
    open_to = [node for node in roomy if not untolerated(node["spec"].get("taints", []), member.pod)]
    room, with_taints = (sum(_pods(node, member) for node in some) for some in (open_to, roomy))
    tainted = tuple(sorted({taint for node in roomy for taint in untolerated(node["spec"].get("taints", []), member.pod)}))
    why, remedy = _why(nodes, usable, selected, roomy, tainted, member)
    return NodeFit(room, with_taints, room >= member.count, tainted, why, remedy)


def _why(
    nodes: Sequence[Object], usable: list[Object], selected: list[Object], roomy: list[Object], tainted: tuple[str, ...], member: Member
) -> tuple[str, str]:
    if roomy and tainted:
        return f"the job does not tolerate {', '.join(tainted)}", "add the taint to the profile's `taints`, or remove it from the nodes"
    if roomy:
        return f"{len(roomy)} of {len(nodes)} nodes fit", "add nodes, or lower training.nodes"
    if selected:
        least = _nearest(selected, member)
        return f"no node offers {least}", "choose a profile that fits the nodes, or use other nodes"
    if usable:
        labels = ", ".join(f"{key}={value}" for key, value in member.pod.node_selector.items())
        return f"no node has the labels {labels}", "label the nodes, or choose a profile that fits them"
    return ("no node is ready" if nodes else "there are no nodes"), "add nodes, or configure a pool in cluster.pool"


def _nearest(nodes: Sequence[Object], member: Member) -> str:
    """Describe which requested resources the best node lacks."""
    lacks = [{name: amount for name, amount in member.asked.items() if _offered(node, name) < amount} for node in nodes]
    best = min(range(len(nodes)), key=lambda number: len(lacks[number]))
    return ", ".join(f"{show(name, amount)} (has {show(name, _offered(nodes[best], name))})" for name, amount in lacks[best].items())


def _usable(node: Object) -> bool:
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in node.get("status", {}).get("conditions", []))
    return ready and not node["spec"].get("unschedulable", False)


def _carries(labels: dict[str, str], wanted: dict[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in wanted.items())


def _offered(node: Object, name: str) -> Fraction:
    return parse(node.get("status", {}).get("allocatable", {}).get(name, "0"))


def _pods(node: Object, member: Member) -> int:
    """Return how many pods of the member the node can hold."""
    fits = min((int(_offered(node, name) // amount) for name, amount in member.asked.items() if amount), default=1)
    return min(fits, 1) if member.apart else fits


def untolerated(taints: Sequence[Object], pod: PodSpec) -> list[str]:
    """Return the taints that the pod does not tolerate, as key=value:effect. Temporary taints are left out."""
    return [
        f"{taint['key']}{'=' + taint['value'] if taint.get('value') else ''}:{taint['effect']}"
        for taint in taints
        if taint["effect"] in EFFECTS and not taint["key"].startswith(UNUSABLE) and not any(_tolerates(one, taint) for one in _known(pod))
    ]


def _known(pod: PodSpec) -> list[tuple[str, str, str | None, str]]:
    return [(one.key, one.operator, one.value, one.effect) for one in pod.tolerations]


def _tolerates(toleration: tuple[str, str, str | None, str], taint: Object) -> bool:
    key, operator, value, effect = toleration
    return key == taint["key"] and effect == taint["effect"] and (operator == "Exists" or (value or "") == taint.get("value", ""))


def pool_refuses(pool: Object, member: Member) -> str:
    """Return the reason why a NodePool cannot make nodes for the member's pods; empty if it may.

    Only the provider knows which machines a pool can buy, so an empty result is no guarantee.
    """
    template = pool["spec"]["template"]
    taints = untolerated(template["spec"].get("taints", []), member.pod)
    if taints:
        return f"the job does not tolerate {', '.join(taints)}"
    if "replicas" in pool["spec"]:
        return "it is static"
    labels = template.get("metadata", {}).get("labels", {})
    offered = {one["key"]: one.get("values", []) for one in template["spec"]["requirements"] if one["operator"] == "In"}
    for key, value in member.pod.node_selector.items():
        if labels.get(key) != value and value not in offered.get(key, []):
            return f"its nodes lack the label {key}={value}"
    for name, limit in pool["spec"].get("limits", {}).items():
        wanted = Fraction(member.count) if name == "nodes" else member.asked.get(name, Fraction(0)) * member.count
        if wanted > parse(limit):
            return f"its limit of {name} is {limit}, but the gang's pods request {show(name, wanted)}"
    return ""


def over_quota(quota: Object, found: Sequence[Member]) -> Iterator[tuple[str, str]]:
    """Yield (gang, remaining amount) for each resource of which a whole gang requests more than the quota leaves.

    Quotas with a scope are ignored, because they apply to other kinds of pods.
    """
    if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
        return
    used = quota.get("status", {}).get("used", {})
    for member in found:
        wanted = _whole(member)
        for key, hard in quota["spec"].get("hard", {}).items():
            name = key.removeprefix("requests.").removeprefix("limits.")
            left = max(parse(hard) - parse(used.get(key, "0")), Fraction(0))
            if wanted.get(name, Fraction(0)) > left:
                yield member.gang, f"{show(name, left).removesuffix(name).strip()} of the {show(name, wanted[name])}"


def over_capability(queue: Object, found: Sequence[Member]) -> Iterator[tuple[str, str]]:
    """Yield (gang, capped amount) for each resource of which a whole gang requests more than its queue may hold."""
    for member in found:
        wanted = _whole(member)
        for name, cap in queue.get("spec", {}).get("capability", {}).items():
            if wanted.get(name, Fraction(0)) > parse(cap):
                yield member.gang, f"{show(name, parse(cap)).removesuffix(name).strip()} of the {show(name, wanted[name])}"


def _whole(member: Member) -> dict[str, Fraction]:
    """Return the resources that the whole gang requests, including the number of pods."""
    return {"pods": Fraction(member.count), **{name: amount * member.count for name, amount in member.asked.items()}}


def over_limits(limits: Object, found: Sequence[Member]) -> Iterator[tuple[str, str]]:
    """Yield (gang, allowed amount) for each request outside the limit range. A gang's pods have one container."""
    for rule in limits["spec"]["limits"]:
        if rule["type"] not in ("Container", "Pod"):
            continue
        for member in found:
            for name, amount in member.asked.items():
                most, least = rule.get("max", {}).get(name), rule.get("min", {}).get(name)
                if most is not None and amount > parse(most):
                    yield member.gang, f"at most {most} {name} of the {show(name, amount)}"
                if least is not None and amount < parse(least):
                    yield member.gang, f"no less than {least} {name}, not the {show(name, amount)}"


def show(name: str, amount: Fraction) -> str:
    """Format an amount for operators, such as 8 nvidia.com/gpu or 1600 GiB memory."""
    if name.endswith(("memory", "storage")):
        return f"{float(amount / 2**30):.4g} GiB {name}"
    return f"{float(amount):.6g} {name}"
