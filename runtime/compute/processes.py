"""The engine of worker processes on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ratchet.runtime.compute.child_compute import IDLE_SECONDS, TRIES, ChildCompute
from ratchet.runtime.compute.children import Child
from ratchet.runtime.threads import threads_of


class ProcessCompute(ChildCompute):
    """`Compute` with a process per worker.

    A process has one item at a time, so that the item of a lost process is known. A new process repeats it.
    """

    remedy = "look for a lack of memory (dmesg), and set compute.workers to less, or divide the file"

    def __init__(self, workers: int, tries: int = TRIES, idle: float = IDLE_SECONDS) -> None:
        super().__init__(workers, tries, idle)
        self._idle: list[Child] = []

    def reach(self) -> str:
        """Return a sentence. The processes start when they are needed."""
        return f"heavy work is done in {self.workers} processes on this machine, which start when they are needed"

    def close(self) -> None:
        """End the processes that have no work."""
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.end()

    @contextmanager
    def lend(self) -> Iterator[Child]:
        """Lend a process that has no other work. It is ended if it is lost or cancelled."""
        child = self._taken()
        try:
            child.hello()
            yield child
        except BaseException:
            child.end(kill=True)
            raise
        with self._lock:
            self._idle.append(child)

    def cancel(self, child: Child, number: int) -> None:  # noqa: ARG002 -- it has one request
        """End the process, which cannot end its work in another way."""
        child.kill()

    def _taken(self) -> Child:
        while True:
            with self._lock:
                child = self._idle.pop() if self._idle else None
            if child is None:
                return Child([sys.executable, "-m", "ratchet.runtime.compute.worker"], worker_environment(), "a worker process")
            if child.is_alive:
                return child
            child.end()


def worker_environment() -> dict[str, str]:
    """Return the environment of a worker. It computes with one thread, because there is a worker for each core."""
    return {**os.environ, **threads_of(1), "POLARS_MAX_THREADS": "1", "RAYON_NUM_THREADS": "1"}
