"""Processes that outlive the service: starts process 1 of a job, identifies it later, and kills it.

`python -m ratchet.local.processes FOLDER -- COMMAND…` is the launcher of a job. It takes the attempt's lock, records its own identity, and
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

import ratchet
from ratchet.contracts.jobs.exit_codes import ALREADY_STARTED, PERMANENT, Outcome
from ratchet.runtime.jobs.job_files import BadJobFile, is_number, read_job_object
from ratchet.runtime.jobs.job_protocol import LOCK_FD, IncarnationFile, RunFile
from ratchet.runtime.process_identity import is_running, process_identity
from ratchet.runtime.telemetry import NO_TELEMETRY

INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "VIRTUAL_ENV")
"""Environment variables that child processes inherit. Credentials are not among them. Other variables are passed explicitly by name."""
LOCK_SECONDS = 15.0
"""Seconds for which a launcher waits until all processes of an earlier incarnation have ended."""
HIGHEST_PID = 2**22
"""Highest process id on Linux."""
SAME_START = 2.0
"""Tolerance in seconds for the start time of a process, because clock corrections shift it. Used only for records without a token."""


def child_environment() -> dict[str, str]:
    """Return the environment with which child processes start.

    It contains the variables of INHERITED, a path that finds the own packages, and the variables that turn off usage statistics.
    """
    ours = {name: os.environ[name] for name in INHERITED if name in os.environ}
    here = str(Path(ratchet.__file__).resolve().parents[1])  # finds the package without installation, too
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    return {**ours, **NO_TELEMETRY, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


class ProcessIdentity(NamedTuple):
    """Identity of a process on this machine. A pid alone is not sufficient, because it may be reused."""

    pid: int
    started: float
    """Seconds since the epoch."""
    token: str | None = None
    """Result of ratchet.runtime.process_identity.process_identity. None if the system does not support it."""


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
            same = is_running(identity.pid, identity.token)
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


def kill_tree(process: psutil.Process) -> list[psutil.Process]:
    """Send SIGKILL to a process and all its descendants, and return them. They end some time after the signal."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [*process.children(recursive=True), process]
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    return family


def terminate(process: psutil.Process) -> None:
    """Send SIGTERM to the process alone. Process 1 of a job decides which signals its children get."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGTERM)


def identity_in(folder: Path) -> ProcessIdentity | None:
    """Return the process recorded in the folder of an incarnation; None if there is no record. Raises BadJobFile if it is damaged."""
    path = folder / IncarnationFile.PROCESS
    record = read_job_object(path)
    if record is None:
        return None
    pid, token = record.get("pid"), record.get("identity")
    if type(pid) is not int or not 0 < pid <= HIGHEST_PID or not is_number(record.get("started")) or not isinstance(token, str | None):
        raise BadJobFile(path, "does not identify a process")
    return recorded(record)


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

    Exits with ALREADY_STARTED if the incarnation was started or cancelled before or the lock is taken, and with PERMANENT if the command
    cannot start.
    """
    os.umask(0o077)  # the files of a job contain data of users
    ended = folder / IncarnationFile.ENDED
    descriptor = _lock(folder.parent / RunFile.LOCK)
    if descriptor is None or (folder / IncarnationFile.PROCESS).exists() or ended.exists():
        sys.exit(ALREADY_STARTED)
    if (folder / IncarnationFile.CANCEL).exists():
        _write(ended, {"outcome": Outcome.PREEMPTED, "reason": "cancelled before it started"})
        sys.exit(ALREADY_STARTED)
    _write(folder / IncarnationFile.PROCESS, own_record(os.getpid()))
    os.set_inheritable(descriptor, True)
    os.environ.update(LOCK_FD.to_env(descriptor))
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        _write(ended, {"outcome": Outcome.PERMANENT, "reason": f"cannot start {command[0]}: {error.strerror}; check its installation"})
        sys.exit(PERMANENT)


if __name__ == "__main__":
    launch(Path(sys.argv[1]), sys.argv[3:])
