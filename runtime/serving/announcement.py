"""Announces that a long-lived process is ready. The process itself calls `announce`; its starter waits for the ready file."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from contracts.schema import stamped
from runtime.artifacts import write_atomic
from runtime.json_files import read_json

READY = "ready.json"
"""Ready file, which the process writes once it answers: {"pid": …, "schema_version": …}, and "port" if it has only one."""
STARTED = "started.json"
"""Record of the process that the starter has started."""
SERVICE = "RATCHET_SERVICE"
"""Environment variable with the folder of a long-lived process (model server, router, receiver, Prefect), in which it announces itself."""
DRAIN_SECONDS = 120
"""Seconds within which a router or an embedded model server finishes its answers after SIGTERM."""


def is_orphan() -> bool:
    """Return whether the starter of this process crashed before it recorded the process. Such a process must end.

    Without SERVICE in the environment, nobody has to record the process.
    """
    folder = os.environ.get(SERVICE)
    record = read_json(Path(folder) / STARTED) if folder else {"pid": os.getpid()}
    return record is None or record["pid"] != os.getpid()


def announce(port: int | None = None) -> None:
    """Write the ready file of a service process. The process calls this once it answers, on `port` if it has only one.

    An orphan is stopped instead. Without SERVICE in the environment, nothing happens.
    """
    folder = os.environ.get(SERVICE)
    if is_orphan():
        os.kill(os.getpid(), signal.SIGTERM)
    elif folder:
        write_atomic(Path(folder) / READY, stamped({"pid": os.getpid(), **({} if port is None else {"port": port})}))
