"""Ends of gangs: fetches the output of an ended gang, stores its result and its cost, and deletes its objects."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from ratchet.contracts.errors import Permanent, RatchetError, Retryable
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobSpec
from ratchet.k8s.gangs.gang_informers import GangInformers
from ratchet.k8s.gangs.gang_objects import GangObjects
from ratchet.k8s.gangs.gang_state import LINES, gang_of, last_lines
from ratchet.k8s.gangs.guardian import GangObservation
from ratchet.k8s.gangs.meter import settle
from ratchet.k8s.gangs.observer import GangObserver, reported
from ratchet.k8s.gangs.submissions import Submission
from ratchet.k8s.storage.sync import Remote
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.jobs import job_drop
from ratchet.runtime.jobs.run_folder import newest_sign
from ratchet.runtime.moments import steady_time


class GangCollector:
    """Ends the gangs of one line. `price` is the price of a node and hour."""

    def __init__(
        self,
        observer: GangObserver,
        informers: GangInformers,
        objects: GangObjects,
        artifacts: FolderArtifacts,
        remote: Remote | None,
        price: float,
        report: Callable[[str], None],
    ) -> None:
        self.observer, self.informers, self.objects, self.remote = observer, informers, objects, remote
        self.artifacts = artifacts
        self.submissions, self.price, self.report = observer.submissions, price, report

    def end(self, spec: JobSpec, run: Path, submission: Submission, observation: GangObservation | None) -> None:
        """Fetch the output of a gang that has ended, store its result and its cost, delete its Job, and publish its model.

        `observation` is None if the Job is gone. A repeat after a crash at any point continues. The cost is stored before the pool is
        deleted, and the known facts before the Job is deleted, because its status goes with it. Raises Retryable while the bucket is
        unreachable: the result is unknown then, but the machines are released.
        """
        try:
            if self.remote:
                self.remote.pull(run, fresh=True)
        except Retryable:
            self._store_loss(spec, submission, observation)
            self._release(spec, run, submission, observation)
            raise
        number, folder = self.observer.newest(spec.name, run)
        result = reported(submission, number, folder)
        if result is None:
            self._store_loss(spec, submission, observation)
        self._release(spec, run, submission, observation)
        if result is not None and result.outcome is Outcome.DONE:
            self._publish(spec, run, number)
        self.submissions.change(spec.name, submission.name, ended=True)

    def _release(self, spec: JobSpec, run: Path, submission: Submission, observation: GangObservation | None) -> None:
        """Store the final meter of a gang and delete the gang.

        The end is the Job's end or, if the Job is gone, the newest sign of life in the run folder or the meter's last update.
        """
        now = steady_time()
        gang = observation.gang if observation else gang_of(submission.job, ())
        ended = gang.ended or newest_sign(self.observer.newest(spec.name, run)[1], spec.nodes, now)
        machines = self.informers.machines(submission.name)
        self.submissions.measure(spec.name, lambda meter: settle(meter, gang, ended or meter.at, now, self.price, machines))
        self.objects.delete(submission.name)

    def _store_loss(self, spec: JobSpec, submission: Submission, observation: GangObservation | None) -> None:
        """Store how a gang without a result file ended: how the Job ended, how its first pod failed, and the end of that pod's log."""
        if not submission.lost:
            why = (
                f"its Job ended without a result file ({observation.why})"
                if observation
                else "its Job does not exist (deleted, or never accepted)"
            )
            self.submissions.change(spec.name, submission.name, lost="; ".join(filter(None, [why, self._failure(submission, observation)])))

    def _failure(self, submission: Submission, observation: GangObservation | None) -> str:
        """Return the end of a failed pod's log from the pod's status or, if that has none, from its node."""
        died = self.informers.death(submission.name)[1] or self.submissions.death(submission.name)[1]
        pod = next((pod for pod in observation.gang.pods if pod.died or pod.finished), None) if observation else None
        if ": " in died.partition(": ")[2] or pod is None:
            return died
        with contextlib.suppress(RatchetError):  # its node may be gone or may not serve logs
            if log := last_lines(self.objects.cluster.log(pod.name, self.objects.settings.namespace, LINES)):
                return f"{died or pod.name}: {log}"
        return died

    def _publish(self, spec: JobSpec, run: Path, number: int) -> None:
        """Copy the checkpoint that the job published from its drop folder or from the bucket to the artifacts.

        If it is not valid, report it and bind nothing; the acceptance of the checkpoint reports the missing name.
        """
        try:
            if self.remote:
                self.remote.publish(spec, number)
            else:
                job_drop.take_over(run, spec, number, self.artifacts)
        except Permanent as error:
            self.report(f"{spec.name}: {error}")
            return
        if not self.remote:
            with contextlib.suppress(OSError):  # pods can withdraw the right to delete their files; the checkpoint is complete
                job_drop.clear(run)
