"""Long-lived processes beside the service: started once, found again after a crash of the service, and stopped.

Model servers, the router and the OTLP receiver are such processes. They outlive the service, so that a restart of Ratchet does not
interrupt users. A process is identified by pid and start time. It is ready when it has written its ready file.
"""

from __future__ import annotations

import fcntl
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.ids import canonical
from ratchet.local.processes import alive, child_environment, is_zombie, kill_tree, own_record, recorded, terminate
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.file_errors import unwritable
from ratchet.runtime.jobs.run_folder import last_words
from ratchet.runtime.json_files import read_json
from ratchet.runtime.serving.announcement import READY, SERVICE, STARTED

_LOG_BYTES = 20_000_000
STARTS = 3
"""Number of times that a process is started which is killed before it is ready."""
KILL_SECONDS = 10.0
"""How long `stop` waits in seconds for the end of killed processes. A process in an uninterruptible system call ends late."""


class ManagedProcess:
    """One long-lived process with its own folder.

    The process runs `command` with the Python interpreter. Its environment is the part that every job inherits, plus `environment`.
    `timeout` is the time in seconds within which it must be ready, and `grace` the time that it has to end after SIGTERM. One that ends by
    itself before it is ready is started `again` times more.
    """

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        timeout: float = 180.0,
        grace: float = 10.0,
        again: int = 0,
    ) -> None:
        self.folder = folder.absolute()
        self._ready = self.folder / READY
        self.log = self.folder / "output.log"
        """File with the output of the process."""
        self._command = [sys.executable, *command]
        self._environment = environment or {}
        self._timeout = timeout
        self._grace = grace
        self._again = again
        self._log_start = 0
        """Size of the log in bytes before the running process wrote to it."""

    def ensure(self) -> dict[str, Any]:
        """Start the process if it does not run, wait until it is ready, and return the content of its ready file.

        A process that is killed before it is ready is started again. Raises Permanent if it ends by itself too often or is killed STARTS
        times, and Retryable if it is not ready in time or the folder is not writable.
        """
        with self.locked():
            return self.begin()

    def begin(self) -> dict[str, Any]:
        """As `ensure`, for a caller that holds the lock."""
        ended = 0
        for _ in range(STARTS):
            try:
                return self._await(self.process() or self._start())
            except _KilledError:
                continue
            except _EndedError as error:
                ended += 1
                if ended > self._again:
                    raise Permanent(str(error)) from None
        raise Permanent(
            f"{self._name()} was killed {STARTS} times before it was ready; the machine may lack memory, see `dmesg` (log: {self.log})"
        )

    def ready(self) -> dict[str, Any] | None:
        """Return the content of the ready file if the process is alive and ready; else None."""
        return self._ready_of(self.process())

    def process(self) -> psutil.Process | None:
        """Return the live process, found by pid and start time; None if there is none."""
        record = read_json(self.folder / STARTED)
        return alive(recorded(record)) if record else None

    def stop(self, grace: float | None = None) -> None:
        """Stop the process with SIGTERM and, after at most `grace` seconds (default: its own), with SIGKILL; then delete its ready file.

        When this returns, the process and its descendants have ended, so their ports and devices are free. Raises Retryable if one of
        them still runs some seconds after SIGKILL.
        """
        with self.locked():
            self.end(grace)

    def end(self, grace: float | None = None) -> None:
        """As `stop`, for a caller that holds the lock."""
        process = self.process()
        if process is not None:
            terminate(process)
            _wait([process], self._grace if grace is None else grace)
            running = _wait(kill_tree(process), KILL_SECONDS)
            if running:
                pids = ", ".join(str(one.pid) for one in running)
                raise Retryable(f"{self._name()} in {self.folder} still runs {KILL_SECONDS:g} s after SIGKILL (pid {pids}); retry")
        self._ready.unlink(missing_ok=True)

    def remove(self) -> None:
        """Stop the process and delete its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _ready_of(self, process: psutil.Process | None) -> dict[str, Any] | None:
        ready = read_json(self._ready)
        return ready if process is not None and ready is not None and ready.get("pid") == process.pid else None

    def _start(self) -> psutil.Process:
        """Start the process and record it. The caller holds the folder's lock, so no second process can start before the record exists.

        If the service crashes before it writes the record, the new process is an orphan. It ends when it finds no record of itself
        (see `announce`).
        """
        for child in list(_children.values()):
            child.poll()  # removes the zombie process of one that was killed
        self._ready.unlink(missing_ok=True)
        environment = {**child_environment(), SERVICE: str(self.folder), **self._environment}
        if self.log.exists() and self.log.stat().st_size > _LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            child = subprocess.Popen(
                self._command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=self.folder
            )
        process = psutil.Process(child.pid)
        write_atomic(self.folder / STARTED, canonical(own_record(child.pid)))
        _children[child.pid] = child
        return process

    def _await(self, process: psutil.Process) -> dict[str, Any]:
        until = time.monotonic() + self._timeout
        while time.monotonic() < until:
            ready = self._ready_of(process)
            if ready is not None:
                return ready
            if _has_ended(process):
                if _was_killed(process):
                    raise _KilledError
                raise _EndedError(f"{self._name()} ended before it was ready: {last_words(self.log, self._log_start)} (log: {self.log})")
            time.sleep(0.05)
        raise Retryable(f"{self._name()} is not ready after {self._timeout:g} s (log: {self.log})")

    def _name(self) -> str:
        return " ".join(self._command[1:3])

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock, so that one process of the machine at a time starts or stops the service.

        Raises Retryable if the folder is not writable.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / "lock").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise unwritable(f"run {self._name()} in {self.folder}", error) from error


class _KilledError(Exception):
    """The process was ended by SIGKILL, for example by the kernel when memory is short."""


class _EndedError(Exception):
    """A process ended by itself before it was ready. The text says which one, and why."""


_children: dict[int, subprocess.Popen[bytes]] = {}
"""pid -> child of this process. Polling a child that has ended removes its zombie process."""


def _has_ended(process: psutil.Process) -> bool:
    child = _children.get(process.pid)
    if child is not None and child.poll() is not None:
        return True
    try:
        ended = not process.is_running() or is_zombie(process)
    except psutil.NoSuchProcess:
        ended = True
    if ended and child is not None:
        child.poll()  # it may have ended since the first poll
    return ended


def _was_killed(process: psutil.Process) -> bool:
    """Return whether a process that has ended was killed. So counts one that is not a child, whose exit code is unknown."""
    child = _children.get(process.pid)
    return child is None or child.returncode == -signal.SIGKILL


def _wait(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until all processes have ended, at most `seconds` seconds, and return those that still run."""
    until = time.monotonic() + seconds
    running = [process for process in processes if not _has_ended(process)]
    while running and time.monotonic() < until:
        time.sleep(0.02)
        running = [process for process in running if not _has_ended(process)]
    return running
