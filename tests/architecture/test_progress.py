"""A run of tests prints a failure when it happens, and the running tests when it is ended from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # it runs pytest in a process

REPO = Path(__file__).resolve().parents[2]
BODY = """
import time

def test_fails():
    assert "what was" == "what should be"

def test_waits():
    time.sleep(120)
"""


def test_a_run_that_is_ended_has_printed_its_failures_and_names_the_running_tests(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(BODY)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1"}
    plugins = ["-p", "pytest_timeout", "-p", "xdist.plugin", "-p", "tests.conftest", "-n", "1"]
    command = [sys.executable, "-m", "pytest", *plugins, "-c", str(REPO / "pyproject.toml"), str(tmp_path)]
    with subprocess.Popen(command, cwd=REPO, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        before = []
        for line in process.stdout:
            before.append(line)
            if "test_two.py:5: AssertionError" in line:
                break
        time.sleep(5)  # until the result is counted, too
        process.send_signal(signal.SIGTERM)
        after = process.stdout.read()
    assert "test_two.py::test_fails (call, 0 s)" in "".join(before)
    assert "assert 'what was' == 'what should be'" in "".join(before)
    assert "ended by signal 15" in after
    assert "running for " in after.partition("ended by signal 15")[2]
    assert "0 passed, 1 failed" in after
    assert process.returncode != 0
