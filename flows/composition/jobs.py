"""Reads the events and the output of a cycle's training jobs, on this machine or on the cluster. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ratchet.contracts.jobs.training import JobEvent
from ratchet.flows.composition.artifacts import open_artifacts
from ratchet.flows.composition.cluster import job_logs
from ratchet.flows.composition.ports import open_executor
from ratchet.flows.config.home import Home
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.engine.choice.training_curves import read_event_logs


def job_events(cycle: CycleView, home: Home) -> dict[int, Sequence[JobEvent]]:
    """Return the events of a cycle's jobs: attempt number -> events of all its incarnations.

    Those of ended incarnations come from the artifacts. Raises RatchetError if those of a running job are out of reach.
    """
    found: dict[int, Sequence[JobEvent]] = dict(read_event_logs(cycle, open_artifacts(home)))
    newest = cycle.incarnations[-1] if cycle.incarnations else None
    if newest is not None and newest.outcome is None:
        executor = open_executor(cycle.loop, Path(cycle.opened.folder), home)
        found[newest.attempt] = executor.events(newest.job)
    return found


def job_output(cycle: CycleView, home: Home, lines: int) -> Iterator[str]:
    """Yield the last `lines` lines of the output of the cycle's newest job. A job writes them, so they may be anything."""
    newest = cycle.incarnations[-1] if cycle.incarnations else None
    if newest is None:
        return
    if cycle.loop.cluster is not None:
        yield from job_logs(cycle.loop, Path(cycle.opened.folder), home, newest.job, lines, follow=False)
        return
    from ratchet.local.executor import LocalExecutor

    yield f"{newest.job}, incarnation {newest.number}:"
    yield from LocalExecutor(home.jobs(cycle.line), home.artifacts).output(newest.job, newest.number, lines)
