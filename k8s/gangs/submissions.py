"""Submission records: the Volcano Jobs that an executor asked for, and the cost of each job.

They are stored beside the run folders, never inside them. A pod can write to its run folder and could otherwise change its own
definition. This module reads and writes files only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

from pydantic import TypeAdapter

from contracts.ids import canonical
from contracts.model import Frozen
from k8s.gangs.meter import Meter
from runtime.artifacts import write_atomic


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
    """Whether the Job has ended and its objects are deleted."""


_NOTES = TypeAdapter(tuple[Submission, ...])


class Submissions:
    """Submission records of one line, stored in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def installation(self) -> str:
        """Random name that separates this installation's objects from those of another installation in the same namespace. Created once."""
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
        return _NOTES.validate_json(path.read_bytes()) if path.exists() else ()

    def add(self, job: str, note: Submission) -> Submission:
        """Append a record as the job's newest and return it."""
        with self._locked(job):
            self._write(job, (*self.of(job), note))
        return note

    def change(self, job: str, name: str, **fields: Any) -> None:
        """Update fields of the record of the Volcano Job `name`; keep what other processes have changed in other fields."""
        with self._locked(job):
            self._write(job, tuple(note.model_copy(update=fields) if note.name == name else note for note in self.of(job)))

    @contextlib.contextmanager
    def _locked(self, job: str) -> Iterator[None]:
        """Hold the job's lock, which ends with the process: reading, changing and writing a record are one step for all processes."""
        path = self.folder / "locks" / f"{job}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _write(self, job: str, notes: tuple[Submission, ...]) -> None:
        write_atomic(self.folder / f"{job}.json", canonical([note.model_dump(mode="json") for note in notes]))

    def meter(self, job: str) -> Meter:
        """Return the meter of a job; an empty meter if it was never metered."""
        path = self.folder / "meters" / f"{job}.json"
        return Meter.model_validate_json(path.read_bytes()) if path.exists() else Meter()

    def metered(self, job: str, meter: Meter) -> None:
        """Store the meter of a job."""
        write_atomic(self.folder / "meters" / f"{job}.json", canonical(meter))

    def death(self, gang: str) -> tuple[int, str]:
        """Return (restarts, reason): how the first pod of a gang failed, and after how many restarts.

        Returns (-1, "") if none failed. Stored in a separate file, because the process that watches the gang writes it while another
        process changes the record.
        """
        path = self.folder / "deaths" / f"{gang}.json"
        version, words = json.loads(path.read_bytes()) if path.exists() else (-1, "")
        return version, words

    def died(self, gang: str, version: int, words: str) -> None:
        """Store a pod's failure if it belongs to a newer incarnation than the stored one.

        Only the first failure of an incarnation counts, because the others follow from it.
        """
        with self._locked(gang):
            if words and version > self.death(gang)[0]:
                write_atomic(self.folder / "deaths" / f"{gang}.json", canonical([version, words]))

    def spent(self, now: float) -> float:
        """Return the cost of all jobs that began in the calendar month (UTC) of `now`, in the price table's currency."""
        month = _month(now)
        return sum(self.meter(job).cost for job, notes in self.all() if notes and _month(notes[0].at) == month)

    def all(self) -> Iterator[tuple[str, tuple[Submission, ...]]]:
        """Yield each job's name and records, ordered by name."""
        for path in sorted(self.folder.glob("*.json")):
            yield path.stem, self.of(path.stem)


def _month(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m")
