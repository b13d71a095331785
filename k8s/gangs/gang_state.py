"""State of a gang from its pods, nodes and heartbeats, and the action that the state requires. No I/O.

Volcano leaves three cases open. If a node stops responding, the gang stays half alive, because nothing confirms that its pod has ended.
If some pods of a gang fit and others do not, the gang and an autoscaler can deadlock: the autoscaler skips the pods that would fit. It
then plans to place the other pods on the nodes that are reserved for the skipped ones. If Volcano's controller misses the admission of a
gang, it never creates the pods: it reacts only to a change of the PodGroup's phase, and after an outage of the API server its first
view of the PodGroup may already be the admitted one.

Source: the cases were reproduced with Volcano v1.14.1 and Karpenter v1.14.1 (docs/kubernetes/lifecycle.md). The third one is
https://github.com/volcano-sh/volcano/issues/5325.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from ratchet.k8s.api.client import Object
from ratchet.k8s.manifests.gang_manifest import GANG, INSTALLATION, JOB_NAME, VERSION
from ratchet.runtime.jobs.job_protocol import beat_file


class GangState(StrEnum):
    """State of a gang with respect to the machines that it uses."""

    ABSENT = "absent"
    WITHOUT_PODS = "without pods"
    """No pod has been created yet."""
    WAITING = "waiting"
    """Some or all pods do not run yet, and nothing prevents them from starting."""
    WHOLE = "whole"
    """All pods run or have succeeded."""
    HALF_ALIVE = "half alive"
    """Some pods run, but at least one other pod is lost, has failed or is silent."""
    HALF_PRESENT = "half present"
    """Some pods would fit, others do not, and no nodes are being added for them."""
    RESTARTING = "restarting"
    """Pods terminate, or Volcano restarts or ends the Job."""
    ENDED = "ended"


ENDED_PHASES = frozenset({"Completed", "Failed", "Terminated", "Aborted"})
ENDING_PHASES = frozenset({"Completing", "Terminating", "Aborting"})


@dataclass(frozen=True)
class GangPod:
    """State of one pod of a gang."""

    name: str
    uid: str
    """Unique id. After a restart, new pods have the same names but other uids."""
    version: int
    """Number of restarts of the Job when the pod was created."""
    phase: str
    node: str | None
    """Name of the pod's node; None before the pod is bound."""
    ends: float | None
    """Deadline of its termination, in seconds since the epoch by the server's clock. None means that it is not being deleted."""
    reason: str
    """Reason of the PodScheduled condition while the pod has no node: Schedulable, Unschedulable or empty."""
    waits: str = ""
    """Reason why its container does not run yet, as reported by the kubelet."""
    bound: float | None = None
    """Time at which it was bound to its node. This and the following times are in seconds since the epoch, by the server's or the
    kubelet's clock.
    """
    began: float | None = None
    """Time at which its container started."""
    finished: float | None = None
    """Time at which its container ended."""
    died: str = ""
    """Description of its failure: exit code, the kubelet's reason and the last lines of its log. Empty if it has not failed."""

    @property
    def alive(self) -> bool:
        """Whether the pod runs and is not being deleted."""
        return self.phase == "Running" and self.ends is None


@dataclass(frozen=True)
class Gang:
    """Volcano Job created by Ratchet, with its pods."""

    name: str
    job: str
    """Name of the JobSpec that it runs."""
    installation: str
    uid: str
    """Unique id of the Job. Volcano uses it in the name of the Job's PodGroup."""
    phase: str
    message: str
    wanted: int
    """Number of pods that it needs."""
    gpus: int
    """GPUs per pod."""
    retries: int
    """Number of restarts so far, as counted by Volcano."""
    pods: tuple[GangPod, ...]
    created: float
    """Time of creation, in seconds since the epoch by the server's clock."""
    ended: float | None = None
    """Time at which it reached its final phase, by the same clock. None means that it has not."""

    @property
    def version(self) -> int | None:
        """Restart number of the newest pods; None without pods.

        The Job's own restart number also rises while the Job ends, so it is not used.
        """
        return max((pod.version for pod in self.pods), default=None)


@dataclass(frozen=True)
class Node:
    """Node of the cluster and its readiness."""

    name: str
    ready: bool


def gang_of(job: Object, pods: Sequence[Object]) -> Gang:
    """Build a Gang from the API's objects. `pods` may contain pods of other gangs."""
    name, spec, status = job["metadata"]["name"], job["spec"], job.get("status", {})
    state = status.get("state", {})
    container = spec["tasks"][0]["template"]["spec"]["containers"][0]
    limits = container.get("resources", {}).get("limits", {})
    return Gang(
        name=name,
        job=job["metadata"].get("labels", {}).get(JOB_NAME, name),
        installation=job["metadata"].get("labels", {}).get(INSTALLATION, ""),
        uid=job["metadata"].get("uid", ""),
        phase=phase_of(job),
        message=state.get("message") or state.get("reason") or "",
        wanted=int(spec["minAvailable"]),
        gpus=next((int(amount) for resource, amount in limits.items() if resource.endswith("/gpu")), 0),
        retries=int(status.get("retryCount", 0)),
        pods=tuple(pod_of(pod) for pod in pods if pod["metadata"].get("labels", {}).get(GANG) == name),
        created=time_of(job["metadata"].get("creationTimestamp")) or 0.0,
        ended=time_of(state.get("lastTransitionTime")) if phase_of(job) in ENDED_PHASES else None,
    )


def time_of(stamp: str | None) -> float | None:
    """Convert the API's timestamp to seconds since the epoch."""
    return datetime.fromisoformat(stamp).timestamp() if stamp else None


def phase_of(job: Object) -> str:
    """Return the phase of a Job. A Job that no controller has processed yet is Pending."""
    return str(job.get("status", {}).get("state", {}).get("phase", "Pending"))


def pod_of(pod: Object) -> GangPod:
    """Build a Pod from the API's object."""
    meta, status = pod["metadata"], pod.get("status", {})
    states: list[Object] = [container.get("state", {}) for container in status.get("containerStatuses", ())]
    waiting = [state.get("waiting") for state in states]
    ended: Object = next((state["terminated"] for state in states if "terminated" in state), {})
    runs: Object = next((state["running"] for state in states if "running" in state), ended)
    scheduled: Object = next((c for c in status.get("conditions", ()) if c["type"] == "PodScheduled"), {})
    return GangPod(
        name=meta["name"],
        uid=meta.get("uid", ""),
        version=int(meta.get("annotations", {}).get(VERSION, 0)),
        phase=status.get("phase", "Pending"),
        node=pod["spec"].get("nodeName"),
        ends=time_of(meta.get("deletionTimestamp")),
        reason=scheduled.get("reason", "") if scheduled.get("status") == "False" else "",
        waits=next((f"{w.get('reason')}: {w.get('message', '')}"[:300] for w in waiting if w), ""),
        bound=time_of(scheduled.get("lastTransitionTime")) if scheduled.get("status") == "True" else None,
        began=time_of(runs.get("startedAt")),
        finished=time_of(ended.get("finishedAt")),
        died=_died(status, ended),
    )


def _died(status: Object, ended: Object) -> str:
    if ended.get("exitCode"):
        reason, message = ended.get("reason", "Error"), last_lines(ended.get("message", ""))
        return f"exit code {ended['exitCode']}" + (f" ({reason})" if reason != "Error" else "") + (f": {message}" if message else "")
    pod_reason = status.get("phase") == "Failed" and status.get("reason")
    return f"{pod_reason}: {last_lines(status.get('message', ''))}" if pod_reason else ""


LINES, CHARACTERS = 20, 2000
"""Maximum lines and characters of a log's end in a reason."""


def last_lines(text: str) -> str:
    """Return the end of a log in one line: at most LINES lines and CHARACTERS characters."""
    return " | ".join(line.strip() for line in text.splitlines()[-LINES:] if line.strip())[-CHARACTERS:]


def node_of(node: Object) -> Node:
    """Build a Node from the API's object."""
    conditions = node.get("status", {}).get("conditions", ())
    return Node(node["metadata"]["name"], any(c["type"] == "Ready" and c["status"] == "True" for c in conditions))


def state_of(gang: Gang | None, nodes: Mapping[str, Node], now: float, silent: str = "") -> tuple[GangState, str]:
    """Return the state of a gang and the reason for it.

    `now` is in seconds since the epoch. `silent` names a process of the gang that has sent no heartbeat for too long although its pod
    runs; empty means none.
    """
    if gang is None:
        return GangState.ABSENT, "the job does not exist"
    if gang.phase in ENDED_PHASES:
        return GangState.ENDED, f"{gang.phase} {gang.message}".strip()
    if not gang.pods and gang.phase == "Pending":
        return GangState.WITHOUT_PODS, "its pods have not been created yet"
    alive = [pod for pod in gang.pods if pod.alive]
    ending = [pod for pod in gang.pods if pod.ends is not None]
    lost = {pod.name: why for pod in gang.pods if (why := _lost(pod, nodes, now))}
    if lost and (alive or ending):
        return GangState.HALF_ALIVE, "; ".join(f"{name} {why}" for name, why in sorted(lost.items()))
    if gang.phase in ENDING_PHASES:
        return GangState.RESTARTING, f"{gang.phase}: its pods are terminating"
    if gang.phase == "Restarting" or ending:
        return (
            GangState.RESTARTING,
            f"waits for the end of {', '.join(pod.name for pod in ending) or 'its pods'}; then the cluster restarts the whole gang",
        )
    done = sum(pod.phase == "Succeeded" for pod in gang.pods)
    if alive and len(alive) + done >= gang.wanted:
        if silent and not done:
            return GangState.HALF_ALIVE, f"{silent} sends no heartbeat"
        return GangState.WHOLE, f"{done} of its pods are done, the others are running" if done else "all pods are running"
    if alive and any(pod.phase == "Failed" for pod in gang.pods):
        return GangState.HALF_ALIVE, f"{len(alive)} of {gang.wanted} pods are running, others have failed"
    reasons = {pod.reason for pod in gang.pods if pod.node is None}
    if {"Schedulable", "Unschedulable"} <= reasons or (alive and "Unschedulable" in reasons):
        return GangState.HALF_PRESENT, "some of its pods would fit, but no nodes are being added for the others"
    waits = sorted({pod.waits for pod in gang.pods if pod.waits})
    return GangState.WAITING, "; ".join([f"{len(alive)} of {gang.wanted} pods are running", *waits])


def unheard(gang: Gang, beats: Collection[str]) -> str:
    """Return the first process that has never sent a heartbeat although all pods run and another process has sent one.

    `beats` are the processes that have sent one, as `iM/beat-K` with the node's number K. Returns an empty string if there is none, or
    if no process has sent a heartbeat, because all may still be starting.
    """
    if not beats or sum(pod.alive for pod in gang.pods) < gang.wanted:
        return ""
    folder = max(beats).rpartition("/")[0]
    never = {f"{folder}/{beat_file(node)}" for node in range(gang.wanted)} - set(beats)
    return min(never, default="")


OVERDUE = 10.0
"""Seconds after the end of its grace period at which a pod that still exists counts as lost. Kubelets need some time, and clocks differ."""


def _lost(pod: GangPod, nodes: Mapping[str, Node], now: float) -> str:
    """Return the reason why a pod will never run again although it still exists; empty if there is no evidence."""
    if pod.node is None or pod.phase in ("Failed", "Succeeded"):
        return ""
    if pod.node not in nodes:
        return f"was on {pod.node}, which no longer exists"
    if not nodes[pod.node].ready:
        return f"is on {pod.node}, which is not ready"
    return "has not ended within its grace period" if pod.ends is not None and now > pod.ends + OVERDUE else ""


def lingers(pod: GangPod, nodes: Mapping[str, Node], now: float) -> bool:
    """Return whether a pod has a node, has not ended, and can still end."""
    return pod.node is not None and pod.phase in ("Pending", "Running") and not _lost(pod, nodes, now)


class Act(StrEnum):
    """Action of the guardian on a gang."""

    NOTHING = "nothing"
    RESTART = "restart"
    """Delete the remaining pods of the gang; Volcano then restarts the whole gang."""
    RELEASE = "release"
    """Release idle nodes. The autoscaler then sees that no pod fits and adds nodes for all of them."""
    SYNC = "sync"
    """If the scheduler has admitted the gang, request that Volcano's controller creates its pods."""


BROKEN = {GangState.HALF_ALIVE: Act.RESTART, GangState.HALF_PRESENT: Act.RELEASE}
SYNC_SECONDS = 15.0
"""Seconds without any pod after which the guardian requests them; a controller that works needs less than one."""
MARGIN = 10.0
"""Seconds before the limit at which the guardian acts. The action takes time, and the limit includes it."""


def due(state: GangState, since: float, now: float, limit: float) -> Act:
    """Return the action for a state that has lasted from `since` to `now`, in seconds of one clock.

    `limit` is the maximum duration of a broken state, in seconds. A gang without pods is not broken, so the limit does not apply to it.
    """
    if state is GangState.WITHOUT_PODS:
        return Act.SYNC if now - since >= SYNC_SECONDS else Act.NOTHING
    if state not in BROKEN or now - since < max(limit - MARGIN, limit / 2):
        return Act.NOTHING
    return BROKEN[state]
