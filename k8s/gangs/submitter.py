"""Submits gangs: decides whether a gang may start now, records it, and creates its objects."""

from __future__ import annotations

import time
from pathlib import Path

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.jobs.cluster import ClusterSettings
from ratchet.contracts.jobs.training import JobSpec, JobState
from ratchet.k8s.api.client import JOB, Cluster
from ratchet.k8s.gangs.gang_objects import GangObjects, owner
from ratchet.k8s.gangs.gang_state import ENDED_PHASES, phase_of
from ratchet.k8s.gangs.meter import refuse_what_cannot_be_metered
from ratchet.k8s.gangs.observer import GangObserver
from ratchet.k8s.gangs.submissions import Submission, Submissions
from ratchet.k8s.manifests.gang_manifest import RATCHET, RenderContext, render
from ratchet.k8s.manifests.pod_objects import manifest
from ratchet.k8s.manifests.pools import refuse_larger
from ratchet.k8s.profiles.profile import Profile
from ratchet.k8s.storage.sync import Remote
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.jobs.run_folder import RunFolders, disk


class GangSubmitter:
    """Submits the gangs of one line. `remote` is the bucket that replaces a shared volume, if there is one."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ClusterSettings,
        profile: Profile,
        folders: RunFolders,
        artifacts: FolderArtifacts,
        submissions: Submissions,
        objects: GangObjects,
        observer: GangObserver,
        remote: Remote | None,
        max_restarts: int,
    ) -> None:
        self.cluster, self.settings, self.profile, self.max_restarts = cluster, settings, profile, max_restarts
        self.folders, self.artifacts, self.submissions, self.remote = folders, artifacts, submissions, remote
        self.objects, self.observer = objects, observer

    def submit(self, spec: JobSpec, incarnation: int) -> None:
        """Submit an incarnation of a job. Does nothing if it, or a later one, was already started.

        Raises Retryable while an older incarnation runs, while its result is not stored, or while another gang waits for nodes. Raises
        Permanent if a cap is reached or the API server refuses the Job, and ConfigError if the job does not fit the pool.
        """
        with disk(f"submit {spec.name}"):
            self.observer.restore(spec)  # before the claim, which marks the folder as complete
            run = self.folders.claim(spec)
            submission = next((n for n in self.submissions.of(spec.name) if n.incarnation == incarnation and not n.created), None)
            if submission is None:
                if self._begun(spec, run, incarnation):
                    return
                self._afford(spec)
                self._wait_for_room(spec)
                submission = self._record(spec, incarnation)
            self.objects.create(submission)
            self.submissions.change(spec.name, submission.name, created=True)

    def _begun(self, spec: JobSpec, run: Path, incarnation: int) -> bool:
        """Return whether this incarnation, or a later one, was started before. Raises Retryable while an older one is not finished."""
        if self.observer.newest(spec.name, run)[0] >= incarnation:
            return True
        now = self.observer.status(spec.name)
        if now.incarnation >= incarnation:
            return True
        if now.state is JobState.ABSENT or now.outcome is not None:
            return False
        raise Retryable(f"{spec.name}: incarnation {now.incarnation} is not finished; incarnation {incarnation} starts after it")

    def _afford(self, spec: JobSpec) -> None:
        refuse_what_cannot_be_metered(self.settings, self.profile)
        cap = self.settings.cap_month
        if cap is not None and (spent := self.submissions.spent(time.time())) >= cap:
            raise Permanent(
                f"the line has spent {spent:.2f} of its {cap:.2f} this month; {spec.name} is not started; raise cluster.cap_month"
            )

    def _wait_for_room(self, spec: JobSpec) -> None:
        """Raise Retryable while another gang waits for nodes, or while the pool has too few nodes left for this gang.

        Only one gang waits at a time: if several wait, an autoscaler buys nodes for all of them, and each gets only some. A gang larger
        than the free part of the pool must not wait either, because part of its nodes would be bought and released again and again.
        Raises ConfigError if the gang is larger than the whole pool.
        """
        taken = 0
        for job in self.cluster.list(JOB, self.settings.namespace, RATCHET).items:  # not from the informer, because a Job may be very new
            phase = phase_of(job)
            if phase in ENDED_PHASES or owner(job) == spec.name:
                continue
            if phase != "Running":
                raise Retryable(
                    f"the gang {job['metadata']['name']} waits for its nodes ({phase}); {spec.name} is submitted after it starts"
                )
            taken += int(job["spec"]["minAvailable"])
        most = self.settings.pool.max_nodes
        if self.settings.pool.kind == "none":
            return
        refuse_larger(spec.nodes, self.settings)
        if taken + spec.nodes > most:
            raise Retryable(
                f"{spec.name} needs {spec.nodes} nodes, but running gangs have {taken} of cluster.pool.max_nodes = {most};"
                " waiting before submit"
            )

    def _record(self, spec: JobSpec, incarnation: int) -> Submission:
        """Write the files that the gang's pods read, render the gang, and record it."""
        if self.remote:
            self.remote.lay_out(spec)
        else:
            self.folders.lay_out(spec, self.artifacts)
        context = RenderContext(
            line=self.objects.line,
            settings=self.settings,
            profile=self.profile,
            plan_folder=self.folders.plan_folder(spec),
            artifacts=self.artifacts.root,
            max_restarts=self.max_restarts,
            installation=self.submissions.install(),
        )
        job = render(spec, context, incarnation)
        return self.submissions.add(
            spec.name, Submission(name=str(job.metadata.name), incarnation=incarnation, job=manifest(job), at=time.time())
        )
