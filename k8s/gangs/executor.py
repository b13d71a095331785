"""`Executor` on a Kubernetes cluster: runs an attempt of a plan as a gang of pods, a Volcano Job.

If a gang loses a pod, Volcano restarts the whole gang. The gang's incarnation is the Job's first incarnation plus the number of
restarts in the pods' annotation. Events, results and checkpoints arrive through the shared volume or the bucket
(`runtime/jobs/run_folder.py`); states come from the API server.

Each submission is recorded before the API request. A repeated call, or a later version that would render the Job differently, therefore
finds it. The executor never decides to make another attempt.

This module only connects the parts. A call goes down from part to part and never back: `submitter.py` and `reconciler.py` use
`observer.py`, which reads the records, the run folders and the API server.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ratchet.contracts.jobs.cluster import ClusterSettings
from ratchet.contracts.jobs.training import JobEvent, JobSpec, JobStatus, ResumePoint
from ratchet.k8s.api.client import Cluster
from ratchet.k8s.gangs.collector import GangCollector
from ratchet.k8s.gangs.gang_informers import GangInformers
from ratchet.k8s.gangs.gang_objects import GangObjects, owner
from ratchet.k8s.gangs.gang_state import ENDED_PHASES, phase_of
from ratchet.k8s.gangs.guardian import Guardian
from ratchet.k8s.gangs.heartbeats import Heartbeats
from ratchet.k8s.gangs.meter import Meter, price_of
from ratchet.k8s.gangs.observer import GangObserver
from ratchet.k8s.gangs.reconciler import GangReconciler
from ratchet.k8s.gangs.submissions import Submissions
from ratchet.k8s.gangs.submitter import GangSubmitter
from ratchet.k8s.profiles.profile import Profile
from ratchet.k8s.storage.sync import open_remote
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.documents import Documents
from ratchet.runtime.jobs.run_folder import RunFolders, disk


class KubernetesExecutor:
    """Executor for one line's jobs in one namespace.

    Run folders lie below `root`, on the volume that pods mount at the same path, or on the service's disk if the gangs use a bucket.
    `documents` has the records of jobs and gangs; None: they are files below `root`. As rows of a database they survive the loss of a
    disk: what the pods reported is then downloaded from the bucket again.
    """

    restarts = True

    def __init__(
        self,
        cluster: Cluster,
        line: str,
        settings: ClusterSettings,
        profile: Profile,
        root: Path,
        artifacts: FolderArtifacts,
        max_restarts: int,
        report: Callable[[str], None] = lambda _message: None,
        documents: Documents | None = None,
    ) -> None:
        self.cluster, self.line, self.settings = cluster, line, settings
        self.folders = RunFolders(root.resolve(), documents)
        self.submissions = Submissions(self.folders.documents)
        price = price_of(profile, settings.pool.capacity) or 0.0
        self.remote = open_remote(settings.volume, self.folders, artifacts)
        informers = GangInformers(cluster, settings)
        self.objects = GangObjects(cluster, line, settings, profile, self.submissions)
        self.observer = GangObserver(self.folders, self.submissions, informers, self.objects, self.remote)
        self.submitter = GangSubmitter(
            cluster, settings, profile, self.folders, artifacts, self.submissions, self.objects, self.observer, self.remote, max_restarts
        )
        self.guardian = Guardian(cluster, settings, informers, Heartbeats(self.folders, self.submissions, self.remote))
        collector = GangCollector(self.observer, informers, self.objects, artifacts, self.remote, price, report)
        self.reconciler = GangReconciler(
            settings, self.folders, self.objects, self.observer, self.guardian, collector, self.remote, price, report
        )

    def submit(self, spec: JobSpec, incarnation: int) -> None:
        """Submit an incarnation of a job. Does nothing if it, or a later one, was already started.

        Raises Retryable while an older incarnation runs, while its result is not stored, or while another gang waits for nodes. Raises
        Permanent if a cap is reached or the API server refuses the Job, and ConfigError if the job does not fit the pool.
        """
        self.submitter.submit(spec, incarnation)

    def observe(self, name: str) -> JobStatus:
        """Return the status of a job's newest incarnation, with the recorded usage. Raises Retryable while the API server is away."""
        return self.observer.status(name)

    def reconcile(self, name: str) -> None:
        """Let the guardian act, update the meters, fetch the job's output, and stop it if a cap or time limit is exceeded.

        After the end of the job, store its result and its cost, publish its model, and delete its objects. Raises Retryable while the
        API server, or after the end the bucket, is away.
        """
        self.reconciler.reconcile(name)

    def live(self) -> list[str]:
        """Return the jobs that are pending or running, or whose result is not stored, or of whose gangs objects are left."""
        return self.observer.live()

    def guard(self) -> list[str]:
        """Observe, repair and meter all gangs of the installation once, and return reports of what was done.

        Used by a watching process, which needs no lease: a repeated repair has no further effect, and the meters are locked.
        """
        return self.reconciler.guard()

    def cancel(self, name: str) -> bool:
        """Delete all gangs of a job; their pods write a checkpoint within their grace period. Return whether a gang was deleted.

        A gang that has ended is left to `reconcile`, which stores its result before it deletes it.
        """
        jobs = {str(job["metadata"]["name"]): phase_of(job) for job in self.objects.jobs() if owner(job) == name}
        ended = {gang for gang, phase in jobs.items() if phase in ENDED_PHASES}
        for gang in (jobs.keys() | {submission.name for submission in self.submissions.of(name) if not submission.ended}) - ended:
            self.objects.delete(gang)
        return bool(jobs.keys() - ended)

    def events(self, name: str, since: int = 0) -> list[JobEvent]:
        """Return the events of a job over all incarnations, from index `since` on."""
        with disk(f"read the events of {name}"):
            if spec := self.folders.spec(name):
                self.observer.restore(spec)
            return self.folders.events(name, self.submissions.highest(name))[since:]

    def pin(self, spec: JobSpec, resume: ResumePoint) -> None:
        """Fix the resume point of the next incarnation. Raises Permanent if the checkpoint is not what was accepted."""
        with disk(f"pin step {resume.step} of {spec.name}"):
            (self.remote or self.folders).pin(spec, resume)

    def pinned(self, spec: JobSpec) -> ResumePoint | None:
        """Return the resume point of the next incarnation, or None.

        It is not read from the bucket, to which pods can write. After the loss of the run folder it is None until it is pinned again.
        """
        with disk(f"read the resume point of {spec.name}"):
            return self.folders.pinned(spec)

    def meter(self, name: str) -> Meter:
        """Return the meter of a job; an empty meter for an unknown job."""
        return self.submissions.meter(name)

    def pull(self, run: Path, fresh: bool = False) -> None:
        """Download new small files of a run folder from the bucket. Does nothing if the gangs share a volume.

        `fresh` ignores the minimum time between two downloads. Raises Retryable while the bucket is unreachable.
        """
        if self.remote:
            self.remote.pull(run, fresh)
