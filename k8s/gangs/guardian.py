"""Guardian: limits the time in which a gang is half alive, or in which paid nodes stand idle for a gang that cannot start.

The limit comes from the loop file. The guardian deletes pods or idle nodes, or requests pods that Volcano forgot to create; Volcano and the
autoscaler do the rest. After a network
partition, a process of an older incarnation may continue to run. It writes under its own incarnation's number, which is no longer read,
so no fencing is needed. `gang_state.py` decides which action is due.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ratchet.contracts.errors import RatchetError
from ratchet.contracts.jobs.cluster import ClusterSettings
from ratchet.k8s.api.client import COMMAND, JOB, NODE_CLAIM, POD, POD_GROUP, AlreadyExists, Cluster, Object
from ratchet.k8s.gangs.gang_informers import GangInformers, launched, node_name, serves
from ratchet.k8s.gangs.gang_state import Act, Gang, GangState, due, unheard
from ratchet.k8s.manifests.gang_manifest import RATCHET
from ratchet.runtime.jobs.job_protocol import SILENT_SECONDS

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
class GangHistory:
    """Previous observations of a gang, with times of this process's monotonic clock."""

    state: GangState = GangState.ABSENT
    since: float = 0.0
    """Start of the current state."""
    last_whole: float | None = None
    """Time at which the gang was last whole; before that, the time of the first observation."""
    reported: str = ""
    """Last report about the gang. The same report is not repeated."""
    beats: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Maps each process to its newest heartbeat and the time at which the heartbeat last changed."""
    unheard: tuple[str, float] = ("", 0.0)
    """Process that has never sent a heartbeat although its peers have, and since when this holds."""


@dataclass(frozen=True)
class GangObservation:
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
    """Guardian of the gangs of one namespace.

    Not thread-safe. The caller calls `observe_gangs` and then `repair`.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ClusterSettings,
        informers: GangInformers,
        beats: Beats,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster, self.settings, self.informers, self.beats, self.clock = cluster, settings, informers, beats, clock
        self._histories: dict[str, GangHistory] = {}
        self._occupied: frozenset[str] = frozenset()
        self._counted = -math.inf

    def observe_gangs(self) -> list[GangObservation]:
        """Observe all gangs of the namespace. Raises Retryable while the API server is away."""
        observations = [self._observe(gang) for gang in self.informers.gangs()]
        there = {observation.gang.name for observation in observations}
        self._histories = {name: history for name, history in self._histories.items() if name in there}
        return observations

    def _observe(self, gang: Gang) -> GangObservation:
        now, history = self.clock(), self._histories.setdefault(gang.name, GangHistory())
        who, quiet = self._silent(gang, history, now)
        state, why = self.informers.state(gang, who)
        if state is not history.state:
            history.state, history.since = state, quiet if state is GangState.HALF_ALIVE and who else now
        if history.last_whole is None or state is GangState.WHOLE:
            history.last_whole = now
        return GangObservation(
            gang, state, why, now - history.since, now - history.last_whole, due(state, history.since, now, self.settings.half_alive)
        )

    def _silent(self, gang: Gang, history: GangHistory, now: float) -> tuple[str, float]:
        """Return the process that has been silent for longest, and since when; an empty name and `now` if none is silent for too long."""
        beats = self.beats(gang)
        history.beats = {
            who: (beat, history.beats[who][1] if who in history.beats and history.beats[who][0] == beat else now)
            for who, beat in beats.items()
        }
        quiet = [(since, who) for who, (_, since) in history.beats.items() if now - since > SILENT_SECONDS]
        if (who := unheard(gang, history.beats)) != history.unheard[0]:
            history.unheard = (who, now)
        if who and now - history.unheard[1] > max(START, self.settings.half_alive):
            quiet.append((history.unheard[1], who))
        return (min(quiet)[1], min(quiet)[0]) if quiet else ("", now)

    def repair(self, observations: Sequence[GangObservation]) -> list[str]:
        """Do what is due and return reports of what was done.

        If an action fails, the error is reported and the action is retried after the next observation.
        """
        reports = []
        for observation in observations:
            if observation.act is Act.NOTHING:
                continue
            try:
                report = self._act(observation)
            except RatchetError as error:
                report = f"could not {observation.act} {observation.gang.name}: {error}"
            history = self._histories.setdefault(observation.gang.name, GangHistory())
            if report and history.reported != report:
                reports.append(report)
            history.reported = report
        return reports

    def _act(self, observation: GangObservation) -> str:
        """Carry out the action that is due and return a report, or an empty text if it turned out to be unnecessary."""
        if observation.act is Act.SYNC:
            return self._sync(observation)
        return self._restart(observation) if observation.act is Act.RESTART else self._release(observation)

    def _sync(self, observation: GangObservation) -> str:
        """Request the pods of a gang that the scheduler has admitted but that Volcano's controller has forgotten.

        While the PodGroup is Pending, the scheduler deliberately waits and the gang must wait too. The request is a Volcano Command,
        which makes the controller compare the Job with its pods once and is then deleted by it.
        """
        gang, namespace = observation.gang, self.settings.namespace
        self._histories.setdefault(gang.name, GangHistory()).since = self.clock()  # request again after the same time
        group = self.cluster.get(POD_GROUP, f"{gang.name}-{gang.uid}", namespace)
        phase = (group or {}).get("status", {}).get("phase", "")
        if phase in ("", "Pending"):
            return ""
        target = {"apiVersion": JOB.api, "kind": "Job", "name": gang.name, "uid": gang.uid, "controller": True}
        name = {"name": f"{gang.name}-sync", "namespace": namespace, "labels": dict(RATCHET), "ownerReferences": [target]}
        command = {"apiVersion": COMMAND.api, "kind": "Command", "metadata": name, "action": "SyncJob", "target": target}
        with contextlib.suppress(AlreadyExists):  # the controller has not read the previous request yet
            self.cluster.create(COMMAND, command)
        return f"requested the pods of {gang.name}, which Volcano has not created although its PodGroup is {phase}"

    def _restart(self, observation: GangObservation) -> str:
        # If Volcano has begun a restart, remaining pods of older incarnations block it; newer pods have not started any work.
        gang = observation.gang
        older = [pod for pod in gang.pods if pod.version < (gang.version or 0)]
        for pod in older or gang.pods:
            self.cluster.delete(POD, pod.name, self.settings.namespace, grace=0, uid=pod.uid)
        return f"restarted {gang.name} after {observation.lasted:.0f} s: {observation.why}"

    def _release(self, observation: GangObservation) -> str:
        gang = observation.gang
        if not self.settings.pool.karpenter:
            made_by_gke = self.settings.pool.kind == "compute-class"
            remedy = "look at the events of its ComputeClass" if made_by_gke else "add nodes, or configure a pool in [cluster.pool]"
            return f"{gang.name}: {observation.why}; {remedy}"
        if self.settings.pool.kind == "static":
            return f"{gang.name}: {observation.why}; check the conditions of its NodePool {gang.name} and of its NodeClaims"
        busy = self._busy()
        mine = [claim for claim in self.informers.claims() if serves(claim, gang)]
        idle = [claim for claim in mine if node_name(claim) and node_name(claim) not in busy]
        for claim in idle:
            self.cluster.delete(NODE_CLAIM, claim["metadata"]["name"])
        return f"released {len(idle)} idle nodes of {gang.name} after {observation.lasted:.0f} s: {observation.why}"

    def free(self, gang: Gang, state: GangState) -> dict[str, float]:
        """Return machines of a dynamic pool that boot or stand idle while the gang is not whole.

        The key is the node, or the claim before it is a node. The value is the time since when the machine counts for the gang, in
        seconds since the epoch. If gangs of several lines wait, each is charged, because it is unknown for which gang a machine was
        bought. A cap that is reached too early is noticed; a cap that is reached too late costs money.
        """
        if self.settings.pool.kind != "dynamic" or state in (GangState.WHOLE, GangState.ENDED):
            return {}
        paid = [(claim, at) for claim in self.informers.claims() if (at := launched(claim)) is not None]
        if any(node_name(claim) for claim, _ in paid) and self.clock() - self._counted > COUNT_SECONDS:
            self._occupied, self._counted = self._busy(), self.clock()
        return {
            node_name(claim) or claim["metadata"]["name"]: max(at, gang.created)
            for claim, at in paid
            if node_name(claim) not in self._occupied
        }

    def _busy(self) -> frozenset[str]:
        """Return the nodes that are needed by any pod of the cluster."""
        return frozenset(str(pod["spec"].get("nodeName", "")) for pod in self.cluster.list(POD).items if _occupies(pod)) - {""}


def _occupies(pod: Object) -> bool:
    """Return whether a pod keeps its node in use. Ended pods and pods of DaemonSets do not."""
    daemon = any(owner.get("kind") == "DaemonSet" for owner in pod["metadata"].get("ownerReferences", ()))
    return not daemon and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
