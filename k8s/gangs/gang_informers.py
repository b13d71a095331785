"""Current objects of the gangs in one namespace, from informers: Jobs, pods, nodes and machines. Reads only."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ratchet.contracts.jobs.cluster import ClusterSettings
from ratchet.k8s.api.client import JOB, NODE, NODE_CLAIM, POD, Cluster, Object
from ratchet.k8s.api.informer import Informers
from ratchet.k8s.gangs.gang_state import Gang, GangState, Node, gang_of, lingers, node_of, pod_of, state_of, time_of
from ratchet.k8s.manifests.gang_manifest import GANG, RATCHET


class GangInformers:
    """Local copies of a namespace's objects. Each kind of object is listed and watched from its first use on.

    Every method raises Retryable while the API server is away.
    """

    def __init__(self, cluster: Cluster, settings: ClusterSettings) -> None:
        self.cluster, self.settings = cluster, settings
        self._informers = Informers(cluster, {POD: self._record_death})
        self._deaths: dict[str, tuple[int, str]] = {}

    def gangs(self) -> list[Gang]:
        """Return all gangs of the namespace."""
        pods = self._pods()
        return [gang_of(job, pods) for job in self._informers.objects(JOB, self.settings.namespace, RATCHET)]

    def gang(self, name: str) -> Gang | None:
        """Return a gang, or None if its Job does not exist. The server is asked for a Job that may be newer than the local copy."""
        known = next((gang for gang in self.gangs() if gang.name == name), None)
        job = None if known else self.cluster.get(JOB, name, self.settings.namespace)
        return gang_of(job, self._pods()) if job is not None else known

    def state(self, gang: Gang, silent: str = "") -> tuple[GangState, str]:
        """Return the state of a gang and the reason for it. `silent` names a process without heartbeats; empty means none."""
        state, why = state_of(gang, self._nodes(), time.time(), silent)
        awaited = sum(serves(claim, gang) for claim in self.claims() if not _arrived(claim))
        if state is GangState.HALF_PRESENT and awaited:
            # Machines take minutes to start and arrive one by one. Releasing the first ones meanwhile would repeat without end.
            return GangState.WAITING, f"some of its pods would fit, and {awaited} nodes are being added for the others"
        return state, why

    def lingering(self, name: str) -> list[str]:
        """Return the pods of a gang that still run, even if its Job is gone.

        During their grace period they write a checkpoint and their result. Pods that can never end because their node is lost are left
        out.
        """
        pods, nodes = [pod for pod in self._pods() if pod["metadata"]["labels"].get(GANG) == name], self._nodes()
        return [pod.name for pod in map(pod_of, pods) if lingers(pod, nodes, time.time())]

    def death(self, name: str) -> tuple[int, str]:
        """Return (restarts, reason) of the first pod failure in the newest incarnation with a failure.

        `restarts` is the number of restarts before that failure. Returns (-1, "") if no pod failed. Pods that the cluster stops after
        the first failure do not count.
        """
        return self._deaths.get(name, (-1, ""))

    def _record_death(self, seen: Object) -> None:
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
        claims = [claim for claim in self._informers.objects(NODE_CLAIM, labels=RATCHET) if claim["metadata"]["labels"].get(GANG) == name]
        return {node_name(claim) or claim["metadata"]["name"]: at for claim in claims if (at := launched(claim)) is not None}

    def claims(self) -> list[Object]:
        """Return the NodeClaims of Ratchet's pools, launched or not, that are not being deleted."""
        if not self.settings.pool.karpenter:
            return []
        return [claim for claim in self._informers.objects(NODE_CLAIM, labels=RATCHET) if "deletionTimestamp" not in claim["metadata"]]

    def _pods(self) -> list[Object]:
        return self._informers.objects(POD, self.settings.namespace, RATCHET)

    def _nodes(self) -> Mapping[str, Node]:
        return {node.name: node for node in map(node_of, self._informers.objects(NODE))}


def node_name(claim: Object) -> str:
    """Return the node of a NodeClaim; empty before it is a node."""
    return str(claim.get("status", {}).get("nodeName", ""))


def launched(claim: Object) -> float | None:
    """Return the time since when a machine costs money, or None if it is not launched yet."""
    conditions = claim.get("status", {}).get("conditions", ())
    return next((time_of(c["lastTransitionTime"]) for c in conditions if c["type"] == "Launched" and c["status"] == "True"), None)


def serves(claim: Object, gang: Gang) -> bool:
    """Return whether the gang can use the machine. The machines of a static pool belong to one gang."""
    labels: dict[str, str] = claim["metadata"].get("labels", {})
    return labels.get(GANG, gang.name) == gang.name


def _arrived(claim: Object) -> bool:
    """Return whether pods can run on the machine. Karpenter itself gives up machines that never become ready."""
    return any(c["type"] == "Initialized" and c["status"] == "True" for c in claim.get("status", {}).get("conditions", ()))
