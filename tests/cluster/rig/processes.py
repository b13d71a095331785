"""Processes of one rig: started in sessions of their own, recorded with their start time, ended by that record. Every one carries the
rig's folder in its environment, so those that a killed runner had no time to record are found too, and a stranger is never touched."""

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
    """The process's start in clock ticks since boot, which a recycled pid does not share; None when it is gone or a zombie. While any of
    its threads still ends it is neither: those of a killed server hold its port, though the first thread is a zombie already."""
    found = _stat(Path(f"/proc/{pid}"))
    if found is None or (found[0] in "ZX" and not any(_lives(task) for task in _tasks(pid))):
        return None
    return int(found[19])


def _stat(folder: Path) -> list[str] | None:
    """The fields after the name, the state first; None where it is gone."""
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
    """Signals `pid` if it is the process that started at `start`. It is held before the look, so no other can come between."""
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
    """Of the rig in `folder`, by name. Another process may look at, kill and restart them: all it needs is the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._records, self._logs = folder, folder / "processes", folder / "log"
        self._mine: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None, ahead: bool = False) -> None:
        """Starts `command`, its output added to log/NAME.log. It inherits no more of the caller's environment than PATH. `ahead`: of what
        else this machine does, where we may: nodes are lost for lack of a lease that was only late."""
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
            with suppress(OSError):  # sessions share the machine alike, whatever each one's processes are worth to it; see sched(7)
                Path(f"/proc/{child.pid}/autogroup").write_text("-10")
        record = {"pid": child.pid, "born": born(child.pid), "command": list(command), "env": dict(env or {}), "ahead": ahead}
        (self._records / f"{name}.json").write_text(json.dumps(record))

    def again(self, name: str) -> None:
        """Starts it as it was started before; a living one is ended first."""
        record = self._record(name)
        self.end(name)
        self.start(name, record["command"], record["env"], record["ahead"])

    def tell(self, name: str, number: int) -> bool:
        """False when it was not running."""
        record = self._record(name)
        return send(record["pid"], record["born"], number)

    def end(self, name: str, number: int = signal.SIGKILL) -> None:
        """Signals it and waits until it is gone."""
        self.tell(name, number)
        while self.alive(name):
            time.sleep(0.02)

    def alive(self, name: str) -> bool:
        self._reap()
        record = self._record(name)
        return record["born"] is not None and born(record["pid"]) == record["born"]

    def pid(self, name: str) -> int:
        return int(self._record(name)["pid"])

    def names(self) -> list[str]:
        return sorted(file.stem for file in self._records.glob("*.json"))

    def tail(self, name: str, lines: int = 15) -> str:
        """The last lines of its log."""
        with suppress(OSError):
            return "\n".join((self._logs / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])
        return ""

    def sweep(self) -> None:
        """Ends every process of the rig, recorded or not, except the caller; then forgets the records."""
        while found := [one for one in self.marked() if one[0] != os.getpid()]:
            for pid, start in found:
                send(pid, start, signal.SIGKILL)
            time.sleep(0.02)
            self._reap()
        for file in self._records.glob("*.json"):
            file.unlink()

    def marked(self) -> Iterator[tuple[int, int]]:
        """Pid and start of the living processes that carry this rig's folder in their environment."""
        mark = f"{MARK}={self._folder}".encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (start := born(int(entry.name))) is not None:
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        yield int(entry.name), start

    def _record(self, name: str) -> dict:
        file = self._records / f"{name}.json"
        if not file.exists():
            raise KeyError(f"no process {name!r} in {self._folder}; there are {', '.join(self.names()) or 'none'}")
        return json.loads(file.read_text())

    def _reap(self) -> None:
        """A child that ended stays a zombie until its parent asks."""
        self._mine = [child for child in self._mine if child.poll() is None]


def search_path() -> str:
    """Debian keeps runc and ip where an ordinary user's PATH does not look."""
    return f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/local/sbin:/usr/sbin:/sbin"
