"""Tests of the start and the exit of processes that load a library. Each test uses separate processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = """
import atexit, gc, sys
from ratchet.trainers.job.fast_exit import brief, loaded
with brief():
    atexit.register(print, "registered for the exit")
    assert not gc.isenabled()
    loaded()
    assert gc.isenabled() and gc.get_freeze_count() > 1000
    sys.stdout.write("no line end ")
    {last}
"""


def run(last: str) -> subprocess.CompletedProcess[str]:
    """Run the program with this last statement."""
    program = textwrap.dedent(PROGRAM).replace("{last}", last)
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_exit_functions_run_and_all_output_is_written() -> None:
    done = run("pass")
    assert (done.returncode, done.stdout, done.stderr) == (0, "no line end registered for the exit\n", "")


def test_an_exception_is_printed_and_the_exit_code_is_1() -> None:
    for last, words in (("1 / 0", "ZeroDivisionError"), ("raise MemoryError", "MemoryError")):
        done = run(last)
        assert (done.returncode, done.stdout) == (1, "no line end registered for the exit\n")
        assert words in done.stderr


def test_an_explicit_exit_code_is_kept() -> None:
    for last, code in (("sys.exit(7)", 7), ("sys.exit(0)", 0), ("sys.exit()", 0), ("sys.exit('why')", 1)):
        assert run(last).returncode == code, last


def test_a_process_outside_brief_is_not_changed() -> None:
    program = "import gc; from ratchet.trainers.job.fast_exit import loaded; loaded(); assert gc.get_freeze_count() == 0"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=False).returncode == 0
