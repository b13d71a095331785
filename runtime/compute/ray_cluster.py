"""The engine of a Ray cluster. Ray itself is loaded by a process of its own (`ray_driver.py`), which the service outlives."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.runtime.compute.child_compute import IDLE_SECONDS, TRIES, ChildCompute
from ratchet.runtime.compute.children import Child, Lost
from ratchet.runtime.telemetry import NO_TELEMETRY

NO_OTHER_CLUSTER = {"RAY_ENABLE_AUTO_CONNECT": "0"}
"""Without this, Ray starts a cluster beside the service and gives it the work when the connection to the named one is lost."""


class RayCompute(ChildCompute):
    """`Compute` with tasks of the Ray cluster at `address`, `workers` of them at the same time.

    Ray repeats the task of a lost worker or node, `tries` times in all. If the process with the connection ends, a new one repeats its
    tasks. Raises ConfigError if Ray is not installed.
    """

    remedy = "look for the reason in the logs of the Ray nodes (a lack of memory, a lost node), then try again"

    def __init__(self, address: str, workers: int, tries: int = TRIES, idle: float = IDLE_SECONDS) -> None:
        missing = [name for name in ("ray", *(("grpc",) if address.startswith("ray://") else ())) if find_spec(name) is None]
        if missing:
            raise ConfigError(f'compute.engine = "ray" needs {" and ".join(missing)}; install ratchet[ray], or choose another engine')
        super().__init__(workers, tries, idle)
        self._address = address
        self._driver: Child | None = None

    def reach(self) -> str:
        """Return a sentence about the cluster as it is now. Raises Retryable if it cannot be reached."""
        driver = self._started()
        try:
            return driver.hello()
        except Lost as error:
            raise Retryable(self._away(error)) from error
        finally:
            driver.end(kill=True)

    def close(self) -> None:
        """End the connection."""
        with self._lock:
            driver, self._driver = self._driver, None
        if driver is not None:
            driver.end(kill=True)  # Ray ends its tasks, and a normal end would wait for the cluster

    @contextmanager
    def lend(self) -> Iterator[Child]:
        """Lend the process with the connection, which all workers share."""
        with self._lock:
            if self._driver is None or not self._driver.is_alive:
                if self._driver is not None:
                    self._driver.end(kill=True)
                self._driver = self._started()
            driver = self._driver
        try:
            driver.hello()
        except Lost as error:
            raise Retryable(self._away(error)) from error
        yield driver

    def cancel(self, child: Child, number: int) -> None:
        """Cancel the task."""
        child.cancel(number)

    def _started(self) -> Child:
        command = [sys.executable, "-m", "ratchet.runtime.compute.ray_driver", self._address, str(self.tries)]
        return Child(command, {**os.environ, **NO_TELEMETRY, **NO_OTHER_CLUSTER}, f"the Ray cluster at {self._address}")

    def _away(self, error: Lost) -> str:
        return (
            f"the Ray cluster at {self._address} cannot be reached (its driver was {error}); look at `ray status` there, or correct "
            "compute.address"
        )
