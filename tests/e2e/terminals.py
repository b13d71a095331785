"""The terminals of a reader who follows a page: shells that run the commands of its blocks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.command import RATCHET, ROOT
from tests.docs.walk import Block
from tests.waiting import until
from tests.warm import Warm

SERVED = "Prefect UI and approvals"
"""What `ratchet serve` shows when it is ready."""


def reader_environment(folder: Path, warm: Warm | None = None) -> dict[str, str]:
    """Return the environment of a reader whose home is `folder`, with the command `ratchet` on the PATH.

    With `warm`, commands start from that process, except `ratchet serve`.
    """
    left = {name: value for name, value in os.environ.items() if not name.startswith(("RATCHET_", "PREFECT_API", "PREFECT_HOME"))}
    programs = [Path(sys.executable).parent]
    if warm is not None:
        (folder / "bin").mkdir(exist_ok=True)
        warm.write_program(folder / "bin" / "ratchet", RATCHET, ["serve"])
        programs.insert(0, folder / "bin")
    path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
    return left | {"PATH": path, "HOME": str(folder), "PYTHONPATH": str(ROOT)}


class Terminal:
    """A shell that runs the lines of its blocks one after the other and ends at the first failure. All output goes to one file."""

    def __init__(self, folder: Path, environment: dict[str, str], log: Path) -> None:
        self.log = log
        self._shell = subprocess.Popen(
            ["bash", "-e"], cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=log.open("wb"), stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        self._done = 0

    def text(self) -> str:
        """Return what the terminal shows."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def run(self, block: Block, seconds: float) -> None:
        """Run a block to its end, or until its service is ready.

        Raises AssertionError with the output if a command fails, or after `seconds` seconds.
        """
        self._done += 1
        end = f"block {self._done} is done"
        lines = ("set +e", *block.commands, "set -e") if block.may_fail else block.commands
        assert self._shell.stdin is not None
        self._shell.stdin.write("".join(f"{line}\n" for line in (*lines, f"echo {end}")).encode())
        self._shell.stdin.flush()
        serves = block.commands[-1].startswith("ratchet serve ") and "--stop" not in block.commands[-1]
        shown = SERVED if serves else end

        def there() -> bool:
            assert shown in self.text() or self._shell.poll() is None, f"the shell ended:\n{self.text()[-3000:]}"
            return shown in self.text()

        until(there, seconds, pause=0.2, why=lambda: self.text()[-3000:])

    def close(self) -> None:
        """End the shell, and the service that it runs."""
        if self._shell.poll() is None:
            os.killpg(self._shell.pid, signal.SIGTERM)
            self._shell.wait(60)


@contextmanager
def reading(folder: Path, logs: Path, warm: Warm | None = None) -> Iterator[Reader]:
    """Yield a reader in `folder`, whose terminals write to files in `logs`. At the end, stop everything that the reader has started.

    With `warm`, the reader's commands start from that process.
    """
    reader = Reader(folder, logs, warm)
    try:
        yield reader
    finally:
        reader.close()


class Reader:
    """Follows the blocks of a page in two terminals. Terminal 2 opens when it is first used, in the reader's present folder."""

    def __init__(self, folder: Path, logs: Path, warm: Warm | None) -> None:
        self.folder = folder
        """The folder in which the next terminal opens."""
        self.environment = reader_environment(logs, warm)
        self._logs = logs
        self._terminals: dict[int, Terminal] = {}

    def follow(self, blocks: list[Block], seconds: float = 600) -> None:
        """Run the blocks that run here, write the files, and look for the shown texts. `seconds` is the limit of one block."""
        for block in blocks:
            if block.file is not None:
                path = self.folder / block.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block.text, encoding="utf-8")
            elif block.mark == "shown":
                assert [line for line in block.commands if line not in self.text()] == [], self.text()[-3000:]
            elif block.terminal is not None:
                if block.terminal not in self._terminals:
                    self._terminals[block.terminal] = Terminal(self.folder, self.environment, self._logs / f"{block.terminal}.log")
                self._terminals[block.terminal].run(block, seconds)

    def text(self) -> str:
        """Return what the terminals show."""
        return "\n".join(one.text() for one in self._terminals.values())

    def ratchet(self, *arguments: str, check: bool = True) -> str:
        """Run a `ratchet` command in the reader's folder and return its standard output."""
        done = subprocess.run(["ratchet", *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def close(self) -> None:
        """End the terminals, and the services of the folder."""
        for terminal in self._terminals.values():
            terminal.close()
        if processes_of(self.folder):
            self.ratchet("serve", "--stop", "loop.toml", check=False)


def processes_of(folder: Path) -> list[int]:
    """Return the ids of the processes whose command line or environment names the folder, except the tests' own."""
    found = [process.pid for process in psutil.process_iter() if str(folder) in _told(process)]
    return [pid for pid in found if pid != os.getpid()]


def replace(folder: Path, saved: Path) -> None:
    """Bring a folder back to its saved state."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(saved, folder, symlinks=True)


def _told(process: psutil.Process) -> str:
    """Return the command line, the working folder and the environment of a process. The Prefect server names its folder in the last."""
    try:
        return " ".join([*process.cmdline(), process.cwd(), *process.environ().values()])
    except psutil.Error:
        return ""
