"""Follows the quickstart word by word: takes its commands out of the page and runs them in two terminals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.command import ROOT
from tests.docs.walk import blocks
from tests.waiting import until

PAGE = ROOT / "docs" / "quickstart.md"
pytestmark = pytest.mark.slow


def _environment(folder: Path) -> dict[str, str]:
    left = {name: value for name, value in os.environ.items() if not name.startswith(("RATCHET_", "PREFECT_API", "PREFECT_HOME"))}
    return left | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder), "PYTHONPATH": str(ROOT)}


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

    def type(self, commands: tuple[str, ...]) -> str:
        """Type the commands and return the text after which their output ends."""
        self._done += 1
        end = f"block {self._done} is done"
        assert self._shell.stdin is not None
        self._shell.stdin.write("".join(f"{command}\n" for command in (*commands, f"echo {end}")).encode())
        self._shell.stdin.flush()
        return end

    def wait(self, shown: str, seconds: float) -> None:
        """Wait until the terminal shows the text. Raises AssertionError with its output if the shell ends, or after `seconds` seconds."""

        def there() -> bool:
            assert shown in self.text() or self._shell.poll() is None, f"the shell ended:\n{self.text()[-3000:]}"
            return shown in self.text()

        until(there, seconds, pause=0.5, why=lambda: self.text()[-3000:])

    def close(self) -> None:
        """End the shell, and the service that it runs."""
        if self._shell.poll() is None:
            os.killpg(self._shell.pid, signal.SIGTERM)
            self._shell.wait(60)


def test_the_quickstart_ends_in_a_promotion_and_a_rejection(tmp_path: Path) -> None:
    environment, loop = _environment(tmp_path), tmp_path / "first-loop"
    one = Terminal(tmp_path, environment, tmp_path / "one.log")
    two: Terminal | None = None
    began = time.monotonic()
    try:
        for block in blocks(PAGE):
            if block.where == "terminal 1":
                end = one.type(block.commands)
                serves = block.commands[-1].startswith("ratchet serve loop.toml")
                one.wait("Prefect UI and approvals" if serves else end, 600)
            elif block.where == "terminal 2":
                two = two or Terminal(loop, environment, tmp_path / "two.log")
                two.wait(two.type(block.commands), 900)
        assert two is not None
        shown = subprocess.run(["ratchet", "history", "kubectl", "--json"], cwd=loop, env=environment, capture_output=True, check=True)
        assert [one["outcome"] for one in json.loads(shown.stdout)] == ["adopted", "promoted", "rejected"], two.text()
        assert "kubectl/0001 ended promoted" in two.text()
        assert [one for one in psutil.process_iter(["cwd"]) if str(loop) in " ".join(_command(one))] == [], "a process is left"
        print(f"the quickstart took {time.monotonic() - began:.0f} s")
    finally:
        one.close()
        if two is not None:
            two.close()
        if (loop / "loop.toml").exists():
            subprocess.run(["ratchet", "serve", "--stop", "loop.toml"], cwd=loop, env=environment, check=False, capture_output=True)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
