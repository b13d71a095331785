"""Guardian: limits the time in which a gang is half alive, or in which paid nodes stand idle for a gang that cannot start.

The limit comes from the loop file. The guardian deletes pods or idle nodes; Volcano and the autoscaler do the rest. After a network
partition, a process of an older incarnation may continue to run. It writes under its own incarnation's number, which is no longer read,
so no fencing is needed. `gang_state.py` decides which action is due.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from contracts.cluster import ClusterSettings
from contracts.errors import RatchetError
from k8s.api.client import JOB, NODE, NODE_CLAIM, POD, Cluster, Object
from k8s.api.informer import Mirrors
from k8s.gangs.gang_state import Act, Gang, GangState, Node, due, gang_of, lingers, node_of, pod_of, state_of, time_of, unheard
from k8s.manifests.gang_manifest import GANG, RATCHET
from runtime.run_folder import BEAT_SECONDS

SILENT = 4 * BEAT_SECONDS
"""Seconds without a heartbeat after which a process counts as silent."""
START = 60.0
"""Minimum seconds that a process has for its first heartbeat after its peers' first heartbeats, while all pods run.

All processes start at once from one image and send the heartbeat before heavy imports. The remaining difference is the time that a
machine needs to read Python from a cold disk.
"""
COUNT_SECONDS = 5.0
"""Minimum seconds between two counts of all pods of the cluster, which the meter of a waiting gang needs."""
Beats = Callable[[Gang], Mapping[str, str]]
"""Function that returns the newest heartbeat per process of a gang's newest incarnation. Only a change of the content counts."""


@dataclass
class Memory:
    """Previous observations of a gang, with times of this process's monotonic clock."""

    state: GangState = GangState.ABSENT
    since: float = 0.0
    """Start of the current state."""
    well: float | None = None
    """Time at which the gang was last whole; before that, the time of the first observation."""
    said: str = ""
    """Last report about the gang. The same report is not repeated."""
    beats: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Maps each process to its newest heartbeat and the time at which the heartbeat last changed."""
    unheard: tuple[str, float] = ("", 0.0)
    """Process that has never sent a heartbeat although its peers have, and since when this holds."""


@dataclass(frozen=True)
class Look:
    """Observation of a gang at one moment."""

    gang: Gang
    state: GangState
    why: str
    """Reason for the state."""
    lasted: float
    """Seconds in this state, as far as observed."""
    broken: float
    """Seconds since the gang was last whole, in any state, as far as observed."""
    act: Act
    """Action that is due now."""


class Guardian:
    """Guardian of one namespace, based on informers of its objects.

    Not thread-safe. The caller calls `look` and then `mend`.
    """

    def __init__(self, cluster: Cluster, settings: ClusterSettings, beats: Beats, clock: Callable[[], float] = time.monotonic) -> None:
        self.cluster, self.settings, self.beats, self.clock = cluster, settings, beats, clock
        self.mirrors = Mirrors(cluster, {POD: self._hear})
        self._memory: dict[str, Memory] = {}
        self._deaths: dict[str, tuple[int, str]] = {}
        self._occupied: frozenset[str] = frozenset()
        self._counted = -math.inf

    def look(self) -> list[Look]:
        """Observe all gangs of the namespace. Raises Retryable while the API server is away."""
        namespace = self.settings.namespace
        jobs = self.mirrors.objects(JOB, namespace, RATCHET)
        pods = self.mirrors.objects(POD, namespace, RATCHET)
        nodes = {node.name: node for node in map(node_of, self.mirrors.objects(NODE))}
        coming = [claim for claim in self._claims() if not _arrived(claim)]
        looks = [self._look(gang_of(job, pods), nodes, coming) for job in jobs]
        self._memory = {name: memory for name, memory in self._memory.items() if name in {job["metadata"]["name"] for job in jobs}}
        return looks

    def _look(self, gang: Gang, nodes: Mapping[str, Node], coming: Sequence[Object]) -> Look:
        now, memory = self.clock(), self._memory.setdefault(gang.name, Memory())
        who, quiet = self._silent(gang, memory, now)
        state, why = state_of(gang, nodes, time.time(), who)
        awaited = sum(_for(claim, gang) for claim in coming)
        if state is GangState.HALF_PRESENT and awaited:
            # Machines take minutes to start and arrive one by one. Releasing the first ones meanwhile would repeat without end.
            state, why = GangState.WAITING, f"some of its pods would fit, and {awaited} nodes are being added for the others"
        if state is not memory.state:
            memory.state, memory.since = state, quiet if state is GangState.HALF_ALIVE and who else now
        if memory.well is None or state is GangState.WHOLE:
            memory.well = now
        return Look(gang, state, why, now - memory.since, now - memory.well, due(state, memory.since, now, self.settings.half_alive))

    def _silent(self, gang: Gang, memory: Memory, now: float) -> tuple[str, float]:
        """Return the process that has been silent for longest, and since when; an empty name and `now` if none is silent for too long."""
        beats = self.beats(gang)
        memory.beats = {
            who: (beat, now if memory.beats.get(who, ("", 0.0))[0] != beat else memory.beats[who][1]) for who, beat in beats.items()
        }
        quiet = [(since, who) for who, (_, since) in memory.beats.items() if now - since > SILENT]
        if (who := unheard(gang, memory.beats)) != memory.unheard[0]:
            memory.unheard = (who, now)
        if who and now - memory.unheard[1] > max(START, self.settings.half_alive):
            quiet.append((memory.unheard[1], who))
        return (min(quiet)[1], min(quiet)[0]) if quiet else ("", now)

    def mend(self, looks: Sequence[Look]) -> list[str]:
        """Do what is due and return reports of what was done.

        If an action fails, the error is reported and the action is retried after the next observation.
        """
        said = []
        for look in looks:
            if look.act is Act.NOTHING:
                continue
            try:
                words = self._restart(look) if look.act is Act.RESTART else self._release(look)
            except RatchetError as error:
                words = f"could not {look.act} {look.gang.name}: {error}"
            memory = self._memory.setdefault(look.gang.name, Memory())
            if memory.said != words:
                said.append(words)
            memory.said = words
        return said

    def _restart(self, look: Look) -> str:
        # If Volcano has begun a restart, remaining pods of older incarnations block it; newer pods have not started any work.
        older = [pod for pod in look.gang.pods if pod.version < (look.gang.version or 0)]
        for pod in older or look.gang.pods:
            self.cluster.delete(POD, pod.name, self.settings.namespace, grace=0, uid=pod.uid)
        return f"restarted {look.gang.name} after {look.lasted:.0f} s: {look.why}"

    def _release(self, look: Look) -> str:
        if self.settings.pool.kind == "none":
            return f"{look.gang.name}: {look.why}; add nodes, or configure a pool in [cluster.pool]"
        if self.settings.pool.kind == "static":
            return f"{look.gang.name}: {look.why}; check the conditions of its NodePool {look.gang.name} and of its NodeClaims"
        busy = self._busy()
        idle = [claim for claim in self._claims() if _for(claim, look.gang) and _node(claim) and _node(claim) not in busy]
        for claim in idle:
            self.cluster.delete(NODE_CLAIM, claim["metadata"]["name"])
        return f"released {len(idle)} idle nodes of {look.gang.name} after {look.lasted:.0f} s: {look.why}"

    def lingering(self, name: str) -> list[str]:
        """Return the pods of a gang that still run, even if its Job is gone.

        Pods that can never end because their node is lost are left out.
        """
        pods = [pod for pod in self.mirrors.objects(POD, self.settings.namespace, RATCHET) if pod["metadata"]["labels"].get(GANG) == name]
        nodes = {node.name: node for node in map(node_of, self.mirrors.objects(NODE))}
        return [pod.name for pod in map(pod_of, pods) if lingers(pod, nodes, time.time())]

    def death(self, name: str) -> tuple[int, str]:
        """Return (restarts, reason) of the first pod failure in the newest incarnation with a failure.

        `restarts` is the number of restarts before that failure. Returns (-1, "") if no pod failed. Pods that the cluster stops after
        the first failure do not count.
        """
        return self._deaths.get(name, (-1, ""))

    def _hear(self, seen: Object) -> None:
        pod, gang = pod_of(seen), seen["metadata"].get("labels", {}).get(GANG, "")
        if pod.died and pod.ends is None and pod.version > self.death(gang)[0]:
            self._deaths[gang] = (pod.version, f"{pod.name}: {pod.died}")

    def machines(self, name: str) -> dict[str, float]:
        """Return the machines of a gang's own static pool with their launch times, in seconds since the epoch.

        The key is the node, or the claim before it is a node. Machines that are being deleted are included, because they cost money
        until they are gone.
        """
        if self.settings.pool.kind != "static":
            return {}
        claims = [claim for claim in self.mirrors.objects(NODE_CLAIM, labels=RATCHET) if claim["metadata"]["labels"].get(GANG) == name]
        return {_node(claim) or claim["metadata"]["name"]: at for claim in claims if (at := _launched(claim)) is not None}

    def free(self, gang: Gang, state: GangState) -> dict[str, float]:
        """Return machines of a dynamic pool that boot or stand idle while the gang is not whole.

        The key is the node, or the claim before it is a node. The value is the time since when the machine counts for the gang, in
        seconds since the epoch. If gangs of several lines wait, each is charged, because it is unknown for which gang a machine was
        bought. A cap that is reached too early is noticed; a cap that is reached too late costs money.
        """
        if self.settings.pool.kind != "dynamic" or state in (GangState.WHOLE, GangState.ENDED):
            return {}
        launched = [(claim, at) for claim in self._claims() if (at := _launched(claim)) is not None]
        if any(_node(claim) for claim, _ in launched) and self.clock() - self._counted > COUNT_SECONDS:
            self._occupied, self._counted = self._busy(), self.clock()
        return {
            _node(claim) or claim["metadata"]["name"]: max(at, gang.created) for claim, at in launched if _node(claim) not in self._occupied
        }

    def _busy(self) -> frozenset[str]:
        """Return the nodes that are needed by any pod of the cluster."""
        return frozenset(str(pod["spec"].get("nodeName", "")) for pod in self.cluster.list(POD).items if _occupies(pod)) - {""}

    def _claims(self) -> list[Object]:
        """Return the NodeClaims of Ratchet's pools, launched or not, that are not being deleted."""
        if self.settings.pool.kind == "none":
            return []
        return [claim for claim in self.mirrors.objects(NODE_CLAIM, labels=RATCHET) if "deletionTimestamp" not in claim["metadata"]]


def _node(claim: Object) -> str:
    return str(claim.get("status", {}).get("nodeName", ""))


def _launched(claim: Object) -> float | None:
    """Return the time since when a machine costs money, or None if it is not launched yet."""
    conditions = claim.get("status", {}).get("conditions", ())
    return next((time_of(c["lastTransitionTime"]) for c in conditions if c["type"] == "Launched" and c["status"] == "True"), None)


def _arrived(claim: Object) -> bool:
    """Return whether pods can run on the machine. Karpenter itself gives up machines that never become ready."""
    return any(c["type"] == "Initialized" and c["status"] == "True" for c in claim.get("status", {}).get("conditions", ()))


def _for(claim: Object, gang: Gang) -> bool:
    """Return whether the gang can use the machine. The machines of a static pool belong to one gang."""
    labels: dict[str, str] = claim["metadata"].get("labels", {})
    return labels.get(GANG, gang.name) == gang.name


def _occupies(pod: Object) -> bool:
    """Return whether a pod keeps its node in use. Ended pods and pods of DaemonSets do not."""
    daemon = any(owner.get("kind") == "DaemonSet" for owner in pod["metadata"].get("ownerReferences", ()))
    return not daemon and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
