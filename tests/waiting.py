"""Waits for conditions in tests with real processes. The limits are for failures only; no test measures them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from ratchet.contracts.jobs.training import JobStatus
from ratchet.contracts.ports import Executor

T = TypeVar("T")


def until(condition: Callable[[], T], seconds: float = 30.0, pause: float = 0.02, why: Callable[[], object] = lambda: "") -> T:
    """Wait until the condition returns a true value, and return it.

    Raises AssertionError with the text of `why` after `seconds` seconds. `pause` is the time between two calls in seconds.
    """
    limit = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < limit, f"the condition did not hold within {seconds:g} s: {why()}"
        time.sleep(pause)
    return found


def has_result(status: JobStatus) -> bool:
    """Return whether the job of this status has ended and its result is stored."""
    return status.outcome is not None


def job_until(
    executor: Executor, name: str, holds: Callable[[JobStatus], bool] = has_result, seconds: float = 30.0,
    why: Callable[[], object] = lambda: "", before: Callable[[], object] = lambda: None, reconcile: bool = True,
) -> JobStatus:  # fmt: skip
    """Reconcile and observe a job until its status holds, by default until its result is stored, and return that status.

    `before` is called before each observation. Without `reconcile` the job is only observed.
    Raises AssertionError with the last status and the text of `why` after `seconds` seconds.
    """
    last: list[JobStatus] = []

    def held() -> bool:
        before()
        if reconcile:
            executor.reconcile(name)
        last[:] = [executor.observe(name)]
        return holds(last[0])

    until(held, seconds, why=lambda: f"the last status is {last[0]}; {why()}")
    return last[0]
