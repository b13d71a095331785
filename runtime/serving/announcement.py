"""Announces that a long-lived process is ready. The process itself calls `announce`; its starter waits for the ready file."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from ratchet.contracts.schema import stamped
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.json_files import read_json

READY = "ready.json"
"""Ready file, which the process writes once it answers: {"pid": …, "schema_version": …}, and "port" if it has only one."""
ALIVE = "alive"
"""Prefix of the file whose modification time says when a process last ran: `alive.PID`. Model servers write it."""
BEAT_SECONDS = 1.0
"""Seconds between two notes that a model server runs (`beat`)."""
STARTED = "started.json"
"""Record of the process that the starter has started."""
SERVICE = "RATCHET_SERVICE"
"""Environment variable with the folder of a long-lived process (model server, router, receiver, Prefect), in which it announces itself."""
DRAIN_SECONDS = 120
"""Seconds within which a router or an embedded model server finishes its answers after SIGTERM."""


def is_orphan(patience: float = 0.0) -> bool:
    """Return whether the starter of this process has not recorded it after `patience` seconds, because it crashed. Such a process must end.

    Without SERVICE in the environment, nobody has to record the process.
    """
    folder, until = os.environ.get(SERVICE), time.monotonic() + patience
    while folder:
        record = read_json(Path(folder) / STARTED)
        if record is not None and record["pid"] == os.getpid():
            break
        if time.monotonic() >= until:
            return True
        time.sleep(0.05)
    return False


def announce(port: int | None = None) -> None:
    """Write the ready file of a service process. The process calls this once it answers, on `port` if it has only one.

    An orphan is stopped instead. Without SERVICE in the environment, nothing happens.
    """
    folder = os.environ.get(SERVICE)
    if is_orphan():
        os.kill(os.getpid(), signal.SIGTERM)
    elif folder:
        write_atomic(Path(folder) / READY, stamped({"pid": os.getpid(), **({} if port is None else {"port": port})}))


def beat() -> None:
    """Note that this process runs now. Without SERVICE in the environment, nothing happens."""
    folder = os.environ.get(SERVICE)
    if folder:
        with contextlib.suppress(OSError):  # a full disk or a removed folder must not end a server
            (Path(folder) / f"{ALIVE}.{os.getpid()}").touch()
