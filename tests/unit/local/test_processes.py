"""Tests of the check whether a process still runs, for processes that another process may have started."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil

from ratchet.local.processes import alive, own_record, recorded
from tests.waiting import until
from tests.zombie_leader import zombie_leader


def test_a_process_runs_until_its_last_thread_has_ended() -> None:
    child = subprocess.Popen(zombie_leader(0))
    identity = recorded(own_record(child.pid))
    until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    assert alive(identity)
    child.kill()
    threads = Path(f"/proc/{child.pid}/task")
    until(lambda: not threads.exists() or len(list(threads.iterdir())) <= 1)
    assert not alive(identity), "a zombie is not alive, even if no process has waited for it"
    child.wait(10)
    assert not alive(identity)
