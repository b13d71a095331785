"""Reads the diaries that ended jobs left in the artifacts. A diary that is gone makes a picture poorer, never a cycle fail."""

from __future__ import annotations

import contextlib

from pydantic import TypeAdapter

from contracts.errors import RatchetError
from contracts.ports import Artifacts
from contracts.training import JobEvent
from flows.core.diary import Diaries
from flows.core.views import CycleView

_EVENTS = TypeAdapter(list[JobEvent])


def read_diaries(cycle: CycleView, artifacts: Artifacts) -> Diaries:
    """Attempt -> its events, as its newest ended incarnation left them."""
    found: dict[int, list[JobEvent]] = {}
    for incarnation in cycle.incarnations:
        if incarnation.events is not None:
            with contextlib.suppress(RatchetError, ValueError):
                found[incarnation.attempt] = _EVENTS.validate_json(artifacts.get(incarnation.events))
    return found
