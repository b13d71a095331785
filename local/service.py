"""A long-lived process beside the service: started once, found again after our own crash, stopped by pid and start time.

Model servers, the router and the OTLP receiver are such processes. They outlive us, so that a restart of Ratchet never
interrupts users. It refuses to know what they do: a process is ready when it has written its endpoint file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
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

from contracts.errors import Permanent, Retryable
from contracts.files import write_atomic
from contracts.ids import canonical
from contracts.jsonfile import read_json
from local.processes import INHERITED, alive, is_zombie, kill_tree, own_record, recorded, terminate

READY = "ready.json"
"""Written by the process when it answers: {"pid": …, "port": …}."""
_STARTED = "started.json"
_LOG_BYTES = 20_000_000


class Service:
    """One such process, in a folder of its own. Of our environment it gets what every job gets, and `environment`."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        ready: Path | None = None,
        patience: float = 180.0,
    ) -> None:
        self.folder = folder.absolute()
        self._ready = ready or self.folder / READY
        self._command = [sys.executable, *command]
        self._environment = environment or {}
        self._patience = patience

    def ensure(self) -> dict[str, Any]:
        """What the running process wrote into its ready file; started if need be. Permanent where it dies at once."""
        with self._locked():
            process = self.process()
            if process is None:
                process = self._start()
            return self._await(process)

    def ready(self) -> dict[str, Any] | None:
        """The ready file of a process that lives; None otherwise."""
        return self._ready_of(self.process())

    def process(self) -> psutil.Process | None:
        """The live process, found by pid and start time."""
        record = read_json(self.folder / _STARTED)
        return alive(recorded(record)) if record else None

    def stop(self, grace: float = 10.0) -> None:
        """SIGTERM, then SIGKILL after `grace` seconds; returns when it is gone."""
        with self._locked():
            process = self.process()
            if process is not None:
                terminate(process)
                with contextlib.suppress(psutil.TimeoutExpired):
                    process.wait(grace)
                kill_tree(process)
            self._ready.unlink(missing_ok=True)

    def remove(self) -> None:
        """Stops it and forgets its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _ready_of(self, process: psutil.Process | None) -> dict[str, Any] | None:
        ready = read_json(self._ready)
        return ready if process is not None and ready is not None and ready.get("pid") == process.pid else None

    def _start(self) -> psutil.Process:
        """Recorded before anybody could start a second, because the folder's lock is held until the record is on disk. A
        crash of ours in between leaves an orphan, which ends when it finds no record of itself (`announce`)."""
        self._ready.unlink(missing_ok=True)
        here = str(Path(__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        ours = {name: os.environ[name] for name in INHERITED if name in os.environ}
        environment = {**ours, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "RATCHET_SERVICE": str(self.folder), **self._environment}
        log_path = self.folder / "output.log"
        if log_path.exists() and log_path.stat().st_size > _LOG_BYTES:
            log_path.replace(self.folder / "output.log.1")
        with log_path.open("ab") as log:
            child = subprocess.Popen(
                self._command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=self.folder
            )
        process = psutil.Process(child.pid)
        write_atomic(self.folder / _STARTED, canonical(own_record(child.pid)))
        _children[child.pid] = child
        return process

    def _await(self, process: psutil.Process) -> dict[str, Any]:
        until = time.monotonic() + self._patience
        while time.monotonic() < until:
            ready = self._ready_of(process)
            if ready is not None:
                return ready
            child = _children.get(process.pid)
            if (child is not None and child.poll() is not None) or not process.is_running() or is_zombie(process):
                raise Permanent(f"{self._name()} ended before it was ready: {self._last_words()} (log: {self.folder / 'output.log'})")
            time.sleep(0.05)
        raise Retryable(f"{self._name()} is not ready after {self._patience:g} s (log: {self.folder / 'output.log'})")

    def _name(self) -> str:
        return " ".join(self._command[1:3])

    def _last_words(self) -> str:
        try:
            lines = (self.folder / "output.log").read_text(errors="replace").strip().splitlines()
        except FileNotFoundError:
            return "no output"
        return lines[-1][:300] if lines else "no output"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One starter at a time, over all processes of the machine."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / "lock").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
        except OSError as error:
            raise Retryable(f"cannot run {self._name()} in {self.folder}: {error.strerror}; free space or fix permissions") from error


_children: dict[int, subprocess.Popen[bytes]] = {}
"""Our own children, so that they can be buried when they die."""


def announce(port: int) -> None:
    """Called by a service process when it answers: writes its ready file, or ends where its starter died unrecorded."""
    folder = os.environ.get("RATCHET_SERVICE")
    if not folder:
        return
    record = read_json(Path(folder) / _STARTED)
    if record is None or record["pid"] != os.getpid():
        os.kill(os.getpid(), signal.SIGTERM)
        return
    write_atomic(Path(folder) / READY, canonical({"pid": os.getpid(), "port": port}))
