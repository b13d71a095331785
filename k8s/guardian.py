"""Watches over gangs: none is half alive, and no paid node stands idle for a gang that cannot start, for longer than the loop file's limit.

It acts by taking pods or idle nodes away; Volcano and the autoscaler do the rest. A process of a gang that was restarted may live on
behind a network split: it writes under its own incarnation's number, which nobody reads any more. So nothing has to be fenced first.
What to do is decided in gangs.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from contracts.cluster import ClusterSettings
from contracts.errors import RatchetError
from contracts.runfolder import BEAT_SECONDS
from k8s.client import JOB, NODE, NODE_CLAIM, POD, Cluster, Object
from k8s.gang import GANG, RATCHET
from k8s.gangs import Act, Gang, Node, State, due, gang_of, lingers, node_of, pod_of, state_of, time_of, unheard
from k8s.mirror import Mirrors

SILENT = 4 * BEAT_SECONDS
"""Seconds without a heartbeat after which a process counts as silent."""
START = 60.0
"""Least time that a process may take to its first heartbeat after its peers' first, with all pods running. All start at once and from one
image, and beat before they import anything heavy; what is left is how long a machine of its own takes to read Python from a cold disk."""
COUNT_SECONDS = 5.0
"""Least time between two counts of all the cluster's pods, for the meter of a gang that waits."""
Beats = Callable[[Gang], Mapping[str, str]]
"""Who beats in a gang's newest incarnation -> the newest beat, whatever it looks like: only its change counts."""


@dataclass
class Memory:
    """What we have seen of a gang, in our own clock."""

    state: State = State.ABSENT
    since: float = 0.0
    well: float | None = None
    """When it was whole last; until then, when it was first seen."""
    said: str = ""
    """What was done last, or should be: the same is said once."""
    beats: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Who -> (beat, when it changed last)."""
    unheard: tuple[str, float] = ("", 0.0)
    """Who has never beaten though its peers do, and since when that is so."""


@dataclass(frozen=True)
class Look:
    """A gang as of now."""

    gang: Gang
    state: State
    why: str
    lasted: float
    """Seconds in this state, as far as we have seen."""
    broken: float
    """Seconds since it was whole, in whatever states, as far as we have seen."""
    act: Act


class Guardian:
    """One for a namespace, over mirrors of what is in it. Not thread-safe: whoever has it calls `look`, then `mend`."""

    def __init__(self, cluster: Cluster, settings: ClusterSettings, beats: Beats, clock: Callable[[], float] = time.monotonic) -> None:
        self.cluster, self.settings, self.beats, self.clock = cluster, settings, beats, clock
        self.mirrors = Mirrors(cluster, {POD: self._hear})
        self._memory: dict[str, Memory] = {}
        self._deaths: dict[str, tuple[int, str]] = {}
        self._occupied: frozenset[str] = frozenset()
        self._counted = -math.inf

    def look(self) -> list[Look]:
        """All gangs of the namespace. Retryable while the API server is away."""
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
        if state is State.HALF_PRESENT and awaited:
            # Machines take minutes and come one by one. Giving the first ones back meanwhile would go on for ever.
            state, why = State.WAITING, f"some of its pods would fit, and {awaited} nodes are on their way for the others"
        if state is not memory.state:
            memory.state, memory.since = state, quiet if state is State.HALF_ALIVE and who else now
        if memory.well is None or state is State.WHOLE:
            memory.well = now
        return Look(gang, state, why, now - memory.since, now - memory.well, due(state, memory.since, now, self.settings.half_alive))

    def _silent(self, gang: Gang, memory: Memory, now: float) -> tuple[str, float]:
        """The process that has been silent for longest, if any has for too long, and since when."""
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
        """Does what is due; what was done, in words. A gang that cannot be mended now is tried at the next look."""
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
        # Where Volcano has begun to restart it, what is left of older incarnations stands in the way; newer pods have done nothing.
        older = [pod for pod in look.gang.pods if pod.version < (look.gang.version or 0)]
        for pod in older or look.gang.pods:
            self.cluster.delete(POD, pod.name, self.settings.namespace, grace=0, uid=pod.uid)
        return f"restarted {look.gang.name} after {look.lasted:.0f} s: {look.why}"

    def _release(self, look: Look) -> str:
        if self.settings.pool.kind == "none":
            return f"{look.gang.name}: {look.why}; add nodes, or name a pool in [cluster.pool]"
        if self.settings.pool.kind == "static":
            return f"{look.gang.name}: {look.why}; its pool {look.gang.name} should: look at the NodePool's and its NodeClaims' conditions"
        busy = self._busy()
        idle = [claim for claim in self._claims() if _for(claim, look.gang) and _node(claim) and _node(claim) not in busy]
        for claim in idle:
            self.cluster.delete(NODE_CLAIM, claim["metadata"]["name"])
        return f"gave back {len(idle)} idle nodes of {look.gang.name} after {look.lasted:.0f} s: {look.why}"

    def lingering(self, name: str) -> list[str]:
        """Pods of a gang that run yet, whatever has become of it; none that will never end, because its node is lost."""
        pods = [pod for pod in self.mirrors.objects(POD, self.settings.namespace, RATCHET) if pod["metadata"]["labels"].get(GANG) == name]
        nodes = {node.name: node for node in map(node_of, self.mirrors.objects(NODE))}
        return [pod.name for pod in map(pod_of, pods) if lingers(pod, nodes, time.time())]

    def death(self, name: str) -> tuple[int, str]:
        """Which pod of a gang died by itself first, in the newest incarnation with such a death, and how; with the restarts that there had
        been by then. (-1, "") where none did. What the cluster stops thereafter says nothing."""
        return self._deaths.get(name, (-1, ""))

    def _hear(self, seen: Object) -> None:
        pod, gang = pod_of(seen), seen["metadata"].get("labels", {}).get(GANG, "")
        if pod.died and pod.ends is None and pod.version > self.death(gang)[0]:
            self._deaths[gang] = (pod.version, f"{pod.name}: {pod.died}")

    def machines(self, name: str) -> dict[str, float]:
        """Of a gang's own pool: node, or claim before it is one -> when it was launched, seconds since the epoch. Those that go cost, too,
        until they are gone."""
        if self.settings.pool.kind != "static":
            return {}
        claims = [claim for claim in self.mirrors.objects(NODE_CLAIM, labels=RATCHET) if claim["metadata"]["labels"].get(GANG) == name]
        return {_node(claim) or claim["metadata"]["name"]: at for claim in claims if (at := _launched(claim)) is not None}

    def free(self, gang: Gang, state: State) -> dict[str, float]:
        """Machines of a pool that grows which boot, or stand idle, while a gang is not whole: node, or claim before it is one -> since when
        it costs the gang, seconds since the epoch. Where gangs of several lines wait, each is charged, since nobody can tell for whom a
        machine was bought: a cap that is reached too soon is noticed, one that is reached too late is paid."""
        if self.settings.pool.kind != "dynamic" or state in (State.WHOLE, State.ENDED):
            return {}
        launched = [(claim, at) for claim in self._claims() if (at := _launched(claim)) is not None]
        if any(_node(claim) for claim, _ in launched) and self.clock() - self._counted > COUNT_SECONDS:
            self._occupied, self._counted = self._busy(), self.clock()
        return {
            _node(claim) or claim["metadata"]["name"]: max(at, gang.created) for claim, at in launched if _node(claim) not in self._occupied
        }

    def _busy(self) -> frozenset[str]:
        """Nodes that somebody's pods need."""
        return frozenset(str(pod["spec"].get("nodeName", "")) for pod in self.cluster.list(POD).items if _occupies(pod)) - {""}

    def _claims(self) -> list[Object]:
        """Machines of our pools, ordered or there, that nobody has given back."""
        if self.settings.pool.kind == "none":
            return []
        return [claim for claim in self.mirrors.objects(NODE_CLAIM, labels=RATCHET) if "deletionTimestamp" not in claim["metadata"]]


def _node(claim: Object) -> str:
    return str(claim.get("status", {}).get("nodeName", ""))


def _launched(claim: Object) -> float | None:
    """Since when it costs; None: it does not yet."""
    conditions = claim.get("status", {}).get("conditions", ())
    return next((time_of(c["lastTransitionTime"]) for c in conditions if c["type"] == "Launched" and c["status"] == "True"), None)


def _arrived(claim: Object) -> bool:
    """Whether pods can run on it. Karpenter itself gives up one that never does."""
    return any(c["type"] == "Initialized" and c["status"] == "True" for c in claim.get("status", {}).get("conditions", ()))


def _for(claim: Object, gang: Gang) -> bool:
    """Whether the gang can use it: a static pool's machines are one gang's own."""
    labels: dict[str, str] = claim["metadata"].get("labels", {})
    return labels.get(GANG, gang.name) == gang.name


def _occupies(pod: Object) -> bool:
    """Whether a node with it is in use: what has ended, or runs on every node, needs none."""
    daemon = any(owner.get("kind") == "DaemonSet" for owner in pod["metadata"].get("ownerReferences", ()))
    return not daemon and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
