"""A process whose first thread is a zombie while another thread still holds its port.

A killed server can be in this state for a moment on a busy machine.
"""

from __future__ import annotations

import platform
import sys

_EXIT = 60 if platform.machine() == "x86_64" else 93
"""Number of Linux's exit(2), which ends one thread; 93 on every architecture with the generic system call table."""
_CODE = """
import ctypes, socket, sys, threading, time
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).syscall(int(sys.argv[2]), 0)  # end only the first thread
"""


def zombie_leader(port: int) -> list[str]:
    """The command; it listens on `port` of the loopback, any if 0."""
    return [sys.executable, "-c", _CODE, str(port), str(_EXIT)]
