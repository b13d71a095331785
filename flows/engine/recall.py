"""Recalls versions and cycles that rest on erased rows: no further version is trained from them.

A recall changes neither the route nor the champion. Whether a recalled version goes on serving is the operator's decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from contracts.cycle import Append, Lease, Row, State
from contracts.errors import Conflict
from contracts.ids import Digest, line_stream
from contracts.jobs.training import Method, TrainingPlan
from contracts.ports import Ledger
from contracts.serving import ModelVersion
from flows.core.decide import End
from flows.core.folds import CycleView, LineView, fold_cycle
from flows.engine.advance import end
from flows.engine.context import LineContext

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


def inputs_of(plan: TrainingPlan) -> tuple[Digest, ...]:
    """Return the artifacts on which the method of a plan trains."""
    return {
        Method.SFT: (plan.demonstrations,),
        Method.DPO: (plan.pairs, plan.demonstrations),
        Method.GRPO: (plan.prompts,),
        Method.NONE: (),
    }[plan.method]


def resting(ledger: Ledger, line: LineView, is_erased: Callable[[Digest], bool], reason: str) -> Resting:
    """Find the versions and the open cycle that rest on erased rows, also through their start models.

    `is_erased` returns whether an artifact contains such rows. `reason` is recorded with each version.
    """
    versions: dict[str, str] = {}
    plans: list[Digest] = []
    stopped: str | None = None
    for stream in ledger.streams(f"cycle/{line.line}/"):
        cycle = fold_cycle(ledger.read(stream))
        why = _why(cycle, line.recalled.keys() | versions.keys(), is_erased, reason)
        if why is None:
            continue
        if cycle.plan is not None:
            plans.append(cycle.plan.id)
        if cycle.candidate is not None and cycle.candidate.tag not in line.recalled:
            versions[cycle.candidate.tag] = why
        if cycle.id == line.open_cycle:
            stopped = why
    return Resting(versions, stopped, tuple(plans))


def _why(cycle: CycleView, recalled: set[str], is_erased: Callable[[Digest], bool], reason: str) -> str | None:
    if cycle.plan is not None and any(is_erased(key) for key in inputs_of(cycle.plan)):
        return reason
    if cycle.start.tag in recalled:
        return f"{reason}; it was trained from {cycle.start.tag}, which is recalled"
    return None


def recall(context: LineContext, lease: Lease, found: Resting) -> None:
    """Record the recalled versions and end the open cycle if it rests on erased rows. Repeated calls write no further rows.

    An open rollout is rolled back by its next tick, and the cycle then ends. The caller holds the line's lease.
    """
    for left in reversed(range(_TRIES)):
        line = context.line_view()
        rows = [Row(kind="recalled", key=tag, data={"reason": why}) for tag, why in found.versions.items() if tag not in line.recalled]
        if found.cycle is not None and line.open_cycle is not None and line.recall_asked is None:
            rows.append(Row(kind="recall_asked", key=line.open_cycle, data={"reason": found.cycle}))
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


def clean_ancestor(ledger: Ledger, line: LineView, version: ModelVersion) -> ModelVersion:
    """Return the version, or its newest ancestor that is not recalled. The adopted model is never recalled."""
    while version.tag in line.recalled and version.cycle is not None:
        version = fold_cycle(ledger.read(version.cycle)).start
    return version
