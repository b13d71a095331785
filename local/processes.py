"""Processes that outlive the service: starts process 1 of a job, identifies it later, and kills it.

`python -m local.processes FOLDER -- COMMAND…` is the launcher of a job. It takes the attempt's lock, records its own identity, and
replaces itself with the command. At most one process per attempt passes this point, even after a crash between start and record. The
module imports few modules, so that it starts fast.
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

from runtime.json_files import read_json
from runtime.process_identity import process_identity

PROCESS, ENDED, CANCEL, SUBMITTED = "process.json", "ended.json", "cancel.json", "submitted.json"
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "VIRTUAL_ENV")
"""Environment variables that child processes inherit. Credentials are not among them. Other variables are passed explicitly by name."""
NOT_MINE = 73
"""Exit code of a launcher if another process already holds the attempt. EX_CANTCREAT of sysexits.h."""
LOCK_SECONDS = 15.0
"""Seconds for which a launcher waits until all processes of an earlier incarnation have ended."""
SAME_START = 2.0
"""Tolerance in seconds for the start time of a process, because clock corrections shift it. Used only for records without a token."""


class ProcessIdentity(NamedTuple):
    """Identity of a process on this machine. A pid alone is not sufficient, because it may be reused."""

    pid: int
    started: float
    """Seconds since the epoch."""
    token: str | None = None
    """Result of runtime.process_identity.process_identity. None in old records, or if the system does not support it."""


def own_record(pid: int) -> dict[str, Any]:
    """Return the record of a running process, from which `recorded` reads its identity."""
    return {"pid": pid, "started": psutil.Process(pid).create_time(), "identity": process_identity(pid)}


def recorded(record: dict[str, Any]) -> ProcessIdentity:
    """Return the identity of the process in a record of `own_record`."""
    return ProcessIdentity(int(record["pid"]), float(record["started"]), record.get("identity"))


def alive(identity: ProcessIdentity) -> psutil.Process | None:
    """Return the process if it still runs; None if it has ended, is a zombie, or its pid belongs to another process."""
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
    """Return whether only the exit code of the process is left. Raises psutil.NoSuchProcess.

    The number of threads is checked as well. In a killed server, the first thread can be a zombie while another thread still holds the
    port.
    """
    return bool(process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1)


def kill_tree(process: psutil.Process) -> None:
    """Send SIGKILL to a process and all its descendants."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [*process.children(recursive=True), process]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()


def terminate(process: psutil.Process) -> None:
    """Send SIGTERM to the process alone. Process 1 of a job decides which signals its children get."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGTERM)


def identity_in(folder: Path) -> ProcessIdentity | None:
    """Return the process recorded in the folder of an incarnation; None if there is no record."""
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
    """Return the file descriptor that holds the attempt's lock; None if the lock is not free within LOCK_SECONDS.

    Every process that inherits the descriptor also holds the lock.
    """
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
    """Replace this process with `command`, once per incarnation folder and never beside another process of the same attempt.

    Exits with NOT_MINE if the incarnation was started or cancelled before or the lock is taken, and with 78 if the command cannot start.
    """
    os.umask(0o077)  # the files of a job contain data of users
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
        _write(folder / ENDED, {"outcome": "permanent", "reason": f"cannot start {command[0]}: {error.strerror}; check its installation"})
        sys.exit(78)


if __name__ == "__main__":
    launch(Path(sys.argv[1]), sys.argv[3:])
