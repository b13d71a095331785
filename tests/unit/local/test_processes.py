"""Whether a process that we did not start ourselves still runs."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from local.processes import alive, own_record, recorded

EXIT = {"x86_64": 60, "aarch64": 93}
HALF_DEAD = """
import ctypes, sys, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).syscall(int(sys.argv[1]), 0)  # ends the first thread alone
"""


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in EXIT, reason="the number of the call that ends one thread is not known here"
)
def test_a_process_runs_until_its_last_thread_has_ended() -> None:
    """As a killed server on a busy machine: its first thread is a zombie, and the others hold its port for a moment more."""
    child = subprocess.Popen([sys.executable, "-c", HALF_DEAD, str(EXIT[platform.machine()])])
    identity, limit = recorded(own_record(child.pid)), time.monotonic() + 30
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert alive(identity)
    child.kill()
    while Path(f"/proc/{child.pid}/task").exists() and len(list(Path(f"/proc/{child.pid}/task").iterdir())) > 1:
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert not alive(identity), "a zombie that nobody has waited for"
    child.wait(10)
    assert not alive(identity)
