"""Advances an open cycle: reconcile its job, observe, decide, perform, record.

After a crash at any point, the next call takes the same decision again and continues from the recorded rows.
"""

from __future__ import annotations

import traceback
from dataclasses import replace
from datetime import datetime

from ratchet.contracts.cycle import Append, ApprovalKind, Lease, Row
from ratchet.contracts.errors import Conflict, Fenced, Inconclusive, NewerRelease, Permanent, Retryable, Unreachable
from ratchet.contracts.ids import approval_stream, line_stream, rollout_stream
from ratchet.contracts.jobs.training import JobEvent, Proposal, ResumePoint
from ratchet.contracts.moment import seconds_between
from ratchet.contracts.rows import Asked, CycleEnd, EffectIntended, FailedTry, JobEnd, NewChampion, Reason, RolledBack, row_of
from ratchet.contracts.schema import stamped
from ratchet.contracts.steps import State, Step
from ratchet.flows.core.decide import (
    AcceptStep,
    Ask,
    BeginTrial,
    Choose,
    Decision,
    Do,
    End,
    EndTrial,
    JobEnded,
    Observation,
    RecordAnswer,
    Wait,
    decide,
)
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.requests import fold_approval
from ratchet.flows.core.steps import next_step
from ratchet.flows.engine.choice.search import begun, trial_end
from ratchet.flows.engine.context import LineContext, leased
from ratchet.flows.engine.effects import EFFECTS, job_of
from ratchet.flows.engine.evidence import approval_evidence


def advance(cycle_id: str, context: LineContext) -> Decision:
    """Run one turn of a cycle under the line's lease. Return the decision, which has been performed and recorded.

    For an ended cycle, return its `End` and change nothing. Raises Retryable if another living process holds the line's lease.
    """
    with leased(context, "the open cycle") as lease:
        while True:
            cycle = context.cycle_view(cycle_id)
            if cycle.ended:
                return End(cycle.state, cycle.reason)
            if (job := _running_job(cycle)) is not None:
                context.executor.reconcile(job)
            decision = decide(cycle, observe(cycle, context), context.clock.now())
            record(decision, cycle, context, lease)
            if not isinstance(decision, End):
                return decision  # read an end back: another process may have written a row that prevented it


def drive(cycle_id: str, context: LineContext, timeout: float = 0.0, poll: float = 0.5) -> Decision:
    """Advance until the cycle ends, or until it has only waited for `timeout` seconds. Return the last decision.

    `poll` is the pause in seconds between two turns while the cycle waits.
    """
    since = context.clock.moment()
    while True:
        decision = advance(cycle_id, context)
        if isinstance(decision, End):
            return decision
        if not isinstance(decision, Wait):
            since = context.clock.moment()
        elif seconds_between(since, context.clock.moment()) >= timeout:
            return decision
        else:
            context.clock.sleep(poll)


def observe(cycle: CycleView, context: LineContext) -> Observation:
    """Collect the outside observations that the cycle's current state needs. Changes nothing and needs no lease."""
    line = context.line_view()
    outside = Observation(
        rollback_asked=line.rollback_asked,
        cancel_asked=line.cancel_asked,
        recall_asked=line.recall_asked,
        code=context.code,
        champion=line.champion.tag if line.champion else "",
    )
    match next_step(cycle, is_rolled_out=False):
        case Step.APPROVE_TRAINING | Step.APPROVE_ROLLOUT:
            views = [fold_approval(context.ledger.read(approval_stream(cycle.id, kind))) for kind in cycle.asked]
            return replace(outside, answers={view.kind: view.answer for view in views if view.answer})
        case Step.TRAIN if (job := _running_job(cycle)) is not None:
            status = context.executor.observe(job)
            return replace(outside, job=status, saved=_saved(cycle, context, status.proposal))
        case Step.ROLL_OUT | None if cycle.has(Step.ROLL_OUT):  # None: promoted, and the end of the cycle states the rollout's reason
            rollout = context.rollout_view(rollout_stream(cycle.id))
            return replace(outside, rollout=(rollout.end, rollout.reason) if rollout and rollout.end else None)
        case _:
            return outside


TEXT_LENGTH = 500
"""Maximum number of characters of a path or a digest in an event."""


def _running_job(cycle: CycleView) -> str | None:
    """Return the name of the job whose end the cycle has not recorded yet, or None."""
    newest = cycle.incarnations[-1] if cycle.incarnations else None
    return newest.job if newest is not None and newest.outcome is None else None


def _saved(cycle: CycleView, context: LineContext, asked: Proposal | None) -> ResumePoint | None:
    """Return the newest checkpoint that the current incarnation reports, or None.

    If the job failed with a proposal, only checkpoints up to the last good step count. Checkpoints from stale incarnations are ignored.
    """
    now = cycle.incarnations[-1]
    events = [e for e in context.executor.events(now.job) if e.kind == "checkpoint" and e.incarnation == now.number]
    events = [e for e in events if (asked is None or e.step <= asked.good) and _names_a_checkpoint(e)]
    if not events:
        return None
    newest = events[-1]
    return ResumePoint(
        attempt=now.attempt,
        incarnation=now.number,
        step=newest.step,
        path=newest.data["path"],
        manifest=newest.data["manifest"],
    )


def _names_a_checkpoint(event: JobEvent) -> bool:
    """Return whether a checkpoint event has the path and the manifest. A job writes the events, so they may be missing."""
    texts = (event.data.get("path"), event.data.get("manifest"))
    return all(isinstance(text, str) and 0 < len(text) <= TEXT_LENGTH and text.isprintable() for text in texts)


def record(decision: Decision, cycle: CycleView, context: LineContext, lease: Lease) -> None:
    """Perform a decision and write its rows to the ledger."""
    match decision:
        case Do():
            _do(decision, cycle, context, lease)
        case Ask(kind, expires):
            _ask(kind, expires, cycle, context, lease)
        case RecordAnswer(kind, answer):
            _append(context, lease, cycle, row_of("answered", answer, kind))
        case JobEnded():
            _job_ended(decision, cycle, context, lease)
        case AcceptStep(resume):
            _append(context, lease, cycle, row_of("step_accepted", resume, str(resume.step)))
            if context.executor.restarts:
                context.executor.pin(job_of(context, cycle, resume.attempt), resume)
        case BeginTrial(trial):
            _append(context, lease, cycle, row_of("trial_intended", begun(cycle, trial), str(trial.number)))
        case EndTrial(failed):
            _append(context, lease, cycle, row_of("trial_ended", trial_end(context, cycle, failed), str(cycle.trials[-1].trial.number)))
        case Choose(chosen):
            _append(context, lease, cycle, row_of("chosen", chosen, str(chosen.trial)))
        case End():
            end(decision, cycle, context, lease)
        case Wait():
            pass


def _job_ended(ended: JobEnded, cycle: CycleView, context: LineContext, lease: Lease) -> None:
    """Record the end of an incarnation, its proposal and its event log.

    The event log becomes an artifact, because reports and the registry need it after the run folder is deleted.
    """
    events = context.executor.events(cycle.incarnations[-1].job)
    content = JobEnd(
        attempt=ended.attempt,
        incarnation=ended.incarnation,
        outcome=ended.outcome,
        reason=ended.reason,
        successor=ended.successor,
        usage=ended.usage,
        proposal=ended.proposal,
        events=context.artifacts.put(stamped({"events": [event.model_dump(mode="json") for event in events]})) if events else None,
    )
    _append(context, lease, cycle, row_of("job_ended", content, f"{ended.attempt}/{ended.incarnation}"))


def _append(context: LineContext, lease: Lease, cycle: CycleView, *rows: Row) -> None:
    context.ledger.append([Append(stream=cycle.id, after=cycle.seq, rows=rows)], lease, context.clock.now())


def _do(effect: Do, cycle: CycleView, context: LineContext, lease: Lease) -> None:
    """Write `intended`, run the effect, write `done`.

    A permanent failure or missing evidence ends the cycle. A retryable failure is recorded and retried without a limit.
    After any other exception, the effect is tried at most UNFORESEEN_TRIES times in all, and at most UNREACHABLE_TRIES times if a model
    server ends during it: a model that brings its server down must not be tried for ever.
    """
    if effect.key not in cycle.intended:
        _append(context, lease, cycle, row_of("intended", EffectIntended(adjustment=effect.adjustment), effect.key))
        cycle = context.cycle_view(cycle.id)
    try:
        result = EFFECTS[effect.step](context, cycle, effect.key)
    except (Conflict, Fenced, NewerRelease):
        raise  # another process or release owns the rows: write nothing; the next turn reads them and decides again
    except Inconclusive as error:
        return end(End(State.HELD, f"{effect.step}: {error}"), cycle, context, lease)
    except Permanent as error:
        return end(End(State.FAILED, f"{effect.step}: {error}"), cycle, context, lease)
    except Unreachable as error:
        return _unreachable(effect, error, cycle, context, lease)
    except Retryable as error:
        if cycle.tries.get(effect.key, ("",))[-1] != _brief(str(error)):
            _tried(effect, _brief(str(error)), cycle, context, lease)
        raise
    except Exception as error:
        return _unforeseen(effect, error, cycle, context, lease)
    _append(context, lease, cycle, row_of("done", result, effect.key))
    return None


UNFORESEEN_TRIES = 3
"""Number of unexpected exceptions in one effect after which the cycle ends as failed."""


UNREACHABLE_TRIES = 10
"""Number of times that a model server may end during one effect. With the pauses of the service, the tries take about seven minutes."""
_AWAY = "a model server ended"


def unforeseen(error: Exception) -> str:
    """Return the type and the place of an unexpected exception, but not its message, because the message may quote a user."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"unforeseen {type(error).__name__} at {place.filename.rsplit('/', 2)[-2]}/{place.name}:{place.lineno}"


def _unforeseen(effect: Do, error: Exception, cycle: CycleView, context: LineContext, lease: Lease) -> None:
    """Handle a defect in this service or in a library, which the row records by its type and place."""
    message = unforeseen(error)
    tries = sum(word.startswith("unforeseen") for word in cycle.tries.get(effect.key, ())) + 1
    if tries >= UNFORESEEN_TRIES:
        return end(End(State.FAILED, f"{effect.step}: {message}, {tries} times"), cycle, context, lease)
    _tried(effect, message, cycle, context, lease)
    raise Retryable(f"{effect.step}: {message}; tried {tries} of {UNFORESEEN_TRIES} times") from error


def _unreachable(effect: Do, error: Unreachable, cycle: CycleView, context: LineContext, lease: Lease) -> None:
    """Handle a model server that ended during the effect. The next try starts it again."""
    tries = sum(word.startswith(_AWAY) for word in cycle.tries.get(effect.key, ())) + 1
    if tries >= UNREACHABLE_TRIES:
        return end(End(State.FAILED, f"{effect.step}: {error}, {tries} times"), cycle, context, lease)
    _tried(effect, f"{_AWAY} (try {tries} of {UNREACHABLE_TRIES}): {error}", cycle, context, lease)
    raise error


def _tried(effect: Do, message: str, cycle: CycleView, context: LineContext, lease: Lease) -> None:
    _append(context, lease, cycle, row_of("tried", FailedTry(error=message), effect.key))


def _brief(text: str) -> str:
    return text if len(text) <= 300 else text[:299] + "…"


def _ask(kind: ApprovalKind, expires: datetime, cycle: CycleView, context: LineContext, lease: Lease) -> None:
    """Write the approval request and the cycle's row about it in one transaction."""
    evidence = approval_evidence(cycle, kind, context.price)
    stored = context.artifacts.put(stamped(evidence))
    content = Asked(cycle=cycle.id, kind=kind, subject=evidence["subject"], evidence=stored, expires=expires)
    asked = row_of("asked", content, kind)
    appends = [
        Append(stream=cycle.id, after=cycle.seq, rows=(asked,)),
        Append(stream=approval_stream(cycle.id, kind), after=0, rows=(asked,)),
    ]
    context.ledger.append(appends, lease, context.clock.now())


def end(decision: End, cycle: CycleView, context: LineContext, lease: Lease) -> None:
    """End a cycle in one transaction: its last row, the line's row, and the expiry of its unanswered approval requests.

    On a Conflict from the cycle's stream, the Conflict is raised. A Conflict from another stream is ignored, because the next turn
    decides again.
    """
    line = context.line_view()
    evaluated = cycle.has(Step.EVALUATE)
    closed = CycleEnd(state=decision.state, reason=decision.reason, evaluated=evaluated, plan_again=decision.plan_again)
    rows = [row_of("cycle_ended", closed, cycle.id)]
    if decision.state is State.PROMOTED and cycle.candidate:
        rows.append(row_of("champion", NewChampion(version=cycle.candidate, cycle=cycle.id), cycle.candidate.tag))
    ends_rollout = decision.state is State.ROLLED_BACK or (decision.state is State.RECALLED and cycle.state is State.ROLLING)
    if ends_rollout and line.rollback_asked:
        rows.append(row_of("rolled_back", RolledBack(to=None, actor=line.rollback_asked, reason=decision.reason)))
    appends = [
        Append(stream=cycle.id, after=cycle.seq, rows=(row_of("ended", Reason(reason=decision.reason), decision.state),)),
        Append(stream=line_stream(line.line), after=line.seq, rows=tuple(rows)),
    ]
    for kind in cycle.asked:
        view = fold_approval(context.ledger.read(approval_stream(cycle.id, kind)))
        if view.awaiting:
            expired = row_of("expired", Reason(reason=f"the cycle ended: {decision.state}"))
            appends.append(Append(stream=view.id, after=view.seq, rows=(expired,)))
    try:
        context.ledger.append(appends, lease, context.clock.now())
    except Conflict:
        if context.cycle_view(cycle.id).seq != cycle.seq:
            raise  # the cycle itself changed
