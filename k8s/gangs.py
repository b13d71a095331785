"""What is to be seen of a gang, and what it means: pods, nodes and heartbeats into one state, and into the one thing to do about it. Pure.

Volcano leaves two holes. A node that falls silent leaves a gang half alive for ever, because nobody confirms that its pod ended; and a gang
that is there in part deadlocks with an autoscaler, which skips pods that would fit and places the others, in its mind, onto the nodes
that are kept for them. Source: both were reproduced with Volcano v1.14.1 and Karpenter v1.14.1 (docs/kubernetes.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from contracts.runfolder import BEAT
from k8s.client import Object
from k8s.gang import GANG, INSTALLATION, JOB_NAME, VERSION


class State(StrEnum):
    """A gang's state, as one who pays for it sees it."""

    ABSENT = "absent"
    WAITING = "waiting"
    """No pod runs yet, or not all do, and nothing speaks against their starting."""
    WHOLE = "whole"
    HALF_ALIVE = "half alive"
    """Some pods run, and one of their peers never will again."""
    HALF_PRESENT = "half present"
    """Some pods would fit and some do not: nobody brings the missing nodes."""
    RESTARTING = "restarting"
    ENDED = "ended"


ENDED_PHASES = frozenset({"Completed", "Failed", "Terminated", "Aborted"})
ENDING_PHASES = frozenset({"Completing", "Terminating", "Aborting"})


@dataclass(frozen=True)
class Pod:
    """A pod of a gang."""

    name: str
    uid: str
    """Names come again with each restart; this does not."""
    version: int
    """Restarts of its Job when it was made."""
    phase: str
    node: str | None
    ends: float | None
    """When it must have ended (seconds since the epoch, the server's clock); None: nobody told it to."""
    reason: str
    """Of its PodScheduled condition while it has no node: Schedulable, Unschedulable, or none yet."""
    waits: str = ""
    """Why its container does not run yet, in the kubelet's words."""
    bound: float | None = None
    """When it got its node; this and what follows in seconds since the epoch, the server's or the kubelet's clock."""
    began: float | None = None
    """When its container began to run."""
    finished: float | None = None
    """When its container ended."""
    died: str = ""
    """How it ended, if not well: exit code, the kubelet's reason, the last lines of its log."""

    @property
    def alive(self) -> bool:
        return self.phase == "Running" and self.ends is None


@dataclass(frozen=True)
class Gang:
    """A Job of ours with its pods."""

    name: str
    job: str
    """Name of the JobSpec that it runs."""
    installation: str
    phase: str
    message: str
    wanted: int
    """Pods that it needs."""
    gpus: int
    """Per pod."""
    retries: int
    """Restarts so far, as Volcano counts them."""
    pods: tuple[Pod, ...]
    created: float
    """Seconds since the epoch, the server's clock."""
    ended: float | None = None
    """When it reached its last phase, by the same clock."""

    @property
    def version(self) -> int | None:
        """Of its newest pods; the Job's own number also rises while it ends, and counts nothing."""
        return max((pod.version for pod in self.pods), default=None)


@dataclass(frozen=True)
class Node:
    """A machine of the cluster."""

    name: str
    ready: bool


def gang_of(job: Object, pods: Sequence[Object]) -> Gang:
    """From the API's objects; `pods` may hold others' too."""
    name, spec, status = job["metadata"]["name"], job["spec"], job.get("status", {})
    state = status.get("state", {})
    container = spec["tasks"][0]["template"]["spec"]["containers"][0]
    limits = container.get("resources", {}).get("limits", {})
    return Gang(
        name=name,
        job=job["metadata"].get("labels", {}).get(JOB_NAME, name),
        installation=job["metadata"].get("labels", {}).get(INSTALLATION, ""),
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
    """The API's time in seconds since the epoch."""
    return datetime.fromisoformat(stamp).timestamp() if stamp else None


def phase_of(job: Object) -> str:
    """A Job's phase; one that the controller has not looked at yet is pending."""
    return str(job.get("status", {}).get("state", {}).get("phase", "Pending"))


def pod_of(pod: Object) -> Pod:
    """From the API's object."""
    meta, status = pod["metadata"], pod.get("status", {})
    states: list[Object] = [container.get("state", {}) for container in status.get("containerStatuses", ())]
    waiting = [state.get("waiting") for state in states]
    ended: Object = next((state["terminated"] for state in states if "terminated" in state), {})
    runs: Object = next((state["running"] for state in states if "running" in state), ended)
    scheduled: Object = next((c for c in status.get("conditions", ()) if c["type"] == "PodScheduled"), {})
    return Pod(
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
        reason, words = ended.get("reason", "Error"), last_lines(ended.get("message", ""))
        return f"exit code {ended['exitCode']}" + (f" ({reason})" if reason != "Error" else "") + (f": {words}" if words else "")
    said = status.get("phase") == "Failed" and status.get("reason")
    return f"{said}: {last_lines(status.get('message', ''))}" if said else ""


LINES, CHARACTERS = 20, 2000
"""Of a log, in a reason: at most, from its end."""


def last_lines(text: str) -> str:
    """The end of a log in one line, bounded."""
    return " | ".join(line.strip() for line in text.splitlines()[-LINES:] if line.strip())[-CHARACTERS:]


def node_of(node: Object) -> Node:
    """From the API's object."""
    conditions = node.get("status", {}).get("conditions", ())
    return Node(node["metadata"]["name"], any(c["type"] == "Ready" and c["status"] == "True" for c in conditions))


def state_of(gang: Gang | None, nodes: Mapping[str, Node], now: float, silent: str = "") -> tuple[State, str]:
    """State and why, in words. `now`: seconds since the epoch. `silent`: the process of the gang, if any, that has not given a sign for
    too long, though its pod runs."""
    if gang is None:
        return State.ABSENT, "there is no such job"
    if gang.phase in ENDED_PHASES:
        return State.ENDED, f"{gang.phase} {gang.message}".strip()
    alive = [pod for pod in gang.pods if pod.alive]
    ending = [pod for pod in gang.pods if pod.ends is not None]
    lost = {pod.name: why for pod in gang.pods if (why := _lost(pod, nodes, now))}
    if lost and (alive or ending):
        return State.HALF_ALIVE, "; ".join(f"{name} {why}" for name, why in sorted(lost.items()))
    if gang.phase in ENDING_PHASES:
        return State.RESTARTING, f"{gang.phase}: its pods end"
    if gang.phase == "Restarting" or ending:
        return State.RESTARTING, f"{', '.join(pod.name for pod in ending) or 'it'} ends, and the cluster starts all anew"
    done = sum(pod.phase == "Succeeded" for pod in gang.pods)
    if alive and len(alive) + done >= gang.wanted:
        if silent and not done:
            return State.HALF_ALIVE, f"{silent} gives no sign of life"
        return State.WHOLE, f"{done} of its pods are done, the others run" if done else "all pods run"
    if alive and any(pod.phase == "Failed" for pod in gang.pods):
        return State.HALF_ALIVE, f"{len(alive)} of {gang.wanted} pods run, others have failed"
    reasons = {pod.reason for pod in gang.pods if pod.node is None}
    if {"Schedulable", "Unschedulable"} <= reasons or (alive and "Unschedulable" in reasons):
        return State.HALF_PRESENT, "some of its pods would fit, and nobody brings nodes for the others"
    waits = sorted({pod.waits for pod in gang.pods if pod.waits})
    return State.WAITING, "; ".join([f"{len(alive)} of {gang.wanted} pods run", *waits])


def unheard(gang: Gang, beats: Collection[str]) -> str:
    """The first process that has never beaten, though its pod runs, as all do, and a peer of it has; empty: there is none. Where nobody
    beats yet, all may still be starting. `beats`: who has, as `iM/beat-K` with the node's number K."""
    if not beats or sum(pod.alive for pod in gang.pods) < gang.wanted:
        return ""
    folder = max(beats).rpartition("/")[0]
    never = {f"{folder}/{BEAT}{node}" for node in range(gang.wanted)} - set(beats)
    return min(never, default="")


OVERDUE = 10.0
"""Seconds after its grace at which a pod that should have ended counts as lost: kubelets take some, and clocks differ."""


def _lost(pod: Pod, nodes: Mapping[str, Node], now: float) -> str:
    """Why a pod will never run again, though it is still there; empty: nothing says so."""
    if pod.node is None or pod.phase in ("Failed", "Succeeded"):
        return ""
    if pod.node not in nodes:
        return f"was on {pod.node}, which is gone"
    if not nodes[pod.node].ready:
        return f"is on {pod.node}, which is not ready"
    return "should have ended by now" if pod.ends is not None and now > pod.ends + OVERDUE else ""


def lingers(pod: Pod, nodes: Mapping[str, Node], now: float) -> bool:
    """Whether a pod has a node and has not ended, and will."""
    return pod.node is not None and pod.phase in ("Pending", "Running") and not _lost(pod, nodes, now)


class Act(StrEnum):
    """What the guardian does."""

    NOTHING = "nothing"
    RESTART = "restart"
    """Removes what is left of the gang; Volcano starts it whole."""
    RELEASE = "release"
    """Gives idle nodes back, so that the autoscaler sees all pods as not fitting, and brings what all of them need."""


BROKEN = {State.HALF_ALIVE: Act.RESTART, State.HALF_PRESENT: Act.RELEASE}
MARGIN = 10.0
"""Seconds before the limit at which we act: what follows takes some, and the promise is about the whole."""


def due(state: State, since: float, now: float, limit: float) -> Act:
    """What to do about a state that has lasted from `since` to `now` (seconds of one clock), where no state may last `limit`."""
    if state not in BROKEN or now - since < max(limit - MARGIN, limit / 2):
        return Act.NOTHING
    return BROKEN[state]
