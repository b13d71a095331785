"""Event log of a job: events.jsonl, one `JobEvent` per line, written by the supervisor and the trainer.

Each line is a single append to the file. So lines of the two writers are never mixed, and a kill truncates at most the last line.
Executors read the log, and `flows` forwards its figures to experiment trackers.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from contracts.ids import canonical
from contracts.training import JobEvent


class Events:
    """Writes the event log of one incarnation."""

    def __init__(self, path: Path, incarnation: int, total: int) -> None:
        self.path = path
        self.incarnation = incarnation
        self.total = total
        """Number of optimiser steps of the whole run."""

    def write(self, kind: str, step: int = 0, **data: Any) -> None:
        """Append one event. Values that are NaN or infinite are written as strings, because JSON cannot represent them."""
        clean = {key: _finite(value) for key, value in data.items()}
        event = JobEvent(at=time.time(), incarnation=self.incarnation, kind=kind, step=step, total=self.total, data=clean)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, canonical(event) + b"\n")
        finally:
            os.close(descriptor)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the valid events of the log, or none if the file does not exist.

    After a kill, the last line can be incomplete, and a later event can be appended to it. Such lines are skipped.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    return [event for line in lines if (event := _event(line)) is not None]


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        found = JobEvent.model_validate_json(line)
    except ValidationError:
        return None
    return found.model_dump()


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
