"""Reports the rows of a training set that a job leaves out, by reason."""

from __future__ import annotations

from collections.abc import Mapping

from ratchet.contracts.errors import Permanent
from ratchet.trainers.job import parallel
from ratchet.trainers.job.job_folder import Job

UNRENDERED = "that the chat template refuses"
"""Reason for the exclusion of rows, as in the message of `leave_out`."""


def leave_out(job: Job, what: str, total: int, without: Mapping[str, int]) -> None:
    """Report how many of `total` rows are excluded, by reason. Raises Permanent if no row remains.

    `what` names the rows in the message. `without` maps each reason to a number of rows.
    """
    if sum(without.values()) >= total:
        raise Permanent(f"all {total} {what} are excluded: {_counted(without)}")
    tell_left_out(job, what, total, without)


def tell_left_out(job: Job, what: str, total: int, without: Mapping[str, int]) -> None:
    """Report how many of `total` rows are excluded, by reason, as a warning. The run may continue without any of them."""
    if (counts := _counted(without)) and parallel.rank() == 0:
        job.events.write("warning", reason=f"of {total} {what}, excluded: {counts}")


def _counted(without: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {why}" for why, n in without.items() if n)
