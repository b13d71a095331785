"""MLflow in a process of its own, which ends after a minute without a call.

MLflow takes 80 to 130 MB, is needed a few times per cycle, and cannot be unloaded. So the service does not load it.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import Retryable
from ratchet.contracts.jobs.training import StepFigures
from ratchet.contracts.serving import ModelVersion
from ratchet.gates.registry import MlflowRegistry, stored_aliases

IDLE_SECONDS = 60.0
"""Seconds without a call after which the process ends."""


class ProcessRegistry:
    """`Registry` at an MLflow tracking URI, used by another process. Arguments and errors are those of `MlflowRegistry`."""

    def __init__(self, uri: str, folder: Path) -> None:
        self._uri = uri
        self._folder = folder

    def register(
        self,
        version: ModelVersion,
        folder: Path,
        tags: Mapping[str, str],
        metrics: Mapping[str, float],
        steps: Sequence[StepFigures] = (),
    ) -> str:
        """Register the version with its tags, metrics and training curves, once per version tag."""
        return str(self._call("register", version, folder, dict(tags), dict(metrics), list(steps)))

    def alias(self, line: str, alias: str, tag: str) -> None:
        """Set the alias of the line. Raises `Retryable` if the version is not registered yet."""
        self._call("alias", line, alias, tag)

    def aliases(self, line: str) -> dict[str, str]:
        """Return alias -> version tag. Returns an empty dictionary for an unknown line."""
        stored = stored_aliases(self._uri, line)
        return stored if stored is not None else dict(self._call("aliases", line))

    def _call(self, method: str, *arguments: Any) -> Any:
        return _worker().call(self._uri, self._folder, method, arguments)


class _Worker:
    """The process, started at the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ProcessPoolExecutor | None = None
        self._end: threading.Timer | None = None

    def call(self, uri: str, folder: Path, method: str, arguments: tuple[Any, ...]) -> Any:
        """Return what the method returns. Raises what it raises, and Retryable if the process died."""
        with self._lock:
            if self._end is not None:
                self._end.cancel()
            if self._pool is None:  # a process that was forked would begin with the memory and the locks of this one
                self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _leave_ctrl_c_to_the_parent)
            try:
                return self._pool.submit(_called, uri, folder, method, arguments).result()
            except BrokenProcessPool as error:
                self._pool = None
                raise Retryable(f"the process that uses the registry died: {error}; it is started again") from error
            finally:
                self._end = threading.Timer(IDLE_SECONDS, self._close)
                self._end.daemon = True
                self._end.start()

    def _close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)


@lru_cache(maxsize=1)
def _worker() -> _Worker:
    """Return the worker that all lines of this process share."""
    return _Worker()


def _leave_ctrl_c_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process ends with its parent


def _called(uri: str, folder: Path, method: str, arguments: tuple[Any, ...]) -> Any:
    """Call a method of `MlflowRegistry`. Runs in the process of MLflow."""
    return getattr(MlflowRegistry(uri, folder), method)(*arguments)
