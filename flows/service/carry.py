"""Carries an open cycle through one step: advances it until the step is over, or until it has to wait."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ratchet.contracts.errors import Conflict, Fenced, Leased, Retryable
from ratchet.contracts.jobs.training import JobState
from ratchet.contracts.ports import Progress
from ratchet.contracts.steps import Step
from ratchet.flows.composition.installation import Installation
from ratchet.flows.core.decide import End, Wait, decide
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.steps import step_of
from ratchet.flows.engine.advance import advance, observe
from ratchet.flows.engine.context import process_holder
from ratchet.flows.engine.reconcile import reconcile


@dataclass(frozen=True)
class Position:
    """Where a cycle is after a call."""

    cycle: CycleView
    step: Step | None
    """The step that the cycle is at; None if it has ended."""
    waits: str = ""
    """What the step waits for; empty if the cycle can go on."""
    failed: bool = False
    """Whether the step waits because its effect failed and is to be tried again."""


def position(installation: Installation, cycle: str) -> Position:
    """Return where a cycle is, from the ledger alone. `cycle` is its stream. Changes nothing."""
    _, line, number = cycle.split("/")
    view = installation.cycle(line, int(number))
    if view is None:
        raise Retryable(f"{cycle} is not in the ledger")
    return Position(view, step_of(view, installation.rollout(cycle)))


def look(installation: Installation, cycle: str, step: Step) -> Position | None:
    """Return where a cycle is if it still waits at `step`, or None if `carry` has something to do. Changes nothing and needs no lease."""
    now = position(installation, cycle)
    if now.step is not step:
        return now
    context = installation.cycle_context(now.cycle)
    try:
        seen = observe(now.cycle, context)
    except Retryable as error:
        return replace(now, waits=str(error))
    decision = decide(now.cycle, seen, context.clock.now())
    ended = seen.job is not None and seen.job.state is JobState.ENDED
    return replace(now, waits=decision.reason) if isinstance(decision, Wait) and not ended else None


def carry(installation: Installation, cycle: str, step: Step, progress: Progress) -> Position:
    """Advance a cycle while it is at `step` and can go on. Return where it is then.

    Runs in the caller's thread and may take as long as the step's effect. The thread is the holder of the line's lease, so that two
    threads of the service exclude each other as two processes do. `progress` receives what the effect reports. Temporary failures, a
    lease of another process among them, are returned as `waits`.
    """
    while True:
        now = position(installation, cycle)
        if now.step is not step:
            return now
        context = replace(installation.cycle_context(now.cycle), progress=progress, holder=process_holder())
        try:
            decision = advance(cycle, context)
        except (Conflict, Fenced, Leased) as error:
            return replace(now, waits=str(error))
        except Retryable as error:
            return replace(now, waits=str(error), failed=True)
        if isinstance(decision, End):
            reconcile(context)
        elif isinstance(decision, Wait):
            return replace(position(installation, cycle), waits=decision.reason)
