"""One turn of the service for one line: ingest traces, advance the open cycle and its rollout, and reconcile when the cycle ends."""

from __future__ import annotations

from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import rollout_stream
from ratchet.contracts.moment import seconds_between
from ratchet.contracts.steps import State
from ratchet.flows.core.decide import Decision, End, Wait
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.rollouts.rollout import Hold
from ratchet.flows.engine.advance import advance
from ratchet.flows.engine.context import LineContext
from ratchet.flows.engine.ingest import ingest
from ratchet.flows.engine.reconcile import reconcile
from ratchet.flows.engine.rollouts.rollout import tick


def pull_spool(context: LineContext) -> None:
    """Ingest the receiver's spool into the lake, because a rollout needs it as evidence.

    A Retryable error, for example because another process ingests now, is only shown as progress.
    """
    kinds = {source.name: source.kind for source in context.loop.sources}
    spools = [source for source in context.sources if kinds[source.name] == "receiver"]
    if spools:
        try:
            ingest(context, spools)
        except Retryable as error:
            context.progress(f"ingest is waiting: {error}", 0, 0)


def turn(context: LineContext, cycle: CycleView) -> Decision:
    """Advance a cycle as far as possible without waiting, and tick its rollout until it holds. Return the last decision.

    `context` is the context of the cycle, with the loop content that was stored when it was opened. When the cycle ends, the derived
    copies are reconciled before the return.
    """
    while True:
        decision = advance(cycle.id, context)
        if isinstance(decision, End):
            reconcile(context)
            return decision
        if not isinstance(decision, Wait):
            continue
        if context.cycle_view(cycle.id).state is not State.ROLLING:
            return decision
        pull_spool(context)
        step = tick(rollout_stream(cycle.id), context)
        if isinstance(step, Hold):
            return Wait(f"the rollout: {step.reason}")


def run_to_end(context: LineContext, cycle: CycleView, seconds: float, poll: float = 1.0) -> Decision:
    """Run turns until the cycle ends or `seconds` have passed. Return the last decision.

    `context` is the context of the cycle, as for `turn`. Retryable errors are retried. `poll` is the pause in seconds between two turns.
    """
    started = context.clock.moment()
    while True:
        try:
            decision = turn(context, cycle)
        except Retryable as error:
            decision = Wait(str(error))
        if isinstance(decision, End):
            return decision
        context.progress(f"{cycle.id} waits: {decision.reason}" if isinstance(decision, Wait) else str(decision), 0, 0)
        if seconds_between(started, context.clock.moment()) >= seconds:
            return decision
        context.clock.sleep(poll)
