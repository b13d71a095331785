"""How a process that loads a library begins and ends, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
PROGRAM = """
import atexit, gc, sys
from trainers.job.fast_exit import brief, loaded
with brief():
    atexit.register(print, "asked for at the end")
    assert not gc.isenabled()
    loaded()
    assert gc.isenabled() and gc.get_freeze_count() > 1000
    sys.stdout.write("no line end ")
    {last}
"""


def run(last: str) -> subprocess.CompletedProcess[str]:
    program = textwrap.dedent(PROGRAM).replace("{last}", last)
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_what_was_asked_for_is_done_and_every_word_is_written() -> None:
    done = run("pass")
    assert (done.returncode, done.stdout, done.stderr) == (0, "no line end asked for at the end\n", "")


def test_what_raises_says_so_and_ends_with_1() -> None:
    for last, words in (("1 / 0", "ZeroDivisionError"), ("raise MemoryError", "MemoryError")):
        done = run(last)
        assert (done.returncode, done.stdout) == (1, "no line end asked for at the end\n")
        assert words in done.stderr


def test_who_exits_by_itself_keeps_its_code() -> None:
    for last, code in (("sys.exit(7)", 7), ("sys.exit(0)", 0), ("sys.exit()", 0), ("sys.exit('why')", 1)):
        assert run(last).returncode == code, last


def test_a_process_that_is_not_brief_is_left_as_it_is() -> None:
    program = "import gc; from trainers.job.fast_exit import loaded; loaded(); assert gc.get_freeze_count() == 0"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=60, check=False).returncode == 0
