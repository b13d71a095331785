"""Ports of training jobs: the trainer that describes a job, and the executor that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ratchet.contracts.data.datasets import Facts
from ratchet.contracts.jobs.training import Attempt, JobEvent, JobSpec, JobStatus, ResumePoint, TrainingPlan


class Trainer(Protocol):
    """Converts training plans to jobs, without side effects.

    A trainer may have a method `cautions(plan) -> tuple[str, ...]`: what was never proven of a plan. Plan, explanation and approval show
    it.
    """

    method: str
    """Name of the training method."""

    def recipe(self, changes: Mapping[str, Any], facts: Facts | None = None) -> dict[str, Any]:
        """Return the complete, validated recipe with the overrides in `changes`.

        Settings that depend on measurements are derived from `facts`, if given. Raises `ConfigError` for an unknown key; the message
        suggests the nearest known key.
        """

    def job(self, plan: TrainingPlan, attempt: Attempt) -> JobSpec:
        """Return the job of an attempt. The result depends only on the arguments."""


class Executor(Protocol):
    """Runs jobs. New attempts are decided elsewhere.

    `observe`, `events`, `pinned` and `live` only read: they change no file, record, process or object of a cluster, and need no lease.
    Everything that becomes due while a job runs, or after it has ended, is done by `reconcile`.
    """

    restarts: bool
    """Whether the executor restarts a preempted job without a new `submit`. If true, an accepted checkpoint is pinned immediately.
    Otherwise it is pinned before the next `submit`."""

    def submit(self, spec: JobSpec, incarnation: int) -> None:
        """Start incarnation `incarnation` (counted from 1). Does nothing if this or a later incarnation was started before."""

    def observe(self, name: str) -> JobStatus:
        """Return the status of the newest submitted incarnation.

        An incarnation that does not start is pending until a timeout, and then ends as lost. A job that has ended is reported as ended
        at once. It has no outcome until `reconcile` has stored its result, and the reported usage is the recorded one.
        """

    def reconcile(self, name: str) -> None:
        """Do what is due for a job: stop it at its limits, kill it after its grace period, record its usage, collect its output.

        After the end of the job, store its result, and delete the objects that it leaves behind. The caller holds the line's lease, and
        calls this for a running job before it observes the job, and for every name that `live` returns. The ledger need not know the
        name. Does nothing for an unknown job. A repeated call, also after a crash in the middle, continues where the last one stopped;
        a call after the result is stored never changes it. Raises Retryable if the result cannot be collected yet.
        """

    def events(self, name: str, since: int = 0) -> list[JobEvent]:
        """Return the events of all incarnations of the attempt, in order, without the first `since` ones."""

    def pin(self, spec: JobSpec, resume: ResumePoint) -> None:
        """Set the checkpoint from which the next incarnation resumes. Checkpoints that are not pinned are never used."""

    def pinned(self, spec: JobSpec) -> ResumePoint | None:
        """Return the resume point that `pin` set last, or None."""

    def cancel(self, name: str) -> bool:
        """Send SIGTERM and return immediately; `reconcile` sends SIGKILL after the grace period.

        Return whether this call stops the job. False: an earlier call did so, or the job does not run.
        """

    def live(self) -> list[str]:
        """Return the names of this line's jobs for which `reconcile` has work.

        These jobs are pending or running, or they have ended and their result is not stored yet or their objects still exist.
        """
