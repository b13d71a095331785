"""Runs cycle flows in this process with Prefect's engine: one thread and one event loop for each run.

One loop for all runs would not do: the engine blocks its loop while a run starts and ends, and for longer while the API is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from uuid import UUID

from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import Abort, Pause
from prefect.flow_engine import run_flow

from ratchet.flows.prefect.cycle.cycle_flow import retrain
from ratchet.flows.prefect.cycle.host import Host
from ratchet.flows.service.memory import give_back


class _Expected(logging.Filter):
    """Corrects what the engine logs as an error although it is normal.

    A run that waits for a person or for the service leaves the engine, and comes back. A cancelled run or task is the end of a cycle
    that somebody cancelled or for which there was not enough evidence.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is to be logged. Set the level of a cancellation to INFO."""
        text = record.getMessage()
        if text.startswith("Finished in state Cancelled"):
            record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        return not text.startswith(("Finished in state Suspended", "Finished in state AwaitingRetry"))


class Carriers:
    """The runs that this process carries. `say` receives unexpected errors, `suspended` the line of a run that has left to wait."""

    def __init__(self, host: Host, say: Callable[[str], None], suspended: Callable[[str], None]) -> None:
        self._host = host
        self._say = say
        self._suspended = suspended
        self._threads: dict[UUID, threading.Thread] = {}
        self._lock = threading.Lock()
        for name in ("prefect.flow_runs", "prefect.task_runs"):
            logging.getLogger(name).addFilter(_Expected())

    def carries(self, run: UUID) -> bool:
        """Return whether this process carries the run."""
        with self._lock:
            return run in self._threads

    def start(self, run: FlowRun) -> None:
        """Carry a run, which Prefect has set to Pending, in a new thread."""
        thread = threading.Thread(target=self._carry, args=(run,), name=f"run {run.name}", daemon=True)
        with self._lock:
            self._threads[run.id] = thread
        thread.start()

    def stop(self, seconds: float) -> None:
        """Wait at most `seconds` until all runs have left. The caller has set `Host.stopping`."""
        for cycle in list(self._host.carried):
            self._host.wake(cycle)
        until = time.monotonic() + seconds
        for thread in list(self._threads.values()):
            thread.join(max(0.0, until - time.monotonic()))

    def _carry(self, run: FlowRun) -> None:
        waits = False
        try:
            with contextlib.suppress(Abort):
                asyncio.run(_execute(run))
        except Pause as error:
            waits = error.state is not None and error.state.is_paused()
        except BaseException as error:  # the desk finds the cycle without a run that carries it, and schedules the run again
            self._say(f"the run {run.name} ended with {type(error).__name__}: {error}")
        finally:
            with self._lock:
                self._threads.pop(run.id, None)
            for cycle, carrier in list(self._host.carried.items()):
                if carrier == str(run.id):
                    self._host.forget(cycle)
            if waits:
                self._suspended(str(run.parameters["line"]))
            give_back()


async def _execute(run: FlowRun) -> None:
    result = run_flow(retrain, flow_run=run, return_type="state")
    assert asyncio.iscoroutine(result)
    await result
