"""Submission records: the Volcano Jobs that an executor asked for, and the cost of each job.

They are documents beside the run folders, never inside them. A pod can write to its run folder and could otherwise change its own
definition. As rows of a database they survive the loss of the run folders.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import PurePosixPath
from secrets import token_hex
from typing import Any

from pydantic import TypeAdapter

from ratchet.contracts.ids import canonical
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.model import Frozen
from ratchet.k8s.gangs.meter import Meter
from ratchet.runtime.documents import Documents


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
FOLDER, METERS, DEATHS, ENDING = "cluster", "cluster/meters", "cluster/deaths", ".json"
"""Folders of the documents, by name of a job or of a gang, and the end of their names."""
INSTALLATION = f"{FOLDER}/installation"
"""Document with the name of the installation."""


class Submissions:
    """Submission records of one line. `documents` are those of the line's jobs; they are changed in one step for all processes."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._installation = ""

    @property
    def installation(self) -> str:
        """Name that separates this installation's objects from those of another one in the same namespace; empty before `install`."""
        if not self._installation:  # it never changes, and the guardian needs it also while the database is away
            self._installation = (self._documents.read(INSTALLATION) or b"").decode()
        return self._installation

    def install(self) -> str:
        """Give the installation its random name unless it has one. Return the name: if two processes race, both use the first one."""
        token = token_hex(6).encode()
        return self.installation or (self._documents.change(INSTALLATION, lambda known: known or token) or token).decode()

    def of(self, job: str) -> tuple[Submission, ...]:
        """Return the records of a job, oldest first."""
        return _records(self._documents.read(_name(FOLDER, job)))

    def highest(self, job: str) -> int:
        """Return the highest incarnation that the submitted Volcano Jobs of a job can reach, with all restarts that Volcano may make."""
        limits = [(n, int(n.job.get("spec", {}).get("maxRetry", DEFAULT_RETRIES))) for n in self.of(job)]
        return max((max(n.incarnation + restarts, n.seen) for n, restarts in limits), default=0)

    def add(self, job: str, submission: Submission) -> Submission:
        """Append a record as the job's newest and return it. If there is one of the same incarnation, return that one."""

        def added(known: tuple[Submission, ...]) -> tuple[Submission, ...]:
            return known if any(one.incarnation == submission.incarnation for one in known) else (*known, submission)

        return next(one for one in self._replace(job, added) if one.incarnation == submission.incarnation)

    def change(self, job: str, name: str, **fields: Any) -> None:
        """Update fields of the record of the Volcano Job `name`; keep what other processes have changed in other fields."""
        self._replace(job, lambda known: tuple(n.model_copy(update=fields) if n.name == name else n for n in known))

    def stop(self, job: str, name: str, reason: str, outcome: Outcome) -> None:
        """Record why the executor stops the Volcano Job `name`, and the outcome. The first record of a stop is never changed."""
        first = {"stop": reason, "outcome": outcome.value}
        self._replace(job, lambda known: tuple(n.model_copy(update=first) if n.name == name and not n.stop else n for n in known))

    def _replace(self, job: str, changed: Callable[[tuple[Submission, ...]], tuple[Submission, ...]]) -> tuple[Submission, ...]:
        def replaced(content: bytes | None) -> bytes:
            return canonical([submission.model_dump(mode="json") for submission in changed(_records(content))])

        return _records(self._documents.change(_name(FOLDER, job), replaced))

    def meter(self, job: str) -> Meter:
        """Return the meter of a job; an empty meter if it was never metered."""
        return _meter(self._documents.read(_name(METERS, job)))

    def measure(self, job: str, counted: Callable[[Meter], Meter]) -> Meter:
        """Replace the meter of a job by `counted` of it, and return the new meter. `counted` must not read or change documents.

        The service and a watching process meter the same gangs, and none of their updates may be lost.
        """
        return _meter(self._documents.change(_name(METERS, job), lambda content: canonical(counted(_meter(content)))))

    def death(self, gang: str) -> tuple[int, str]:
        """Return (restarts, reason): how the first pod of a gang failed, and after how many restarts.

        Returns (-1, "") if none failed. It is a separate document, because the process that watches the gang writes it while another
        process changes the record.
        """
        return _death(self._documents.read(_name(DEATHS, gang)))

    def died(self, gang: str, version: int, message: str) -> None:
        """Store a pod's failure if it belongs to a newer incarnation than the stored one.

        Only the first failure of an incarnation counts, because the others follow from it.
        """
        if message and version > self.death(gang)[0]:
            new = canonical([version, message])
            self._documents.change(_name(DEATHS, gang), lambda content: new if version > _death(content)[0] else content)

    def spent(self, now: float) -> float:
        """Return the cost of all jobs that began in the calendar month (UTC) of `now`, in the price table's currency."""
        month, meters = _month(now), self._documents.within(METERS, ENDING)
        begun = [job for job, submissions in self.all() if submissions and _month(submissions[0].at) == month]
        return sum(_meter(meters.get(_name(METERS, job))).cost for job in begun)

    def all(self) -> Iterator[tuple[str, tuple[Submission, ...]]]:
        """Yield each job's name and records, ordered by name."""
        for name, content in self._documents.within(FOLDER, ENDING).items():
            yield PurePosixPath(name).stem, _records(content)


def _name(folder: str, name: str) -> str:
    return f"{folder}/{name}{ENDING}"


def _records(content: bytes | None) -> tuple[Submission, ...]:
    return () if content is None else _SUBMISSIONS.validate_json(content)


def _meter(content: bytes | None) -> Meter:
    return Meter() if content is None else Meter.model_validate_json(content)


def _death(content: bytes | None) -> tuple[int, str]:
    version, message = (-1, "") if content is None else json.loads(content)
    return version, message


def _month(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m")
