"""Runs the functions of `rewards/bounded/child.py` in one child process per function, which all scorers of this process share."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

CHILD = Path(__file__).with_name("child.py")
_INHERITED = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
"""Environment variables of the child. Credentials are not among them."""
START = 30.0
"""Seconds beyond the limit of a request after which the child is killed: it may have to load libraries first on a busy machine."""


class NoResult(Exception):
    """A function gave no result: it reached its time limit, or its process ended. The message says which, without the text."""


class Worker:
    """A child process that evaluates one function, started at the first call. Threads wait for each other."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def call(self, seconds: float, **arguments: Any) -> Any:
        """Return the result of the function. `seconds` is the limit of its CPU time. Raises NoResult."""
        request = json.dumps({"function": self._function, "seconds": seconds, "arguments": arguments}).encode() + b"\n"
        with self._lock:
            try:
                reply = self._exchange(request, 10 * seconds + START)
            except BrokenPipeError:  # it was idle and has ended, or it was killed: once again with a new process
                self._end()
                reply = self._exchange(request, 10 * seconds + START)
        if "error" in reply:
            raise NoResult(f"{self._function}: {reply['error']}")
        return reply["value"]

    def _exchange(self, request: bytes, limit: float) -> dict[str, Any]:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        end, buffer = time.monotonic() + limit, b""
        process.stdin.write(request)
        process.stdin.flush()
        ready = select.poll()
        ready.register(process.stdout.fileno(), select.POLLIN | select.POLLHUP)
        while not buffer.endswith(b"\n"):
            if not ready.poll(max(0.0, end - time.monotonic()) * 1000):
                self._end()
                raise NoResult(f"{self._function}: its process did not answer")
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                died = not buffer and process.wait() == 0
                self._end()
                if died:  # it ended because it was idle, at the moment of this request
                    raise BrokenPipeError
                raise NoResult(f"{self._function}: its process ended")
            buffer += chunk
        reply: dict[str, Any] = json.loads(buffer)
        return reply

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return self._process
        if self._owner == os.getpid():
            self._end()  # otherwise this is a fork, and the child belongs to the parent
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._owner = os.getpid()
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        process.wait()


@lru_cache
def worker(function: str) -> Worker:
    """Return the worker of a function of `rewards/bounded/child.py`."""
    return Worker(function)


def bounded_score(function: str, seconds: float, **arguments: Any) -> float | None:
    """Return the score that a function of `rewards/bounded/child.py` gives; None if it gives none or exceeds `seconds` of CPU time.

    The function has the name of its scorer. A missing result is logged, because an answer that is too slow to check must not look scored.
    """
    try:
        value = worker(function).call(seconds, **arguments)
    except NoResult as error:
        log.warning("reward %s gives no score: %s", function, error)
        return None
    return None if value is None else float(value)
