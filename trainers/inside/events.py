"""The job's diary: events.jsonl, one `JobEvent` per line, written by the wrapper and the trainer alike.

A line is one append to the file, so that two writers never mix and a kill tears at most the last line. It refuses to
know who reads: executors do, and `flows` hands on what belongs to trackers.
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
    """Writes the events of one incarnation."""

    def __init__(self, path: Path, incarnation: int, total: int) -> None:
        self.path = path
        self.incarnation = incarnation
        self.total = total
        """Optimiser steps of the whole run."""

    def write(self, kind: str, step: int = 0, **data: Any) -> None:
        """Appends one event; figures that are not finite are written as text, for JSON has no word for them."""
        clean = {key: _finite(value) for key, value in data.items()}
        event = JobEvent(at=time.time(), incarnation=self.incarnation, kind=kind, step=step, total=self.total, data=clean)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, canonical(event) + b"\n")
        finally:
            os.close(descriptor)


def read(path: Path) -> list[dict[str, Any]]:
    """The events that can be read; none where there is no diary. A torn line, and what was appended to it, is left out: diaries of
    processes that were killed are read too."""
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
