"""One tick of a rollout: read the evidence, decide, then set a weight or roll back.

All state is in the ledger between ticks, so that no process has to run for days.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from ratchet.contracts.cycle import Lease, Row
from ratchet.contracts.errors import Incomplete, Permanent, RatchetError, Retryable
from ratchet.contracts.loop import RolloutSettings
from ratchet.contracts.rows import Judged, Reason, WeightSet, content_of, row_of
from ratchet.contracts.serving import Arm, Evidence, Route, StepJudgement, StepResult, Stratum
from ratchet.flows.core.folds.rollout import RolloutView
from ratchet.flows.core.rollouts.mirror import batches, mirrored
from ratchet.flows.core.rollouts.rollout import (
    Delivery,
    Finish,
    Hold,
    RolloutDecision,
    SetWeight,
    candidate_share,
    dark,
    decide_rollout,
    incomplete,
    is_largest_concurrent,
    mismatch,
    unavailable_since,
    weights,
    windows,
)
from ratchet.flows.core.rollouts.shared_process import outside
from ratchet.flows.engine.context import LineContext, append_to_rollout, leased
from ratchet.flows.engine.effects import scale, served_names, sole_route
from ratchet.flows.engine.rollouts import candidate_server
from ratchet.flows.engine.rollouts.mirror import ask_batch
from ratchet.flows.engine.rollouts.shared_process import look

SMALL_CORRECTION = 60.0
"""Seconds by which the clock may be set back during a step without a rollback."""


def tick(rollout_id: str, context: LineContext) -> RolloutDecision:
    """Observe, decide, perform and record once, under the line's lease. Return the decision.

    An ended rollout returns its `Finish` unchanged. Raises Permanent if the ledger has no such rollout, and Retryable if the lease is held.
    """
    with leased(context, "the rollout") as lease:
        view = context.rollout_view(rollout_id)
        if view is None:
            raise Permanent(f"{rollout_id} is not in the ledger")
        if view.end:
            return Finish(view.end, view.reason)
        settings = view.opened.settings
        view, process = look(view, context, lease)
        stop, down = _stop(view, context) or process.stop, process.down
        if not stop:
            view, servers = candidate_server.look(view, context, lease)
            stop, down = servers.stop, down or servers.down
        # users must not wait for evidence that decides nothing
        judgement = None if stop or down else _judge(view, settings, context)
        decision = decide_rollout(view, settings, judgement, stop, context.clock.now(), down)
        view = _note(view, judgement, decision, context, lease)
        match decision:
            case SetWeight():
                _set_weight(decision, view, settings, context, lease)
            case Finish():
                _finish(decision, view, context, lease)
            case Hold():
                ask_batch(view, settings, judgement, context, lease)  # after the decision, which must not wait for answers
        return decision


def _stop(view: RolloutView, context: LineContext) -> str | None:
    """Return the reason to roll back independently of the evidence, or None. A rollback that was interrupted goes on."""
    if view.back:
        return view.back
    line = context.line_view()
    if line.recall_asked:
        return line.recall_asked
    asked = line.rollback_asked or line.cancel_asked
    if asked:
        return f"requested by {asked}"
    if line.champion is not None and line.champion.tag != view.champion.tag:
        return f"{line.champion.tag} serves now instead of {view.champion.tag}"
    return None


def _judge_before_its_begin(seconds: float) -> StepJudgement | None:
    """Judge a step that begins `seconds` in the future, because the clock was set back: no trace can be assigned to it until then.

    A step without evidence must not serve users for long, so it is rolled back, except after a small correction of the clock.
    """
    if seconds <= SMALL_CORRECTION:
        return None
    return StepJudgement(result=StepResult.ROLL_BACK, reasons=(f"the clock was set back by more than {seconds:.0f} s during the step",))


def _judge(view: RolloutView, settings: RolloutSettings, context: LineContext) -> StepJudgement | None:
    """Judge the current step. Return None if no step is running, or if the clock was set back a little.

    The judgement is a rollback if a version is dark, or if the evidence has failed for `settings.dark` seconds; a shorter failure decides
    nothing. Without traffic nothing is dark, and the step waits.
    """
    if not view.steps:
        return None
    step, now = view.steps[-1], context.clock.now()
    seconds = (now - step.since).total_seconds()
    if seconds < 0:
        return _judge_before_its_begin(-seconds)
    try:
        strata: list[Stratum] = []
        deliveries, unknown = tuple[Delivery, ...](), ""
        if context.router.attribution:
            strata = [_stratum(view, settings, context, (since, until, now), weight) for weight, since, until in windows(view.steps, now)]
            if seconds > settings.dark:
                deliveries, unknown = _deliveries(view, settings, context, strata[-1].fresh)
        else:
            unknown = _not_in_force(context)
        pairs = mirrored(batches(outside(view.mirrored, view.outages))) if settings.mirror else None
    except Exception as error:
        if isinstance(error, RatchetError) and not isinstance(error, Retryable):
            raise
        reason = str(error) if isinstance(error, Retryable) else f"they raised {type(error).__name__}"
        failed_for = (now - (unavailable_since(view) or now)).total_seconds()
        result = StepResult.ROLL_BACK if failed_for > settings.dark else StepResult.WAIT
        return StepJudgement(result=result, unavailable=True, reasons=(f"metrics unavailable: {reason}",))
    darkness = dark(deliveries, settings.dark)
    if darkness:
        return StepJudgement(result=StepResult.ROLL_BACK, reasons=(darkness,))
    judgement = context.judge.judge(is_largest_concurrent(settings, step.index), seconds, strata, pairs)
    gap = unknown or incomplete(deliveries)
    if gap and judgement.result is StepResult.ADVANCE:
        return judgement.model_copy(update={"result": StepResult.WAIT, "reasons": (gap,)})
    if gap and not strata and judgement.result is StepResult.WAIT:
        return judgement.model_copy(update={"reasons": (gap, *judgement.reasons)})
    return judgement


def _not_in_force(context: LineContext) -> str:
    """Return why the route that was set last is not in force, according to a router without counts; empty if it is."""
    try:
        context.router.in_flight(context.line)
    except Incomplete as error:
        return str(error)
    except Retryable:  # the usual answer of such a router
        pass
    return ""


def _stratum(
    view: RolloutView, settings: RolloutSettings, context: LineContext, times: tuple[datetime, datetime, datetime], weight: float
) -> Stratum:
    """Return the evidence of one weight. `times` are the begin and the end of its window, and the current time."""
    since, until, now = times
    grown = max(since, min(until, now - timedelta(seconds=settings.maturity)))
    fresh = _evidence(view, context, since, until)
    mature = fresh if grown == until else _evidence(view, context, since, grown)
    return Stratum(share=candidate_share(weight, settings), fresh=fresh, mature=mature)


def _evidence(view: RolloutView, context: LineContext, since: datetime, until: datetime) -> Evidence:
    """Return the evidence of both versions. Raises Retryable if the metrics return that of other versions or of another time."""
    champion, candidate = view.champion.tag, view.candidate.tag
    evidence = context.metrics.evidence(champion, candidate, since, until)
    wrong = mismatch(evidence, champion, candidate, since, until)
    if wrong:
        raise Retryable(wrong)
    return evidence


def _deliveries(view: RolloutView, settings: RolloutSettings, context: LineContext, fresh: Evidence) -> tuple[tuple[Delivery, ...], str]:
    """Compare the requests that the router sent with the traces, for both versions. `fresh` is the evidence since the begin of the step.

    If a replica of the router has not told its counts, nothing is compared, and the text says so.
    """
    wait = timedelta(seconds=settings.dark)
    until = fresh.until - wait
    lately = max(fresh.since, until - wait)
    try:
        sent, sent_lately = (context.router.forwarded(context.line, since, until) for since in (fresh.since, lately))
    except Incomplete as error:
        return (), str(error)
    recent = _evidence(view, context, lately, fresh.until)

    def of(old: Arm, new: Arm) -> Delivery:
        return Delivery(old.tag, sent.get(old.tag, 0), old.requests, sent_lately.get(old.tag, 0), new.requests)

    return (of(fresh.champion, recent.champion), of(fresh.candidate, recent.candidate)), ""


def _note(view: RolloutView, judgement: StepJudgement | None, decision: RolloutDecision, context: LineContext, lease: Lease) -> RolloutView:
    """Record the judgement if it led to a decision, or if the number of requests or mirrored pairs has grown by a tenth since the last
    record, or if the evidence could not be read, or can be read again. Without attribution, also if the reasons have changed apart from
    their figures: a route that is not in force is told then."""
    if judgement is None or not view.steps:
        return view
    step = view.steps[-1]
    last = next((row for row in reversed(view.judgements) if row.key == str(step.index)), None)
    if isinstance(decision, Hold) and last is not None:
        noted = content_of(Judged, last).judgement
        is_new = noted.unavailable != judgement.unavailable or (not context.router.attribution and _wording(noted) != _wording(judgement))
        if not is_new and not _has_grown(noted, judgement):
            return view
    judged = row_of("judged", Judged(index=step.index, weight=step.weight, judgement=judgement), str(step.index))
    return append_to_rollout(view, context, lease, judged)


def _has_grown(old: StepJudgement, new: StepJudgement) -> bool:
    """Whether a judgement rests on a tenth more requests or mirrored pairs than an earlier one of its step."""
    pairs = [one.tests["mirrored"].n if "mirrored" in one.tests else 0 for one in (old, new)]
    return any(after >= before * 1.1 + 1 for before, after in ((old.requests, new.requests), pairs))


def _wording(judgement: StepJudgement) -> list[str]:
    """Return the reasons of a judgement without their figures, which change with every tick."""
    return [re.sub(r"[-+]?\d+(\.\d+)?", "", reason) for reason in judgement.reasons]


def _set_weight(decision: SetWeight, view: RolloutView, settings: RolloutSettings, context: LineContext, lease: Lease) -> None:
    key = f"weight/{decision.index}"
    if key not in view.intended:
        view = append_to_rollout(view, context, lease, Row(kind="intended", key=key))
    scale(context, view.candidate, candidate_share(decision.weight, settings))
    context.router.set(step_route(view, decision, settings, context))
    append_to_rollout(view, context, lease, row_of("done", WeightSet(index=decision.index, weight=decision.weight), key))


def step_route(view: RolloutView, step: SetWeight, settings: RolloutSettings, context: LineContext) -> Route:
    """Return the route for one step's weight. The servers of both versions are started if necessary."""
    backends = weights(step.weight, settings, context.server.ensure(view.champion), context.server.ensure(view.candidate))
    annotation, salt = f"{view.id}/{step.index}", view.opened.salt
    served, former = served_names(context)
    return Route(
        line=context.line,
        served_model=served,
        backends=backends,
        annotation=annotation,
        salt=salt,
        unit=settings.unit,
        former_names=former,
    )


def _finish(decision: Finish, view: RolloutView, context: LineContext, lease: Lease) -> None:
    """End the rollout. On rollback, update the route before the ledger. On promotion, the cycle's promote step sets the route."""
    if decision.end == "rolled_back":
        if view.back is None:
            view = append_to_rollout(view, context, lease, row_of("intended", Reason(reason=decision.reason), "back"))
        context.router.set(sole_route(context, context.line_view().champion or view.champion, f"{view.id}/back"))
        if "back" not in view.done:
            view = append_to_rollout(view, context, lease, Row(kind="done", key="back"))
    if view.opened.settings.mirror:
        context.datasets.forget_mirror()
    append_to_rollout(view, context, lease, row_of("ended", Reason(reason=decision.reason), decision.end))
