"""Reads the event log of an incarnation (`events.jsonl`), which a job writes and can damage."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from ratchet.contracts.ids import canonical
from ratchet.contracts.jobs.training import JobEvent
from ratchet.runtime.jobs.job_files import HIGHEST_STEP, BadJobFile, open_job_file

LINE_BYTES = 256 << 10
"""Maximum length of a line of the event log."""
EVENT_BYTES = 256 << 20
"""Maximum number of bytes of an event log that are read. The rest is counted and not read."""
_KIND = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass
class EventLog:
    """Valid events of an incarnation, in order, and what was left out."""

    events: list[JobEvent] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    """Maps each defect to the number of lines, or of bytes for the part beyond EVENT_BYTES."""

    def skip(self, defect: str, count: int = 1) -> None:
        """Count lines that are left out."""
        self.left_out[defect] = self.left_out.get(defect, 0) + count

    def reason(self) -> str:
        """Return what was left out as text; empty if nothing was."""
        return ", ".join(f"{defect}: {count}" for defect, count in sorted(self.left_out.items()))


def read_event_log(path: Path, incarnation: int | None) -> EventLog:
    """Return the event log of an incarnation; an empty one if it does not exist. Every line that is not a valid event is counted.

    A last line without its end is not counted: it is being written, or a kill has truncated it. A file that cannot be read counts as one
    defect. Raises OSError if the disk fails.
    """
    log = EventLog()
    try:
        with open_job_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            read = 0
            while read < EVENT_BYTES and (line := file.readline(LINE_BYTES + 1)):
                read += len(line)
                if line.endswith(b"\n"):
                    _take(log, line, incarnation)
                elif len(line) > LINE_BYTES:
                    log.skip(f"lines longer than {LINE_BYTES} bytes")
                    while read < EVENT_BYTES and not line.endswith(b"\n") and (line := file.readline(LINE_BYTES)):
                        read += len(line)
                elif isinstance(event := parse_event(line, incarnation), JobEvent):
                    log.events.append(event)
            if size > read:
                log.skip(f"bytes after the first {EVENT_BYTES}", size - read)
    except FileNotFoundError:
        pass
    except BadJobFile as error:
        log.skip(f"the file {error.defect}")
    return log


def _take(log: EventLog, line: bytes, incarnation: int | None) -> None:
    event = parse_event(line, incarnation)
    if isinstance(event, str):
        log.skip(event)
    else:
        log.events.append(event)


def parse_event(line: bytes, incarnation: int | None) -> JobEvent | str:
    """Return the event in a line of an event log, or the defect of the line. With None, events of all incarnations are valid."""
    try:
        event = JobEvent.model_validate_json(line)
        canonical(event.data)
    except (ValidationError, ValueError, RecursionError):
        return "lines that are not valid events"
    if incarnation is not None and event.incarnation != incarnation:
        return "events of other incarnations"
    if not math.isfinite(event.at) or not _KIND.fullmatch(event.kind):
        return "events with an invalid time or kind"
    if not (0 <= event.step <= HIGHEST_STEP and 0 <= event.total <= HIGHEST_STEP):
        return "events with an invalid step"
    return event
