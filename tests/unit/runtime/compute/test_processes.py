"""Worker processes: their number, their end, and the code that they must have."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.ports.compute import Item
from ratchet.runtime.compute import children
from ratchet.runtime.compute.processes import ProcessCompute
from tests import compute_functions as functions
from tests.waiting import until

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
from ratchet.contracts.ports.compute import Item
from ratchet.runtime.compute.processes import ProcessCompute
from tests import compute_functions as functions
print(list(ProcessCompute(2).map(functions.sleep_but_first, [Item(str(n), (sys.argv[1], n)) for n in range(1, 6)])))
"""


def workers() -> list[psutil.Process]:
    """The worker processes of this process."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it may end between the two looks
            if child.status() != psutil.STATUS_ZOMBIE and "ratchet.runtime.compute.worker" in child.cmdline():
                found.append(child)
    return found


def pids(folder: Path) -> list[int]:
    """The processes that sleep at an item."""
    return [int(path.name) for path in folder.iterdir()]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_worker_outlives_its_parent(tmp_path: Path, number: int) -> None:
    """Not in the middle of its work, either."""
    parent = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], stderr=subprocess.DEVNULL)
    until(lambda: len(pids(tmp_path)) == 2, 60)
    parent.send_signal(number)
    parent.wait(30)
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids(tmp_path)), 10)


def test_workers_end_when_they_have_no_work() -> None:
    compute = ProcessCompute(2, idle=0.2)
    assert list(compute.map(functions.square, [Item("a", 2), Item("b", 3)])) == [4, 9]
    until(lambda: not workers(), 20)
    assert list(compute.map(functions.square, [Item("a", 2)])) == [4]
    compute.close()
    assert not workers()


def test_all_calls_share_the_workers(tmp_path: Path) -> None:
    """Lines with one engine do not start more processes than its number of workers."""
    compute, most, results = ProcessCompute(2), [0], list[list[int]]()

    def one() -> None:
        results.append(list(compute.map(functions.slow_square, [Item(str(n), n) for n in range(4)])))

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most[0] = max(most[0], len(workers()))
    assert results == [[0, 1, 4, 9]] * 3
    assert most[0] <= 2
    compute.close()


def test_a_worker_with_other_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example after an upgrade while the service runs."""
    real = children.refuse_other_code
    monkeypatch.setattr(children, "refuse_other_code", lambda theirs, what: real({**theirs, "ratchet": "older", "numpy": "1"}, what))
    compute = ProcessCompute(1)
    with pytest.raises(ConfigError, match=r"a worker process has other code .*numpy: 1 there.*ratchet: older there.*restart the service"):
        list(compute.map(functions.square, [Item("a", 2)]))
    assert not workers()


def test_what_a_worker_prints_is_no_reply(capfd: pytest.CaptureFixture[str]) -> None:
    compute = ProcessCompute(1)
    assert list(compute.map(print, [Item("a", "a line")])) == [None]
    compute.close()
    assert os.linesep in capfd.readouterr().err
