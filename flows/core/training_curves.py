"""Reads training figures from job event logs: all steps, and the steps that led to the accepted model. Pure.

A step may have run twice, after an interruption or in another attempt. `accepted_line` keeps the run that the final model is based on.
Events are passed in as lists, one per attempt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.exit_codes import Outcome
from contracts.training import JobEvent, StepFigures
from flows.core.folds import CycleView, train_key

Diaries = Mapping[int, Sequence[JobEvent]]
"""Maps an attempt number to its events, over all incarnations, in order."""


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
    words: str
    """Text to show to the user."""


def runs(diaries: Diaries) -> list[TrainingRun]:
    """List every incarnation that completed at least one step, in order."""
    found = []
    for attempt, events in sorted(diaries.items()):
        for incarnation in sorted({event.incarnation for event in events}):
            steps = tuple(_figures(e) for e in events if e.incarnation == incarnation and e.kind == "progress")
            found += [TrainingRun(attempt, incarnation, steps)] if steps else []
    return found


def marks(cycle: CycleView, diaries: Diaries) -> list[Mark]:
    """List checkpoints, interruptions, warnings and new attempts, each with its step."""
    found = []
    for attempt, events in sorted(diaries.items()):
        who = f"attempt {attempt}"
        if attempt > 1:
            begins = cycle.done.get(train_key(attempt, 1), {}).get("resume")
            found.append(Mark(begins["step"] if begins else 0, "attempt", f"{who} starts"))
        found += [Mark(e.step, "checkpoint", f"{who}: checkpoint at step {e.step}") for e in events if e.kind == "checkpoint"]
        found += [Mark(e.step, "warning", f"{who}: {e.data.get('reason', '')}") for e in events if e.kind == "warning"]
        for ended in cycle.incarnations:
            if ended.attempt == attempt and ended.outcome in (Outcome.PREEMPTED, Outcome.LOST):
                last = max((e.step for e in events if e.incarnation == ended.number), default=0)
                found.append(Mark(last, "interruption", f"{who}, incarnation {ended.number}: {ended.outcome} after step {last}"))
    return found


def accepted_line(cycle: CycleView, diaries: Diaries, attempt: int) -> list[StepFigures]:
    """List the steps that led to an attempt's model, by step number.

    These are the attempt's own steps and, before them, the steps of the attempt it resumed from. If a step ran twice, the later run counts.
    """
    line = {event.step: _figures(event) for event in diaries.get(attempt, ()) if event.kind == "progress"}
    taken = cycle.done.get(train_key(attempt, 1), {}).get("resume")
    if taken and taken["attempt"] < attempt:
        earlier = [step for step in accepted_line(cycle, diaries, taken["attempt"]) if step.step <= taken["step"]]
        line = {step.step: step for step in earlier} | line
    return [line[step] for step in sorted(line)]


def _figures(event: JobEvent) -> StepFigures:
    numbers = {name: float(value) for name, value in event.data.items() if isinstance(value, int | float) and math.isfinite(value)}
    return StepFigures(step=event.step, at=event.at, figures=numbers)
