"""Submission records: the Volcano Jobs that an executor asked for, and the cost of each job.

They are stored beside the run folders, never inside them. A pod can write to its run folder and could otherwise change its own
definition. This module reads and writes files only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

from pydantic import TypeAdapter

from ratchet.contracts.ids import canonical
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.model import Frozen
from ratchet.k8s.gangs.meter import Meter
from ratchet.runtime.artifacts import write_atomic


class Submission(Frozen):
    """Submission record: a Volcano Job that the executor has created or is about to create."""

    name: str
    """Name of the Volcano Job."""
    incarnation: int
    """Incarnation of the first pods."""
    job: dict[str, Any]
    """Manifest as rendered at submission."""
    at: float
    """Time of submission, in seconds since the epoch."""
    created: bool = False
    """Whether the API server accepted the Job."""
    seen: int = 0
    """Highest incarnation that its pods reported."""
    waits: float | None = None
    """Time since which the gang is not whole, in seconds since the epoch. None means that it is whole."""
    lost: str = ""
    """Known facts about its end, if the job left no result."""
    stop: str = ""
    """Reason why the executor stopped it. Empty means that it did not."""
    outcome: str = ""
    """Outcome that is recorded for the stop."""
    ended: bool = False
    """Whether the Job has ended, its result is stored and it is deleted."""


DEFAULT_RETRIES = 3
"""Volcano's maximum number of restarts of a Job that does not set `maxRetry`."""
_SUBMISSIONS = TypeAdapter(tuple[Submission, ...])


class Submissions:
    """Submission records of one line, stored in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def installation(self) -> str:
        """Name that separates this installation's objects from those of another one in the same namespace; empty before `install`."""
        path = self.folder / "installation"
        return path.read_text() if path.exists() else ""

    def install(self) -> str:
        """Give the installation its random name unless it has one. Return the name."""
        path, token = self.folder / "installation", token_hex(6)
        if not path.exists():
            write_atomic(self.folder / f".{token}", token.encode())
            with contextlib.suppress(FileExistsError):  # if two processes race, both use the first name
                os.link(self.folder / f".{token}", path)
            (self.folder / f".{token}").unlink()
        return path.read_text()

    def of(self, job: str) -> tuple[Submission, ...]:
        """Return the records of a job, oldest first."""
        path = self.folder / f"{job}.json"
        return _SUBMISSIONS.validate_json(path.read_bytes()) if path.exists() else ()

    def highest(self, job: str) -> int:
        """Return the highest incarnation that the submitted Volcano Jobs of a job can reach, with all restarts that Volcano may make."""
        limits = [(n, int(n.job.get("spec", {}).get("maxRetry", DEFAULT_RETRIES))) for n in self.of(job)]
        return max((max(n.incarnation + restarts, n.seen) for n, restarts in limits), default=0)

    def add(self, job: str, submission: Submission) -> Submission:
        """Append a record as the job's newest and return it."""
        with self._locked(job):
            self._write(job, (*self.of(job), submission))
        return submission

    def change(self, job: str, name: str, **fields: Any) -> None:
        """Update fields of the record of the Volcano Job `name`; keep what other processes have changed in other fields."""
        with self._locked(job):
            self._write(
                job, tuple(submission.model_copy(update=fields) if submission.name == name else submission for submission in self.of(job))
            )

    def stop(self, job: str, name: str, reason: str, outcome: Outcome) -> None:
        """Record why the executor stops the Volcano Job `name`, and the outcome. The first record of a stop is never changed."""
        with self._locked(job):
            first = {"stop": reason, "outcome": outcome.value}
            self._write(job, tuple(n.model_copy(update=first) if n.name == name and not n.stop else n for n in self.of(job)))

    @contextlib.contextmanager
    def _locked(self, job: str) -> Iterator[None]:
        """Hold the job's lock, which ends with the process: reading, changing and writing a record are one step for all processes."""
        path = self.folder / "locks" / f"{job}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _write(self, job: str, submissions: tuple[Submission, ...]) -> None:
        write_atomic(self.folder / f"{job}.json", canonical([submission.model_dump(mode="json") for submission in submissions]))

    def meter(self, job: str) -> Meter:
        """Return the meter of a job; an empty meter if it was never metered."""
        path = self.folder / "meters" / f"{job}.json"
        return Meter.model_validate_json(path.read_bytes()) if path.exists() else Meter()

    def measure(self, job: str, counted: Callable[[Meter], Meter]) -> Meter:
        """Replace the meter of a job by `counted` of it in one locked step, and return the new meter.

        The service and a watching process meter the same gangs, and none of their updates may be lost.
        """
        with self._locked(job):
            meter = counted(self.meter(job))
            write_atomic(self.folder / "meters" / f"{job}.json", canonical(meter))
        return meter

    def death(self, gang: str) -> tuple[int, str]:
        """Return (restarts, reason): how the first pod of a gang failed, and after how many restarts.

        Returns (-1, "") if none failed. Stored in a separate file, because the process that watches the gang writes it while another
        process changes the record.
        """
        path = self.folder / "deaths" / f"{gang}.json"
        version, message = json.loads(path.read_bytes()) if path.exists() else (-1, "")
        return version, message

    def died(self, gang: str, version: int, message: str) -> None:
        """Store a pod's failure if it belongs to a newer incarnation than the stored one.

        Only the first failure of an incarnation counts, because the others follow from it.
        """
        with self._locked(gang):
            if message and version > self.death(gang)[0]:
                write_atomic(self.folder / "deaths" / f"{gang}.json", canonical([version, message]))

    def spent(self, now: float) -> float:
        """Return the cost of all jobs that began in the calendar month (UTC) of `now`, in the price table's currency."""
        month = _month(now)
        return sum(self.meter(job).cost for job, submissions in self.all() if submissions and _month(submissions[0].at) == month)

    def all(self) -> Iterator[tuple[str, tuple[Submission, ...]]]:
        """Yield each job's name and records, ordered by name."""
        for path in sorted(self.folder.glob("*.json")):
            yield path.stem, self.of(path.stem)


def _month(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m")
