"""Reports the rows of a training set that a job leaves out, by reason."""

from __future__ import annotations

from ratchet.contracts.errors import Permanent
from ratchet.contracts.jobs.training import LeftOut
from ratchet.trainers.job import parallel
from ratchet.trainers.job.job_folder import Job

UNRENDERED = "that the chat template refuses"
"""Reason for the exclusion of rows."""


def leave_out(job: Job, found: LeftOut) -> None:
    """Report how many rows are excluded, by reason. Raises Permanent if no row remains."""
    if not found.kept:
        raise Permanent(found.sentence)
    tell_left_out(job, found)


def tell_left_out(job: Job, found: LeftOut) -> None:
    """Write a warning that counts the excluded rows by reason. The job continues, also if no row is left."""
    if found.counts and parallel.rank() == 0:
        job.events.write("warning", reason=found.sentence)
