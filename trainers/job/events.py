"""Event log of a job: events.jsonl, one `JobEvent` per line, written by the supervisor and the trainer.

Each line is a single append to the file. So lines of the two writers are never mixed, and a kill truncates at most the last line.
`runtime/jobs/run_folder.py` reads the log for the job and for executors, and `flows` forwards its figures to experiment trackers.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

from ratchet.contracts.ids import canonical
from ratchet.contracts.jobs.training import JobEvent


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


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
