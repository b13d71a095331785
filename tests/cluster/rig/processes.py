"""The processes of one test cluster.

Each process runs in a new session and is recorded with its start time, so that a recycled process id is never signalled. Each process also
has the cluster's folder in its environment. So processes that a killed runner did not record are found too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

MARK = "RATCHET_RIG"
AHEAD = ("nice", "-n", "-10")


def born(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot, or None if the process is gone or a zombie.

    Two processes with the same pid have different start times. A process whose first thread is a zombie counts as alive while another
    thread still runs, because such a thread of a killed server can still hold its port.
    """
    found = _stat(Path(f"/proc/{pid}"))
    if found is None or (found[0] in "ZX" and not any(_lives(task) for task in _tasks(pid))):
        return None
    return int(found[19])


def _stat(folder: Path) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name, beginning with the state; None if the process is gone."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _lives(task: Path) -> bool:
    found = _stat(task)
    return found is not None and found[0] not in "ZX"


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def send(pid: int, start: int | None, number: int) -> bool:
    """Send a signal to `pid` if that process started at `start`; returns whether the signal was sent.

    A pidfd is opened before the start time is read, so the signal cannot reach another process with a recycled pid.
    """
    try:
        held = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if start is None or born(pid) != start:
            return False
        signal.pidfd_send_signal(held, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(held)


class Processes:
    """The processes of the test cluster in `folder`, by name. Any process that knows the folder can inspect, kill and restart them."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._records, self._logs = folder, folder / "processes", folder / "log"
        self._mine: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None, ahead: bool = False) -> None:
        """Start `command` and append its output to log/NAME.log. It inherits only PATH from the caller's environment.

        `ahead` raises the priority of the process where permitted. On a busy machine, a late lease renewal would otherwise make a node
        NotReady.
        """
        self._records.mkdir(exist_ok=True)
        self._logs.mkdir(exist_ok=True)
        own = {"PATH": search_path(), "HOME": str(self._folder / "home"), MARK: str(self._folder), **(env or {})}
        with (self._logs / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                [*(AHEAD if ahead else ()), *command],
                env=own,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._mine.append(child)
        if ahead:
            with suppress(OSError):  # nice values apply only within a session's autogroup, so raise the autogroup too; see sched(7)
                Path(f"/proc/{child.pid}/autogroup").write_text("-10")
        record = {"pid": child.pid, "born": born(child.pid), "command": list(command), "env": dict(env or {}), "ahead": ahead}
        (self._records / f"{name}.json").write_text(json.dumps(record))

    def again(self, name: str) -> None:
        """Restart a process with its recorded command and environment; ends it first if it runs."""
        record = self._record(name)
        self.end(name)
        self.start(name, record["command"], record["env"], record["ahead"])

    def tell(self, name: str, number: int) -> bool:
        """Send a signal to a recorded process; returns False if it does not run."""
        record = self._record(name)
        return send(record["pid"], record["born"], number)

    def end(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a process and wait until it has ended."""
        self.tell(name, number)
        while self.alive(name):
            time.sleep(0.02)

    def alive(self, name: str) -> bool:
        """Return whether the recorded process still runs."""
        self._reap()
        record = self._record(name)
        return record["born"] is not None and born(record["pid"]) == record["born"]

    def pid(self, name: str) -> int:
        """Return the recorded process id."""
        return int(self._record(name)["pid"])

    def names(self) -> list[str]:
        """Return the names of all recorded processes, sorted."""
        return sorted(file.stem for file in self._records.glob("*.json"))

    def tail(self, name: str, lines: int = 15) -> str:
        """Return the last lines of the process's log."""
        with suppress(OSError):
            return "\n".join((self._logs / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])
        return ""

    def sweep(self) -> None:
        """Kill every process of the test cluster except the caller, recorded or not, and delete the records."""
        while found := [one for one in self.marked() if one[0] != os.getpid()]:
            for pid, start in found:
                send(pid, start, signal.SIGKILL)
            time.sleep(0.02)
            self._reap()
        for file in self._records.glob("*.json"):
            file.unlink()

    def marked(self) -> Iterator[tuple[int, int]]:
        """Yield pid and start time of each living process with this test cluster's folder in its environment."""
        mark = f"{MARK}={self._folder}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (start := born(int(entry.name))) is not None:
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        yield int(entry.name), start

    def _record(self, name: str) -> dict:
        file = self._records / f"{name}.json"
        if not file.exists():
            raise KeyError(f"no process {name!r} in {self._folder}; recorded processes: {', '.join(self.names()) or 'none'}")
        return json.loads(file.read_text())

    def _reap(self) -> None:
        """Reap ended children, which would otherwise stay zombies."""
        self._mine = [child for child in self._mine if child.poll() is None]


def search_path() -> str:
    """Return PATH with the system folders added, where Debian installs runc and ip."""
    return f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/local/sbin:/usr/sbin:/sbin"
