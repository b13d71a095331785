"""Processes that outlive us: how a job's process 1 is started, known again and killed.

`python -m local.processes FOLDER -- COMMAND…` is the last thing we run before a job: under the attempt's lock it leaves a
record of its own identity, and becomes the command. So whatever crashes between spawn and record, at most one
process per attempt gets past this point. It knows nothing of training and imports next to nothing, to start fast.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import psutil

from contracts.jsonfile import read_json
from contracts.processes import process_identity

PROCESS, ENDED, CANCEL, SUBMITTED = "process.json", "ended.json", "cancel.json", "submitted.json"
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "VIRTUAL_ENV")
"""All that a process of ours gets of our own environment: no credentials. What it needs besides is handed to it by name."""
NOT_MINE = 73
"""Exit code of a launcher that found the attempt taken. EX_CANTCREAT of sysexits.h."""
LOCK_SECONDS = 15.0
"""How long a launcher waits for what is left of an earlier incarnation to die."""
SAME_START = 2.0
"""Start times of one process read at different times may differ by clock corrections, seconds. Only where there is no token."""


class Identity(NamedTuple):
    """A process on this machine: a pid alone may be reused."""

    pid: int
    started: float
    """Seconds since the epoch."""
    token: str | None = None
    """contracts.processes.process_identity; None in a record of old, or where the system has none."""


def own_record(pid: int) -> dict[str, Any]:
    """What is written down of a process, so that `recorded` finds it again."""
    return {"pid": pid, "started": psutil.Process(pid).create_time(), "identity": process_identity(pid)}


def recorded(record: dict[str, Any]) -> Identity:
    """The process that a record names."""
    return Identity(int(record["pid"]), float(record["started"]), record.get("identity"))


def alive(identity: Identity) -> psutil.Process | None:
    """The process, if it still runs; a zombie, or another process with a reused pid, does not count."""
    try:
        process = psutil.Process(identity.pid)
        if identity.token is not None:
            same = process_identity(identity.pid) == identity.token
        else:
            same = abs(process.create_time() - identity.started) < SAME_START
        return process if same and not is_zombie(process) else None
    except psutil.NoSuchProcess:
        return None


def is_zombie(process: psutil.Process) -> bool:
    """Whether nothing is left of it but its exit code. The first thread of a killed server is a zombie a moment before the last one is,
    which still holds its port. Raises psutil.NoSuchProcess."""
    return bool(process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1)


def kill_tree(process: psutil.Process) -> None:
    """SIGKILL to a process and everything below it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [*process.children(recursive=True), process]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()


def terminate(process: psutil.Process) -> None:
    """SIGTERM to the process alone: process 1 of a job decides what its children hear."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGTERM)


def identity_in(folder: Path) -> Identity | None:
    """The process that an incarnation's folder records."""
    record = read_json(folder / PROCESS)
    return recorded(record) if record else None


def _write(path: Path, value: dict[str, Any]) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with part.open("w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _lock(path: Path) -> int | None:
    """The file descriptor that holds the attempt's lock; every process that inherits it holds it too."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > until:
                return None
            time.sleep(0.1)


def launch(folder: Path, command: list[str]) -> NoReturn:
    """Becomes `command`, once per incarnation folder, and never beside another process of the same attempt."""
    os.umask(0o077)  # a job's files hold what users said
    descriptor = _lock(folder.parent / "lock")
    if descriptor is None or (folder / PROCESS).exists() or (folder / ENDED).exists():
        sys.exit(NOT_MINE)
    if (folder / CANCEL).exists():
        _write(folder / ENDED, {"outcome": "preempted", "reason": "cancelled before it started"})
        sys.exit(NOT_MINE)
    _write(folder / PROCESS, own_record(os.getpid()))
    os.set_inheritable(descriptor, True)
    os.environ["RATCHET_LOCK_FD"] = str(descriptor)
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        _write(folder / ENDED, {"outcome": "permanent", "reason": f"cannot start {command[0]}: {error.strerror}; is it installed?"})
        sys.exit(78)


if __name__ == "__main__":
    launch(Path(sys.argv[1]), sys.argv[3:])
