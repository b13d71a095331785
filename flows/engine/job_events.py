"""Reads the event logs of ended jobs from the artifacts. A missing log leaves a gap in the curves, but never fails a cycle."""

from __future__ import annotations

import contextlib

from pydantic import TypeAdapter

from contracts.errors import RatchetError
from contracts.ports import Artifacts
from contracts.training import JobEvent
from flows.core.folds import CycleView
from flows.core.training_curves import Diaries

_EVENTS = TypeAdapter(list[JobEvent])


def read_diaries(cycle: CycleView, artifacts: Artifacts) -> Diaries:
    """Read the event logs of a cycle: attempt number to its events, from its newest ended incarnation with a readable log."""
    found: dict[int, list[JobEvent]] = {}
    for incarnation in cycle.incarnations:
        if incarnation.events is not None:
            with contextlib.suppress(RatchetError, ValueError):
                found[incarnation.attempt] = _EVENTS.validate_json(artifacts.get(incarnation.events))
    return found
