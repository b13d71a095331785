"""Folded cycles in a given state, for tests of decisions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ratchet.contracts.cycle import State
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.flows.core.folds.cycle import CycleView, Incarnation
from tests.simulation.simulated_line import loop_for

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def cycle(state: State, people: str = "yes", **fields: Any) -> CycleView:
    """Return the first cycle of the simulated line in a state, with `fields` of its view."""
    opened = {"line": "sim", "number": 1, "loop": loop_for(people).model_dump(mode="json")}
    values: dict[str, Any] = {"intended": frozenset(), "done": {}} | fields
    return CycleView(id="cycle/sim/0001", seq=1, state=state, opened=opened, opened_at=NOON, **values)


def training(*incarnations: Incarnation, **fields: Any) -> CycleView:
    """Return a cycle in training with these incarnations."""
    return cycle(State.ATTEMPT, incarnations=incarnations, **fields)


def run(attempt: int, number: int, outcome: Outcome | None = None) -> Incarnation:
    """Return an incarnation of the training job; it runs if `outcome` is None."""
    return Incarnation(attempt, number, "job", outcome, "because")
