"""What a long run of tests prints before its end: each failure at once, and what was running when the run was ended from outside.

pytest prints the failures after the last test. A run that reaches a time limit of CI would not show them at all.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

CHARACTERS = 6_000
"""The end of a failure's text that is printed at once."""


class Progress:
    """Prints failures as they happen, and on SIGTERM the tests that were running.

    Args:
        write_line: prints one line.
        clock: seconds, monotonic.
    """

    def __init__(self, write_line: Any, clock: Any = time.monotonic) -> None:
        self._write_line = write_line
        self._clock = clock
        self._started: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._started[nodeid] = self._clock()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._started.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            told = f"FAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)"
            self._write_line(f"\n{told}\n{report.longreprtext[-CHARACTERS:]}")

    def running(self) -> list[str]:
        """Return one line for each test that has begun and not ended, the longest first."""
        now = self._clock()
        return [f"running for {now - since:.0f} s: {nodeid}" for nodeid, since in sorted(self._started.items(), key=lambda item: item[1])]

    def end(self, number: int, frame: object) -> None:
        """Handle a signal: print the tests that were running, and end the run as Ctrl-C does."""
        for line in ["", f"ended by signal {number}", *self.running()]:
            self._write_line(line)
        os.kill(os.getpid(), signal.SIGINT)


def installed(config: pytest.Config) -> None:
    """Add the plugin to the main process of a run with pytest-xdist workers.

    A run without workers is left alone: its tests start processes that would inherit the handling of the signal.
    """
    reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        return
    progress = Progress(reporter.write_line)
    config.pluginmanager.register(progress, "progress")
    signal.signal(signal.SIGTERM, progress.end)
