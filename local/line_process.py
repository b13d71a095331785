"""The starter's side of a process that serves all lines of an installation: adds and removes lines, and starts and stops the process.

`runtime/serving/line_server.py` is the process's side, and describes the files.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.schema import SCHEMA_VERSION, stamped
from ratchet.local.service import ManagedProcess
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.json_files import read_json
from ratchet.runtime.serving.settings import ANSWERS, LINES, ServedLine
from ratchet.runtime.watched_file import stamp_of

OPEN_SECONDS = 30.0
"""Seconds within which a running process opens the port of a line."""
_END_SECONDS = 30.0
"""Seconds that the process has, beyond the time for the answers, to send traces and to write files."""
_HUNG_SECONDS = 5.0
"""Seconds after SIGTERM until a process is killed that has not ended a line in time."""
_POLL_SECONDS = 0.02


class LineProcess:
    """The process with the folder `folder`. `command` starts it; the folder is added as the last argument.

    `drain` is the time in seconds within which the process finishes the answers that it has begun.
    """

    def __init__(self, folder: Path, command: Sequence[str], drain: float) -> None:
        self._folder = folder.absolute()
        self._drain = drain
        self.process = ManagedProcess(self._folder, [*command, str(self._folder)], grace=drain + _END_SECONDS)

    @property
    def settings(self) -> Path:
        """Folder of the settings, where relative paths in them start."""
        return self._folder / LINES

    def port(self, line: str) -> int | None:
        """Return the port on which the process answers for a line; None if it does not, or if it is of another release."""
        return (self._reply(line) or {}).get("port")

    def pid(self) -> int | None:
        """Return the process id; None if the process does not run or is not ready."""
        ready = self.process.ready()
        return None if ready is None else int(ready["pid"])

    def serve(self, line: str, settings: ServedLine) -> int:
        """Let the process serve a line, unless it already does, and return the port. Starts the process if it does not run.

        A line that is served keeps its settings. A process of another release is replaced, with all its lines. Raises Permanent if the
        port is taken or the process cannot start, and Retryable if it does not answer in time or the folder is not writable.
        """
        found = self.port(line)
        if found is not None:
            return found
        with self.process.locked():
            found = self.port(line)
            if found is not None:
                return found
            ready = self.process.ready()
            if ready is not None and not _is_current(ready):
                self.process.end()
            # Written also if they have not changed: then the process opens the port again after an error.
            write_atomic(self._settings_of(line), stamped(settings))
            self.process.begin()
        until = time.monotonic() + OPEN_SECONDS + (self._drain if self._answer_of(line).exists() else 0)
        while time.monotonic() < until:
            reply = self._reply(line) or {}
            if "error" in reply:
                raise Permanent(str(reply["error"]))
            if "port" in reply:
                return int(reply["port"])
            time.sleep(_POLL_SECONDS)
        raise Retryable(f"the process in {self._folder} did not open the port of {line} in time (log: {self.process.log})")

    def remove(self, line: str) -> bool:
        """Let the process finish the answers of a line and close its port. Stop the process after its last line.

        Return whether the line was served. If the process does not respond, it is stopped; the next call of `serve` starts it with the
        other lines. Raises Retryable if the process cannot be stopped.
        """
        served = self.port(line) is not None
        with self.process.locked():
            self._settings_of(line).unlink(missing_ok=True)
        until = time.monotonic() + self._drain + _END_SECONDS
        while self._answer_of(line).exists() and self.process.process() is not None and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        with self.process.locked():
            hangs = self._answer_of(line).exists() and not self._settings_of(line).exists()
            if hangs or not any(self.settings.glob("*.json")):
                self.process.end(_HUNG_SECONDS if hangs else None)
            if not self._settings_of(line).exists():
                self._answer_of(line).unlink(missing_ok=True)
        return served

    def _settings_of(self, line: str) -> Path:
        return self.settings / f"{line}.json"

    def _answer_of(self, line: str) -> Path:
        return self._folder / ANSWERS / f"{line}.json"

    def _reply(self, line: str) -> dict[str, Any] | None:
        """Return what the live process says about a line with its present settings; None if it has not yet replied, or nobody serves it."""
        try:
            reply = read_json(self._answer_of(line))
            if reply is None or reply.get("settings") != stamp_of(self._settings_of(line)):
                return None
        except (FileNotFoundError, ValueError):
            return None
        ready = self.process.ready()
        return reply if ready is not None and ready["pid"] == reply.get("pid") and _is_current(ready) else None


def _is_current(ready: dict[str, Any]) -> bool:
    """Whether the process with this ready file reads and writes the formats of this release."""
    return bool(ready.get("schema_version") == SCHEMA_VERSION)
