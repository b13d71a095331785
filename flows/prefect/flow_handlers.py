"""Flow handlers: the blocking work behind each Prefect flow.

This module does not import Prefect, so tests can call each handler directly. The handlers decide how long to wait. The engine decides
the next step of a cycle.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from contracts.cycle import Answer, State
from contracts.data.datasets import IngestReport
from contracts.errors import RatchetError, Rejected, Retryable
from contracts.ids import cycle_stream, rollout_stream
from contracts.ports import Ledger
from flows.composition.anchors import open_anchors
from flows.composition.installation import Installation
from flows.core.decide import Decision, End, Wait, decide
from flows.core.folds import ApprovalView, CycleView, fold_approval
from flows.core.rollout import Finish, Hold
from flows.engine.advance import observe
from flows.engine.context import LineContext
from flows.engine.ingest import ingest
from flows.engine.line import answer, open_if_due
from flows.engine.reconcile import reconcile
from flows.engine.rollout import tick
from flows.engine.work import pull_spool, turn

_TRAINS = (State.TRAINING_APPROVED, State.ATTEMPT)


@dataclass(frozen=True)
class LineStatus:
    """The status of a line after a flow handler has run."""

    summary: str
    """A summary for users; it becomes the final message of the Prefect run."""
    next: str | None = None
    """The flow to start now: `retrain` or `rollout`. None if no progress is possible until an external condition changes."""
    cycle: str | None = None
    """Id of the cycle that the summary describes; None if it describes none."""
    seq: int = 0
    """Sequence number of the cycle's newest ledger row; part of the idempotency key of the next run."""


def run_ingest(installation: Installation, loop: Path) -> IngestReport:
    """Ingest all sources of a line once and return the record counts."""
    return ingest(installation.context(loop))


def run_retrain(installation: Installation, loop: Path, scheduled: bool, timeout: float, poll: float = 1.0) -> LineStatus:
    """Open a cycle if one is due, and advance the open cycle as far as possible.

    While the cycle is training, the handler checks it every `poll` seconds until `timeout` seconds have passed. `scheduled` says
    whether the cron schedule started this run. Temporary failures are reported in the returned progress, not raised.
    """
    context = installation.context(loop)
    opened = context.line_view().open_cycle
    if opened is None:
        opened, why = open_if_due(context, scheduled)
        if opened is None:
            return LineStatus(f"no cycle opened: {why}")
    started = context.clock.now()
    while True:
        decision = _turn(installation, context.cycle_view(opened))
        cycle = context.cycle_view(opened)
        waited = (context.clock.now() - started).total_seconds()
        if cycle.state not in _TRAINS or waited > timeout:
            return _line_status(cycle, decision, "rollout" if cycle.state is State.ROLLING else None)
        context.clock.sleep(poll)


def _turn(installation: Installation, cycle: CycleView) -> Decision:
    try:
        return turn(installation.cycle_context(cycle), cycle)
    except Retryable as error:
        return Wait(str(error))


def _line_status(cycle: CycleView, decision: Decision, following: str | None) -> LineStatus:
    what = f"{cycle.id} is in state {cycle.state}"
    if isinstance(decision, End):
        return LineStatus(f"{cycle.id} ended {decision.state}: {decision.reason}", None, cycle.id, cycle.seq)
    if isinstance(decision, Wait):
        what += f", waiting: {decision.reason}"
    return LineStatus(what, following, cycle.id, cycle.seq)


def run_rollout(installation: Installation, loop: Path, seconds: float, poll: float = 5.0) -> LineStatus:
    """Evaluate and advance the open rollout every `poll` seconds, until it ends or `seconds` have passed.

    When the rollout ends, the cycle continues immediately.
    """
    context = installation.context(loop)
    opened = context.line_view().open_cycle
    if opened is None or context.cycle_view(opened).state is not State.ROLLING:
        return LineStatus("no open rollout")
    started = context.clock.now()
    frozen = installation.cycle_context(context.cycle_view(opened))
    while True:
        outcome, ended = _tick(frozen, opened)
        if ended:
            return _line_status(context.cycle_view(opened), _turn(installation, context.cycle_view(opened)), None)
        if (context.clock.now() - started).total_seconds() > seconds:
            return LineStatus(f"{rollout_stream(opened)}: {outcome}", None, opened, context.cycle_view(opened).seq)
        context.clock.sleep(poll)


def _tick(context: LineContext, cycle: str) -> tuple[str, bool]:
    """Run one rollout tick; return the decision as text and whether the rollout has ended."""
    try:
        pull_spool(context)
        decision = tick(rollout_stream(cycle), context)
    except Retryable as error:
        return f"waiting: {error}", False
    match decision:
        case Finish(end, reason):
            return f"{end}: {reason}", True
        case Hold(reason):
            return f"unchanged: {reason}", False
        case moved:
            return f"candidate weight set to {moved.weight:g} %", False


def run_reconcile(installation: Installation, loop: Path) -> tuple[list[str], LineStatus]:
    """Reconcile derived copies with the ledger, ingest the receiver's spool, and determine which flow the open cycle needs next.

    Returns the repairs as messages, and the progress of the open cycle.
    """
    context = installation.context(loop)
    repairs = reconcile(context)
    pull_spool(context)
    line = context.line_view()
    if line.open_cycle is None:
        last = cycle_stream(line.line, line.cycles) if line.plan_again else None
        return repairs, LineStatus("no open cycle", "retrain" if last else None, last, line.seq)
    return repairs, _needs(installation, context.cycle_view(line.open_cycle))


def export_heads(installation: Installation) -> list[str]:
    """Export the signed heads of the ledger if they have changed. Return a message if that was not possible."""
    try:
        open_anchors(installation.home).export(installation.ledger, datetime.now(UTC))
    except RatchetError as error:
        return [f"could not export the ledger's heads: {error}"]
    return []


def _needs(installation: Installation, cycle: CycleView) -> LineStatus:
    """Compute the next decision without executing it, because a waiting cycle needs no process."""
    context = installation.cycle_context(cycle)
    decision = decide(cycle, observe(cycle, context), context.clock.now())
    if isinstance(decision, End):
        return LineStatus(f"{cycle.id} is to end {decision.state}: {decision.reason}", "retrain", cycle.id, cycle.seq)
    if not isinstance(decision, Wait):
        return _line_status(cycle, decision, "retrain")
    return _line_status(cycle, decision, "rollout" if cycle.state is State.ROLLING else None)


def request_view(ledger: Ledger, request: str) -> ApprovalView:
    """Return the approval request with the id `request`. Raises Rejected if the ledger does not contain it."""
    rows = ledger.read(request)
    if not rows:
        raise Rejected("no_request", f"no {request} in the ledger; `ratchet status` lists pending requests")
    return fold_approval(rows)


def closed_reason(view: ApprovalView, now: datetime | None = None) -> str | None:
    """Return a sentence on how the request was closed, or None while it is pending. `now` defaults to the current time."""
    if view.answer is not None:
        return f"{view.answer.actor} {'approved' if view.answer.approve else 'rejected'} it via {view.answer.via}"
    if view.expired or (now or datetime.now(UTC)) >= view.expires:
        return f"closed without an answer: it expired at {view.expires:%Y-%m-%d %H:%M} UTC, or its cycle ended first"
    return None


def record_answer(ledger: Ledger, request: str, given: Answer) -> str:
    """Write the answer to the ledger and return the resulting status of the request as text. The first answer counts."""
    stands, ours = answer(ledger, request_view(ledger, request), given, datetime.now(UTC))
    if ours:
        return f"{given.actor} {'approved' if given.approve else 'rejected'} it via {given.via}"
    return f"answer not accepted: {closed_reason(request_view(ledger, request)) if stands else 'the request has expired'}"
