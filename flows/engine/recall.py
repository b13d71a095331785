"""Recalls versions and cycles that rest on erased rows: no further version is trained from them.

A recall changes neither the route nor the champion. Whether a recalled version goes on serving is the operator's decision.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from ratchet.contracts.cycle import Append, Lease
from ratchet.contracts.errors import Conflict, RatchetError
from ratchet.contracts.ids import Digest, line_stream
from ratchet.contracts.ports import Ledger
from ratchet.contracts.rows import Reason, row_of
from ratchet.contracts.steps import State
from ratchet.flows.core.decide import End
from ratchet.flows.core.folds.cycle import CycleView, fold_cycle
from ratchet.flows.core.folds.line import LineView
from ratchet.flows.engine.advance import end
from ratchet.flows.engine.context import LineContext
from ratchet.flows.engine.effects import job_of

_TRIES = 20
"""Tries to append rows to a line whose stream other processes write at the same time."""


@dataclass(frozen=True)
class Resting:
    """What rests on erased rows."""

    versions: dict[str, str]
    """Tag of a version -> why it is recalled."""
    cycle: str | None
    """Why the open cycle must end; None if it need not."""
    plans: tuple[Digest, ...]
    """The plans that contain such rows, or that start from such a version. Their run folders have copies."""


def resting(context: LineContext | None, ledger: Ledger, line: LineView, is_erased: Callable[[Digest], bool], reason: str) -> Resting:
    """Find the versions and the open cycle that rest on erased rows, also through their start models.

    `is_erased` returns whether an artifact contains such rows. `reason` is recorded with each version. `context` is None if the loop file
    of the line is not known.
    """
    versions: dict[str, str] = {}
    plans: list[Digest] = []
    stopped: str | None = None
    for stream in ledger.streams(f"cycle/{line.line}/"):
        cycle = fold_cycle(ledger.read(stream))
        touched = any(is_erased(key) for key in _inputs(context, cycle))
        why = reason if touched else None
        if why is None and cycle.given is None and cycle.start.tag in line.recalled.keys() | versions.keys():
            why = f"{reason}; it was trained from {cycle.start.tag}, which is recalled"
        if why is None:
            continue
        plans += [plan.id for plan in cycle.plans]
        if cycle.candidate is not None and cycle.candidate.tag not in line.recalled:
            versions[cycle.candidate.tag] = why
        if cycle.id == line.open_cycle:
            stopped = why
    return Resting(versions, stopped, tuple(plans))


def _inputs(context: LineContext | None, cycle: CycleView) -> tuple[Digest, ...]:
    """Return the data of a plan that its job reads; all of them if its job cannot be built any more, or names none."""
    plan = cycle.plan
    if plan is None:
        return ()
    data, read = plan.data, set[Digest]()
    if context is not None:
        with contextlib.suppress(RatchetError, KeyError):
            attempts = {1, *(one.trial.attempt for one in cycle.trials)}
            read = {key for attempt in attempts for key in job_of(context, cycle, attempt).inputs.values()}
    return tuple(key for key in data if key in read) or data


def recall(context: LineContext, lease: Lease, found: Resting) -> None:
    """Record the recalled versions and end the open cycle if it rests on erased rows. Repeated calls write no further rows.

    An open rollout is rolled back by its next tick, and the cycle then ends. The caller holds the line's lease.
    """
    for left in reversed(range(_TRIES)):
        line = context.line_view()
        rows = [row_of("recalled", Reason(reason=why), tag) for tag, why in found.versions.items() if tag not in line.recalled]
        if found.cycle is not None and line.open_cycle is not None and line.recall_asked is None:
            rows.append(row_of("recall_asked", Reason(reason=found.cycle), line.open_cycle))
        if not rows:
            break
        try:
            context.ledger.append([Append(stream=line_stream(line.line), after=line.seq, rows=tuple(rows))], lease, context.clock.now())
        except Conflict:
            if not left:
                raise
    line = context.line_view()
    if line.recall_asked is not None and line.open_cycle is not None:
        cycle = context.cycle_view(line.open_cycle)
        if cycle.state is not State.ROLLING:
            end(End(State.RECALLED, line.recall_asked), cycle, context, lease)
