"""Training curves from the event logs of ended jobs: all steps, and the steps that led to the accepted model.

A step may have run twice, after an interruption or in another attempt. `accepted_line` keeps the run that the final model is based on.
A missing log leaves a gap in the curves, but never fails a cycle.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from ratchet.contracts.errors import RatchetError
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobEvent, StepFigures
from ratchet.contracts.ports import Artifacts
from ratchet.contracts.schema import unstamped
from ratchet.flows.core.folds.cycle import CycleView

EventLogs = Mapping[int, Sequence[JobEvent]]
"""Maps an attempt number to its events, over all incarnations, in order."""

_EVENTS = TypeAdapter(list[JobEvent])


@dataclass(frozen=True)
class TrainingRun:
    """The optimiser steps of one incarnation."""

    attempt: int
    incarnation: int
    steps: tuple[StepFigures, ...]


@dataclass(frozen=True)
class Mark:
    """An event to show at a step of a training curve."""

    step: int
    kind: str
    """checkpoint | interruption | warning | attempt"""
    text: str
    """Text to show to the user."""


def read_event_logs(cycle: CycleView, artifacts: Artifacts) -> EventLogs:
    """Read the event logs of a cycle: attempt number to its events, from its newest ended incarnation with a readable log."""
    logs: dict[int, list[JobEvent]] = {}
    for incarnation in cycle.incarnations:
        if incarnation.events is not None:
            with contextlib.suppress(RatchetError, ValueError):
                logs[incarnation.attempt] = _EVENTS.validate_python(unstamped(artifacts.get(incarnation.events), "EventLog")["events"])
    return logs


def training_runs(logs: EventLogs) -> list[TrainingRun]:
    """List every incarnation that completed at least one step, in order."""
    found = []
    for attempt, events in sorted(logs.items()):
        for incarnation in sorted({event.incarnation for event in events}):
            steps = tuple(_figures(e) for e in events if e.incarnation == incarnation and e.kind == "progress")
            found += [TrainingRun(attempt, incarnation, steps)] if steps else []
    return found


def curve_marks(cycle: CycleView, logs: EventLogs) -> list[Mark]:
    """List checkpoints, interruptions, warnings and new attempts, each with its step."""
    found = []
    for attempt, events in sorted(logs.items()):
        name = f"attempt {attempt}"
        if attempt > 1:
            begun = cycle.begun(attempt, 1)
            found.append(Mark(begun.resume.step if begun and begun.resume else 0, "attempt", f"{name} starts"))
        found += [Mark(e.step, "checkpoint", f"{name}: checkpoint at step {e.step}") for e in events if e.kind == "checkpoint"]
        found += [Mark(e.step, "warning", f"{name}: {e.data.get('reason', '')}") for e in events if e.kind == "warning"]
        for ended in cycle.incarnations:
            if ended.attempt == attempt and ended.outcome in (Outcome.PREEMPTED, Outcome.LOST):
                last = max((e.step for e in events if e.incarnation == ended.number), default=0)
                found.append(Mark(last, "interruption", f"{name}, incarnation {ended.number}: {ended.outcome} after step {last}"))
    return found


def accepted_line(cycle: CycleView, logs: EventLogs, attempt: int) -> list[StepFigures]:
    """List the steps that led to an attempt's model, by step number.

    These are the attempt's own steps and, before them, the steps of the attempt it resumed from. If a step ran twice, the later run counts.
    """
    line = {event.step: _figures(event) for event in logs.get(attempt, ()) if event.kind == "progress"}
    begun = cycle.begun(attempt, 1)
    taken = begun.resume if begun else None
    if taken and taken.attempt < attempt:
        earlier = [step for step in accepted_line(cycle, logs, taken.attempt) if step.step <= taken.step]
        line = {step.step: step for step in earlier} | line
    return [line[step] for step in sorted(line)]


def _figures(event: JobEvent) -> StepFigures:
    numbers = {name: float(value) for name, value in event.data.items() if isinstance(value, int | float) and math.isfinite(value)}
    return StepFigures(step=event.step, at=event.at, figures=numbers)
