"""What an executor on a cluster remembers of its jobs: what it asked for, and what they have cost. Beside the run folders, never within:
a pod sees its run folder and could rewrite what it is asked to be. It knows files; it asks no server.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

from pydantic import TypeAdapter

from contracts.files import write_atomic
from contracts.ids import canonical
from contracts.model import Frozen
from k8s.meter import Meter


class Note(Frozen):
    """A Volcano Job that was, or will be, asked for."""

    name: str
    incarnation: int
    """Of its first pods."""
    job: dict[str, Any]
    """The manifest as it was rendered then."""
    at: float
    """Seconds since the epoch."""
    created: bool = False
    """The API server took it."""
    seen: int = 0
    """The highest incarnation that its pods told of."""
    waits: float | None = None
    """Since when it has not been whole, seconds since the epoch; None: it is."""
    lost: str = ""
    """What is known of its end, where it left no word of its own."""
    stop: str = ""
    """Why we ended it."""
    outcome: str = ""
    """As what it counts then."""
    ended: bool = False
    """Nothing is left of it."""


_NOTES = TypeAdapter(tuple[Note, ...])


class Notes:
    """Of one line, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def installation(self) -> str:
        """A name that tells our objects from those of another installation in the same namespace; made once."""
        path, token = self.folder / "installation", token_hex(6)
        if not path.exists():
            write_atomic(self.folder / f".{token}", token.encode())
            with contextlib.suppress(FileExistsError):  # of two at once, the first counts for both
                os.link(self.folder / f".{token}", path)
            (self.folder / f".{token}").unlink()
        return path.read_text()

    def of(self, job: str) -> tuple[Note, ...]:
        """Oldest first."""
        path = self.folder / f"{job}.json"
        return _NOTES.validate_json(path.read_bytes()) if path.exists() else ()

    def add(self, job: str, note: Note) -> Note:
        """As the newest."""
        self._write(job, (*self.of(job), note))
        return note

    def change(self, job: str, name: str, **fields: Any) -> None:
        """Of the note of the Job `name`."""
        self._write(job, tuple(note.model_copy(update=fields) if note.name == name else note for note in self.of(job)))

    def _write(self, job: str, notes: tuple[Note, ...]) -> None:
        write_atomic(self.folder / f"{job}.json", canonical([note.model_dump(mode="json") for note in notes]))

    def meter(self, job: str) -> Meter:
        """Nothing for a job that was never metered."""
        path = self.folder / "meters" / f"{job}.json"
        return Meter.model_validate_json(path.read_bytes()) if path.exists() else Meter()

    def metered(self, job: str, meter: Meter) -> None:
        write_atomic(self.folder / "meters" / f"{job}.json", canonical(meter))

    def death(self, gang: str) -> tuple[int, str]:
        """How the first pod of a gang died by itself, and after how many restarts; (-1, "") where none did. In a file of its own, because
        whoever watches writes it while another changes the note."""
        path = self.folder / "deaths" / f"{gang}.json"
        version, words = json.loads(path.read_bytes()) if path.exists() else (-1, "")
        return version, words

    def died(self, gang: str, version: int, words: str) -> None:
        """Of a newer incarnation than is known: the first death counts, the others follow from it."""
        if words and version > self.death(gang)[0]:
            write_atomic(self.folder / "deaths" / f"{gang}.json", canonical([version, words]))

    def spent(self, now: float) -> float:
        """By the jobs that began in the calendar month (UTC) of `now`, in the price table's currency."""
        month = _month(now)
        return sum(self.meter(job).cost for job, notes in self.all() if notes and _month(notes[0].at) == month)

    def all(self) -> Iterator[tuple[str, tuple[Note, ...]]]:
        """Of each job, by its name."""
        for path in sorted(self.folder.glob("*.json")):
            yield path.stem, self.of(path.stem)


def _month(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m")
