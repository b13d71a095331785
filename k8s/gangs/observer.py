"""Status of a line's gangs, from the submission records, the run folders and the API server. Reads only."""

from __future__ import annotations

from pathlib import Path

from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobSpec, JobState, JobStatus
from ratchet.k8s.gangs.gang_informers import GangInformers
from ratchet.k8s.gangs.gang_objects import GangObjects, owner
from ratchet.k8s.gangs.gang_state import Gang, GangState
from ratchet.k8s.gangs.submissions import Submission, Submissions
from ratchet.k8s.storage.sync import Remote
from ratchet.runtime.jobs.job_protocol import incarnation_folder
from ratchet.runtime.jobs.run_folder import Ended, RunFolders, disk, ended_status, incarnations, read_ended, status

STARTED = (GangState.WHOLE, GangState.HALF_ALIVE)
"""States of a gang in which its job runs. In the others, the job is pending."""


class GangObserver:
    """Reads the status of a line's jobs. Every method raises Retryable while the API server or the disk is away.

    `remote` is the bucket that replaces a shared volume, if there is one.
    """

    def __init__(
        self, folders: RunFolders, submissions: Submissions, informers: GangInformers, objects: GangObjects, remote: Remote | None
    ) -> None:
        self.folders, self.submissions, self.informers, self.objects, self.remote = folders, submissions, informers, objects, remote

    def restore(self, spec: JobSpec) -> None:
        """Download what the job has reported, if its run folder was lost. Without a bucket, the cluster's volume has the run folder.

        Raises Retryable while the bucket is unreachable.
        """
        if self.remote:
            self.remote.restore(spec)

    def status(self, name: str) -> JobStatus:
        """Return the status of a job's newest incarnation, with the recorded usage.

        A job whose gang has ended has an outcome only after its result is stored.
        """
        with disk(f"observe {name}"):
            spec, submission = self.folders.spec(name), self.newest_submission(name)
            if spec is None or submission is None:
                return JobStatus(state=JobState.ABSENT)
            self.restore(spec)
            run = self.folders.run(spec)
            gang = None if submission.ended else self.informers.gang(submission.name)
            seen = self._result(name, run, submission) if submission.ended else self._state(name, run, submission, gang)
            return seen.model_copy(update={"usage": self.submissions.meter(name).usage})

    def _state(self, name: str, run: Path, submission: Submission, gang: Gang | None) -> JobStatus:
        number, folder = self.newest(name, run)
        if gang is None and self.informers.lingering(submission.name):
            number = max(number, submission.incarnation)
            seen = status(run / incarnation_folder(number), number, JobState.RUNNING)
            return seen.model_copy(update={"reason": submission.stop or "its pods are terminating"})
        state, why = self.informers.state(gang) if gang else (GangState.ENDED, "its Job does not exist")
        if gang is None or state is GangState.ENDED:
            return status(folder, number, JobState.ENDED, reason=f"its gang has ended ({why}); its result is not stored yet")
        number = max(number, submission.incarnation + (gang.version or 0))
        runs = state in STARTED
        seen = status(run / incarnation_folder(number), number, JobState.RUNNING if runs else JobState.PENDING)
        reasons = filter(None, ["" if runs else why, self.newest_death(gang)])
        return seen.model_copy(update={"reason": "; ".join(reasons)})

    def newest_death(self, gang: Gang) -> str:
        """Return how the first pod failed, if that caused the gang's newest restart; otherwise an empty string."""
        version, died = max(self.submissions.death(gang.name), self.informers.death(gang.name))
        return died if version >= (gang.version or 0) - 1 else ""

    def _result(self, name: str, run: Path, submission: Submission) -> JobStatus:
        number, folder = self.newest(name, run)
        lost = submission.lost or "its result was stored, but its run folder is gone"
        return ended_status(folder, number, reported(submission, number, folder) or Ended(outcome=Outcome.LOST, reason=lost))

    def newest_submission(self, name: str) -> Submission | None:
        """Return the newest record of a job whose Volcano Job was created; None if there is none.

        A record is written before its Job. After a crash in between, the next `submit` creates the Job.
        """
        return next(
            (
                submission
                for submission in reversed(self.submissions.of(name))
                if submission.created or submission.seen or self.exists(submission)
            ),
            None,
        )

    def exists(self, submission: Submission) -> bool:
        """Return whether the record's Volcano Job exists, or pods of it still run."""
        return self.informers.gang(submission.name) is not None or bool(self.informers.lingering(submission.name))

    def newest(self, name: str, run: Path) -> tuple[int, Path]:
        """Return the number and folder of the newest incarnation that began, was reported or was submitted."""
        numbers = [number for number, _ in incarnations(run, self.submissions.highest(name))]
        numbers += [
            max(submission.incarnation, submission.seen)
            for submission in self.submissions.of(name)
            if submission.created or submission.seen
        ]
        number = max(numbers, default=0)
        return number, run / incarnation_folder(number)

    def live(self) -> list[str]:
        """Return the jobs that are pending or running, or whose result is not stored, or of whose gangs objects are left."""
        with disk("list the jobs"):
            unfinished = {
                job
                for job, submissions in self.submissions.all()
                if any((submission.created or submission.seen) and not submission.ended for submission in submissions)
            }
        return sorted(unfinished | {owner(body) for body in (*self.objects.jobs(), *(left for _, left in self.objects.remains()))})


def reported(submission: Submission, number: int, folder: Path) -> Ended | None:
    """Return the result of an ended gang: the job's result file, or the executor's stop; None if there is neither.

    `number` and `folder` are those of the newest incarnation. A job that was done when it was stopped is done.
    """
    ended = read_ended(folder) if number >= submission.incarnation else None
    if submission.stop and (ended is None or ended.outcome is not Outcome.DONE):
        return Ended(outcome=Outcome(submission.outcome), reason=submission.stop)
    return ended
