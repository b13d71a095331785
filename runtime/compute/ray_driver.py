"""Process with the connection to a Ray cluster: `python -m ratchet.runtime.compute.ray_driver ADDRESS TRIES`.

It submits the requests of its parent as tasks, and passes the results on. It is a process of its own because Ray ends the process of a
driver that has lost its cluster; with ray://, this process then ends itself. When the parent ends, this process ends at once, and Ray ends
its tasks.

The function of the tasks belongs to the module `__main__`, so that Ray sends its code. It can therefore say that a worker has no Ratchet.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from ratchet.contracts.errors import RatchetError, Retryable
from ratchet.runtime.compute.attempt import Outcome
from ratchet.runtime.compute.frames import read_frame, write_frame
from ratchet.runtime.compute.installed import installed_code

_CONNECT_SECONDS = 5.0
_CONNECTS = 2
"""Tries to connect. The client server of Ray starts a process for each connection, which now and then fails."""
_AT_ONCE = 512
"""Tasks whose results are waited for, each by a thread."""


def run_item(code: bytes, function: bytes, content: bytes) -> bytes:
    """Task: call a pickled function with a pickled content, and return the pickled `Outcome`. `code` is that of the service."""
    import os
    import pickle

    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # Ray limits the other libraries by itself
    try:
        from ratchet.contracts.errors import ConfigError
        from ratchet.runtime.compute.attempt import Outcome, attempt
        from ratchet.runtime.compute.installed import installed_code, refuse_other_code
        from ratchet.runtime.compute.worker import function_of
    except ImportError as error:
        return pickle.dumps(
            ("", "ConfigError", f"a worker of the Ray cluster cannot import Ratchet ({error}); install the service's release")
        )
    try:
        refuse_other_code(installed_code(), "a worker of the Ray cluster", pickle.loads(code))  # noqa: S301 -- from the driver
    except ConfigError as error:
        return pickle.dumps(Outcome(None, "ConfigError", str(error)))
    return pickle.dumps(attempt(function_of(function), pickle.loads(content)), protocol=5)  # noqa: S301 -- from the driver


class Driver:
    """The tasks of one connection. `tries` is how often Ray begins a task whose worker or node is lost."""

    def __init__(self, ray: Any, tries: int, replies: Any) -> None:
        self._ray = ray
        self._task = ray.remote(max_retries=tries - 1, retry_exceptions=False, num_cpus=1)(run_item).options(name="ratchet")
        self._code = pickle.dumps(dict(installed_code()))
        self._put = lru_cache(maxsize=8)(ray.put)
        self._replies = replies
        self._lock = threading.Lock()
        self._flying: dict[int, Any] = {}
        self._threads = ThreadPoolExecutor(_AT_ONCE)

    def serve(self, requests: Any) -> None:
        """Submit the requests until their stream ends. A request without data cancels the one with its number."""
        while (frame := read_frame(requests)) is not None:
            number, data = frame
            if data:
                self._threads.submit(self._answer, number, data)
            elif (task := self._flying.get(number)) is not None:
                self._threads.submit(self._ray.cancel, task, force=True)

    def _answer(self, number: int, data: bytes) -> None:
        outcome = self._outcome(number, data)
        if outcome is None:
            os._exit(1)  # the parent starts another process, which connects again and repeats the requests
        with self._lock:
            write_frame(self._replies, number, outcome)

    def _outcome(self, number: int, data: bytes) -> bytes | None:
        """Return the pickled outcome of a request; None if the connection to the cluster is lost."""
        try:
            function, content = pickle.loads(data)  # noqa: S301 -- from the process that has started this one
            task = self._task.remote(self._code, self._put(function), self._ray.put(pickle.dumps(content, protocol=5)))
            del data, content
            self._flying[number] = task
            result: bytes = self._ray.get(task)
        except Exception as error:  # of Ray: a lost worker, node or object, or a lost connection
            if isinstance(error, ConnectionError) or not self._ray.is_initialized():
                return None
            return pickle.dumps(Outcome(None, Retryable.__name__, f"Ray gave no result ({_short(error)}); look at the logs of its nodes"))
        finally:
            self._flying.pop(number, None)
        return result


def _short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def connected(address: str) -> Any:
    """Connect to the cluster, and return the module of Ray. Raises Retryable if that fails."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    remedy = "start it, open the port for this machine, or correct compute.address"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS):
            pass
    except OSError as error:
        raise Retryable(f"it cannot be reached: {error}; {remedy}") from error
    import ray

    for left in reversed(range(_CONNECTS)):
        try:
            ray.init(address=address, namespace="ratchet", log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray and gRPC raise many kinds
            if not left:
                raise Retryable(f"Ray cannot connect: {_short(error)}; {remedy}") from error
        else:
            break
    return ray


def main(address: str, tries: int) -> None:
    """Connect, say whether that succeeded, and serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, and this process with it
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what Ray prints is no reply
    try:
        ray = connected(address)
        nodes = [node for node in ray.nodes() if node["Alive"]]
        about = f"Ray cluster at {address}: nodes: {len(nodes)}, CPUs: {ray.cluster_resources().get('CPU', 0):g}"
        hello = Outcome((dict(installed_code()), about))
    except RatchetError as error:
        write_frame(replies, 0, pickle.dumps(Outcome(None, type(error).__name__, str(error))))
        os._exit(1)
    driver = Driver(ray, tries, replies)
    write_frame(replies, 0, pickle.dumps(hello))
    driver.serve(sys.stdin.buffer)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
