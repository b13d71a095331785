"""Objects of one line's gangs on the API server: the pool, the network policy and the Volcano Job. Creates, lists and deletes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.jobs.cluster import ClusterSettings
from ratchet.k8s.api.client import JOB, NETWORK_POLICY, NODE_CLAIM, NODE_POOL, POD, AlreadyExists, Cluster, Kind, NotFound, Object
from ratchet.k8s.gangs.submissions import Submission, Submissions
from ratchet.k8s.manifests.gang_manifest import GANG, INSTALLATION, JOB_NAME, LINE, RATCHET
from ratchet.k8s.manifests.network import gang_network_policy
from ratchet.k8s.manifests.pod_objects import manifest
from ratchet.k8s.manifests.policies import RENDER, dry_run_namespace
from ratchet.k8s.manifests.pools import static_pool
from ratchet.k8s.profiles.profile import Profile


class GangObjects:
    """Objects of the gangs of one line and one installation. A gang's pool and network policy have the name of its Volcano Job."""

    def __init__(self, cluster: Cluster, line: str, settings: ClusterSettings, profile: Profile, submissions: Submissions) -> None:
        self.cluster, self.line, self.settings, self.profile, self.submissions = cluster, line, settings, profile, submissions

    def create(self, submission: Submission) -> None:
        """Create the pool, the network policy and then the gang, and reuse each that exists.

        If the API server refuses the gang, delete the rest and raise Permanent. First submit each pod template as a dry run, because the
        Job's own schema accepts templates that the API server refuses; such a Job hangs.
        """
        job = submission.job
        if self.cluster.get(JOB, submission.name, self.settings.namespace) is not None:
            return
        space = dry_run_namespace(self.settings)
        for task in job["spec"]["tasks"]:
            meta = task["template"]["metadata"] | {"name": f"{submission.name}-{task['name']}-dry", "namespace": space}
            try_pod(self.cluster, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": task["template"]["spec"]})
        try:
            if self.settings.pool.kind == "static":
                self._wait_for_old_pool(submission.name)
                pool = static_pool(submission.name, job["spec"]["minAvailable"], self.settings, self.profile)
                self.cluster.apply(NODE_POOL, self._labelled(manifest(pool), owner(job)))
            gang_policy = gang_network_policy(submission.name, self.settings.namespace, self.settings.volume.bucket)
            self.cluster.apply(NETWORK_POLICY, self._labelled(manifest(gang_policy), owner(job)))
            with contextlib.suppress(AlreadyExists):  # created by another process, or by this one before a crash
                self.cluster.create(JOB, job)
        except Permanent:
            self.delete(submission.name)
            raise

    def _labelled(self, body: Object, job: str) -> Object:
        body["metadata"]["labels"] |= {LINE: self.line, INSTALLATION: self.submissions.installation, JOB_NAME: job}
        return body

    def _wait_for_old_pool(self, name: str) -> None:
        """Raise Retryable while an earlier pool of this name, or one of its nodes, is terminating.

        Karpenter counts terminating nodes against the limit of a new pool with the same name, and the new pool then stays below its
        size permanently.
        """
        pool = self.cluster.get(NODE_POOL, name)
        claims = self.cluster.list(NODE_CLAIM, labels={**RATCHET, GANG: name}).items
        going = [one for one in (pool, *claims) if one is not None and "deletionTimestamp" in one["metadata"]]
        if going or (pool is None and claims):
            raise Retryable(f"an earlier pool {name}, or one of its {len(claims)} nodes, is still terminating; waiting before submit")

    def jobs(self) -> list[Object]:
        """Return the line's Volcano Jobs that are not being deleted."""
        return [job for job in self._mine(JOB) if "deletionTimestamp" not in job["metadata"]]

    def remains(self) -> Iterator[tuple[Kind, Object]]:
        """Yield the pools and network policies of gangs that have neither a Volcano Job nor pods.

        Pods need both during their grace period, in which they write a checkpoint together. Objects that are being deleted are left out.
        """
        there = {job["metadata"]["name"] for job in self._mine(JOB)}
        there |= {pod["metadata"]["labels"].get(GANG) for pod in self._mine(POD)}
        for kind in (NODE_POOL, NETWORK_POLICY) if self.settings.pool.kind == "static" else (NETWORK_POLICY,):
            for left in self._mine(kind):
                if left["metadata"]["name"] not in there and "deletionTimestamp" not in left["metadata"]:
                    yield kind, left

    def collect(self, job: str) -> None:
        """Delete the remains of all gangs of a job."""
        for kind, left in self.remains():
            if owner(left) == job:
                self.cluster.delete(kind, left["metadata"]["name"], self.settings.namespace if kind.namespaced else None)

    def delete(self, gang: str) -> None:
        """Delete a gang: first its pool, which costs most, then the Job.

        After a crash in between, the Job is still found. The pods get SIGTERM and write a checkpoint together within their grace
        period. Therefore the network policy between them stays until they are gone (see `remains`).
        """
        if self.settings.pool.kind == "static":
            self.cluster.delete(NODE_POOL, gang)
        self.cluster.delete(JOB, gang, self.settings.namespace)

    def _mine(self, kind: Kind) -> list[Object]:
        """Return the line's objects of a kind; none if this installation has never submitted a gang."""
        if not (installation := self.submissions.installation):
            return []
        labels = {**RATCHET, LINE: self.line, INSTALLATION: installation}
        return self.cluster.list(kind, self.settings.namespace if kind.namespaced else None, labels).items


def try_pod(cluster: Cluster, pod: Object) -> None:
    """Submit a pod to its namespace as a dry run. Raises Permanent if the API server refuses it, or if the namespace does not exist."""
    try:
        cluster.create(POD, pod, dry_run=True)
    except NotFound as error:
        space = pod["metadata"]["namespace"]
        raise Permanent(f"the namespace {space}, in which pod templates are tried, does not exist; {RENDER}") from error


def owner(body: Object) -> str:
    """Return the job that an object of a gang belongs to. An object without this label belongs to the job with the object's own name."""
    labels: dict[str, str] = body["metadata"].get("labels", {})
    return labels.get(JOB_NAME, str(body["metadata"]["name"]))
