"""Tests of the check whether a process still runs, for processes that another process may have started."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import psutil

from local.processes import alive, own_record, recorded
from tests.zombie_leader import zombie_leader


def test_a_process_runs_until_its_last_thread_has_ended() -> None:
    child = subprocess.Popen(zombie_leader(0))
    identity, limit = recorded(own_record(child.pid)), time.monotonic() + 30
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert alive(identity)
    child.kill()
    while Path(f"/proc/{child.pid}/task").exists() and len(list(Path(f"/proc/{child.pid}/task").iterdir())) > 1:
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert not alive(identity), "a zombie is not alive, even if no process has waited for it"
    child.wait(10)
    assert not alive(identity)
