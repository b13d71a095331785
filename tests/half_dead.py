"""A process whose first thread is a zombie while another thread still holds its port.

A killed server can be in this state for a moment on a busy machine.
"""

from __future__ import annotations

import platform
import sys

import pytest

_EXIT = {"x86_64": 60, "aarch64": 93}
"""The system call number of exit(2), which ends one thread, by machine type."""
_CODE = """
import ctypes, socket, sys, threading, time
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).syscall(int(sys.argv[2]), 0)  # end only the first thread
"""
can_be_half_dead = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in _EXIT, reason="the system call number of exit(2) is not known for this platform"
)


def half_dead(port: int) -> list[str]:
    """Return the command that starts the process; it listens on `port` of 127.0.0.1, or on any free port if 0."""
    return [sys.executable, "-c", _CODE, str(port), str(_EXIT[platform.machine()])]
