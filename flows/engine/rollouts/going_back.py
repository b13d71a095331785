"""Brings every session of a line back to the version to which a requested rollback returns, and says when that is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import rollout_stream
from ratchet.contracts.steps import State
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.folds.line import LineView
from ratchet.flows.engine.context import LineContext
from ratchet.flows.engine.reconcile import go_back
from ratchet.flows.engine.rollouts.rollout import tick

POLL = 0.05
"""Seconds between two looks at the route while another process carries the rollback out."""


@dataclass(frozen=True)
class Back:
    """Where a requested rollback leads."""

    tag: str
    """The version that every session returns to."""
    done: bool
    """Whether every session is answered by it."""


def target(line: LineView, open_cycle: CycleView | None) -> str | None:
    """Return the version to which a rollback returns that is requested at this view of the line; None if nothing serves.

    During a rollout, and without a previous version, that is the champion.
    """
    to = line.champion if line.previous is None or _rolls(open_cycle) else line.previous
    return to.tag if to else None


def bring_back(
    context: LineContext, tag: str, cycle_context: Callable[[CycleView], LineContext], seconds: float, tell: Callable[[str], None]
) -> Back:
    """Carry the requested rollback to version `tag` out, and wait at most `seconds` until every session is there.

    The service may do the same at the same time: whoever holds the lease does it, and the other waits. `cycle_context` opens the context
    of the open cycle, whose rollout then ends. `tell` receives why the call waits.
    """
    waited, told = 0.0, ""
    while True:
        line, cycle = _views(context)
        try:
            if line.rollback_asked and cycle is not None and _rolls(cycle):
                tick(rollout_stream(cycle.id), cycle_context(cycle))
            else:
                go_back(context)
        except Retryable as error:
            if str(error) != told:
                told = str(error)
                tell(f"waiting: {error}")
        if _is_back(context, tag):
            return Back(tag, True)
        if waited >= seconds:
            return Back(tag, False)
        context.clock.sleep(POLL)
        waited += POLL


def _is_back(context: LineContext, tag: str) -> bool:
    """Return whether every session is answered by version `tag`. The router reads its route for each request.

    If no router runs, there is no session, and it is enough that the ledger has no open request.
    """
    line, cycle = _views(context)
    route = context.router.read(context.line)
    if line.rollback_asked and line.previous is not None and not _rolls(cycle):
        return False
    if route is None:
        return not line.rollback_asked or not _rolls(cycle)
    return all(backend.tag == tag for backend in route.backends if backend.weight > 0)


def _views(context: LineContext) -> tuple[LineView, CycleView | None]:
    line = context.line_view()
    return line, context.cycle_view(line.open_cycle) if line.open_cycle else None


def _rolls(cycle: CycleView | None) -> bool:
    return cycle is not None and cycle.state is State.ROLLING
