"""The cycle's state machine: the next decision as a pure function of the cycle's rows, outside observations and the time.

The order of the steps is that of `STEPS` in contracts/steps.py. `decide` has a line for each step that needs more than its effect. It does
not perform any step; flows/engine does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ratchet.contracts.cycle import Answer, ApprovalKind
from ratchet.contracts.evaluation import Result
from ratchet.contracts.ids import Digest
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.search import Chosen, Trial
from ratchet.contracts.jobs.training import Adjustment, JobState, JobStatus, Proposal, ResumePoint, Usage
from ratchet.contracts.steps import JudgeResult, PlanResult, State, Step
from ratchet.contracts.time_window import length, opens_at, seconds_left
from ratchet.flows.core.folds.cycle import AUTO, CycleView, Incarnation, train_key
from ratchet.flows.core.searches.search import choice, expected_seconds, next_trial
from ratchet.flows.core.steps import next_step


@dataclass(frozen=True)
class Do:
    """Perform an effect: write an `intended` row, run the effect, write a `done` row."""

    step: Step
    key: str
    adjustment: Adjustment | None = None
    """The adjustment that a new training attempt runs with. It is stored in the attempt's `intended` row."""

    @staticmethod
    def of(step: Step) -> Do:
        """Return the decision for a step whose effect key is its name."""
        return Do(step, str(step))


@dataclass(frozen=True)
class Ask:
    """Open an approval request that expires at `expires`."""

    kind: ApprovalKind
    expires: datetime


@dataclass(frozen=True)
class RecordAnswer:
    """Copy the answer to an approval request into the cycle's stream."""

    kind: ApprovalKind
    answer: Answer


@dataclass(frozen=True)
class JobEnded:
    """Record the end of an incarnation and its outcome."""

    attempt: int
    incarnation: int
    outcome: Outcome
    reason: str
    proposal: Proposal | None = None
    successor: int = 0
    """The incarnation that the executor started by itself as a replacement; 0 if there is none."""
    usage: Usage | None = None


@dataclass(frozen=True)
class AcceptStep:
    """Accept an intermediate checkpoint, from which the next incarnation resumes."""

    resume: ResumePoint


@dataclass(frozen=True)
class BeginTrial:
    """Record the next trial of the search. Its job starts afterwards, like any other."""

    trial: Trial


@dataclass(frozen=True)
class EndTrial:
    """Record the end of the running trial, with the figures of its model."""

    failed: str
    """Why it published no model; empty if it did."""


@dataclass(frozen=True)
class Choose:
    """Record which trial's model becomes the candidate."""

    chosen: Chosen


@dataclass(frozen=True)
class Wait:
    """Do nothing until an outside condition changes."""

    reason: str


@dataclass(frozen=True)
class End:
    """End the cycle in `state`, with the reason."""

    state: State
    reason: str
    plan_again: bool = False
    """Whether only another release's plan ends the cycle, so that the next cycle is due at once."""


Decision = Do | Ask | RecordAnswer | JobEnded | AcceptStep | BeginTrial | EndTrial | Choose | Wait | End


@dataclass(frozen=True)
class Observation:
    """The observations from outside the cycle's stream that its current state needs."""

    answers: Mapping[ApprovalKind, Answer] = field(default_factory=dict)
    job: JobStatus | None = None
    saved: ResumePoint | None = None
    """The newest checkpoint that the current incarnation reports. If the job proposes a change, the newest one up to the last good step."""
    rollout: tuple[str, str] | None = None
    """How the rollout ended (promoted | rolled_back) and the reason; None while it runs."""
    rollback_asked: str | None = None
    """The actor who requested a rollback of the line while this cycle is open."""
    cancel_asked: str | None = None
    """The actor who requested the end of this cycle."""
    recall_asked: str | None = None
    """Why the cycle must end: rows that its plan rests on were erased, or its start model was recalled."""
    code: Digest = ""
    """Digest of the installed training code; empty if it was not observed."""
    champion: str = ""
    """Tag of the line's current champion according to the ledger; empty if it was not observed."""


def decide(cycle: CycleView, seen: Observation, now: datetime) -> Decision:
    """Return the next decision of an open cycle.

    `seen` is the observation of everything outside the cycle's stream. Raises ValueError if the cycle has ended.
    """
    stopped = _stopped_from_outside(cycle, seen)
    if stopped is not None and cycle.state is not State.ROLLING:
        return stopped
    if cycle.ended:
        raise ValueError(f"{cycle.id} has ended ({cycle.state}); there is nothing to decide")
    match next_step(cycle, seen.rollout is not None and seen.rollout[0] == "promoted"):
        case Step.PLAN if cycle.has(Step.PLAN):
            return _not_trained(cycle)
        case Step.APPROVE_TRAINING:
            return _plan_again(cycle, seen) or _approval(cycle, seen, now, ApprovalKind.TRAINING)
        case Step.TRAIN:
            return _plan_again(cycle, seen) or _in_window(
                cycle, (_search if cycle.plan and cycle.plan.search else _train)(cycle, seen), now
            )
        case Step.JUDGE if cycle.has(Step.JUDGE):
            return _stopped_at_gate(cycle)
        case Step.APPROVE_ROLLOUT:
            return _approval(cycle, seen, now, ApprovalKind.ROLLOUT)
        case Step.ROLL_OUT if cycle.has(Step.ROLL_OUT):
            return _rolled_back(seen)
        case None:
            return _stopped_at_the_end(cycle, seen) or End(State.PROMOTED, _shown(cycle, seen))
        case step:
            return _stopped_at_the_end(cycle, seen) or Do.of(step)


def _stopped_from_outside(cycle: CycleView, seen: Observation) -> End | None:
    """Erased data and operator requests override the plan.

    A changed champion ends the cycle, because the cycle compares with the wrong model.
    """
    if seen.recall_asked:
        return End(State.RECALLED, seen.recall_asked)
    if seen.rollback_asked:
        return End(State.CANCELLED, f"rollback requested by {seen.rollback_asked}")
    if seen.cancel_asked:
        return End(State.CANCELLED, f"cancelled by {seen.cancel_asked}")
    if seen.champion and seen.champion != cycle.champion.tag:
        return End(State.SUPERSEDED, f"{seen.champion} serves now, but this cycle was opened against {cycle.champion.tag}")
    return None


def _not_trained(cycle: CycleView) -> End:
    return End(State.NOT_TRAINED, cycle.result(PlanResult).choice.reason)


def _plan_again(cycle: CycleView, seen: Observation) -> End | None:
    """End a cycle whose plan was made with other training code, because a job rejects such a plan.

    A finished training needs no further job, so its checkpoint is still accepted. A search ends with the trials it has, unless one runs.
    """
    plan, trials = cycle.plan, cycle.trials
    if plan is None or seen.code in ("", plan.code) or _trained(cycle, seen.job):
        return None
    if cycle.chosen or (any(one.succeeded for one in trials) and (trials[-1].end or not _has_begun(cycle))):
        return None
    reason = f"plan again: the plan was made with training code {plan.code[:12]}, but another release with {seen.code[:12]} is installed"
    return End(State.SUPERSEDED, reason, plan_again=True)


def _has_begun(cycle: CycleView) -> bool:
    """Whether an incarnation of the plan, or of the newest trial of its search, was started."""
    first = cycle.trials[-1].trial.attempt if cycle.trials else 1
    return bool(cycle.incarnations) and cycle.incarnations[-1].attempt >= first


def _trained(cycle: CycleView, job: JobStatus | None) -> bool:
    """Whether the newest incarnation has published its model, or has ended and its result, which decides this, is not stored yet."""
    if not _has_begun(cycle):
        return False
    last = cycle.incarnations[-1]
    if last.outcome is None and job is not None and job.state is JobState.ENDED and job.incarnation == last.number:
        return job.outcome in (None, Outcome.DONE)
    return last.outcome is Outcome.DONE


def _approval(cycle: CycleView, seen: Observation, now: datetime, kind: ApprovalKind) -> Decision:
    settings = cycle.loop.approvals.training if kind is ApprovalKind.TRAINING else cycle.loop.approvals.rollout
    # The settings decide on models that Ratchet trained. Another tokenizer or template is for a person to accept.
    differs = cycle.given is not None and cycle.given.differs
    if settings.mode == "auto" and not differs:
        return RecordAnswer(kind, AUTO)
    if kind not in cycle.asked:
        return Ask(kind, now + timedelta(seconds=settings.expires))
    answer = seen.answers.get(kind)
    if answer is None:
        expires = cycle.asked[kind]
        return Wait(f"approval of {kind} until {expires:%Y-%m-%d %H:%M} UTC") if now < expires else _expired(kind, expires)
    if kind not in cycle.answers:
        return RecordAnswer(kind, answer)
    return End(State.REJECTED, f"{answer.actor} rejected the {kind}" + (f": {answer.note}" if answer.note else ""))


def _expired(kind: ApprovalKind, expires: datetime) -> End:
    return End(State.EXPIRED, f"nobody answered the request to approve the {kind} by {expires:%Y-%m-%d %H:%M} UTC")


def _search(cycle: CycleView, seen: Observation) -> Decision:
    """Run the trials of the plan's search one after the other, and choose one. A trial is trained like a plan without a search."""
    plan, trials = cycle.plan, cycle.trials
    if plan is None or cycle.chosen is not None:
        return Do.of(Step.ACCEPT)
    upgraded = f"another release of the training code ({seen.code[:12]}) is installed" if seen.code not in ("", plan.code) else ""
    if trials and trials[-1].end is None:
        if upgraded and not _has_begun(cycle):
            return EndTrial(upgraded)
        match _train(cycle, seen):
            case Do(Step.ACCEPT):
                return EndTrial("")
            case End(_, reason):
                return EndTrial(reason)
            case decision:
                return decision
    if upgraded:
        found: Trial | Chosen | None = choice(plan, trials, upgraded)
    else:
        attempt = cycle.incarnations[-1].attempt + 1 if cycle.incarnations else 1
        found = next_trial(plan, trials, attempt, cycle.loop.training.timeout)
    if found is None:
        reasons = "; ".join(f"trial {one.trial.number}: {one.end.reason}" for one in trials if one.end)
        return End(State.FAILED, f"no trial of the search published a model: {reasons}")
    return BeginTrial(found) if isinstance(found, Trial) else Choose(found)


def _in_window(cycle: CycleView, decision: Decision, now: datetime) -> Decision:
    """Let a job begin only in the window of the loop file, and a further trial of a search only if it is likely to end in it."""
    window, zone = cycle.loop.training.window, cycle.loop.trigger.timezone
    starts = isinstance(decision, BeginTrial) or (isinstance(decision, Do) and decision.step is Step.TRAIN)
    if window is None or not starts:
        return decision
    left = seconds_left(window, zone, now)
    if not left:
        return Wait(f"training begins in the window {window} ({zone}), next at {opens_at(window, zone, now):%Y-%m-%d %H:%M} UTC")
    trial = decision.trial if isinstance(decision, BeginTrial) else cycle.trials[-1].trial if cycle.trials else None
    needed = expected_seconds(cycle.trials, trial) if trial is not None and trial.number > 1 else 0.0
    if needed <= left:
        return decision
    if needed > length(window) and isinstance(decision, BeginTrial) and cycle.plan is not None:
        chosen = choice(cycle.plan, cycle.trials, f"the next trial would take about {needed:.0f} s, longer than the window {window}")
        return decision if chosen is None else Choose(chosen)
    if needed > length(window):
        return decision
    opens = f"{opens_at(window, zone, now):%Y-%m-%d %H:%M} UTC"
    return Wait(f"the next trial would take about {needed:.0f} s; the window {window} ({zone}) ends in {left:.0f} s, and opens at {opens}")


def _train(cycle: CycleView, seen: Observation) -> Decision:
    first = cycle.trials[-1].trial.attempt if cycle.trials else 1
    if not _has_begun(cycle):
        return Do(Step.TRAIN, train_key(first, 1))
    now = cycle.incarnations[-1]
    if now.outcome is None:
        return _watch(cycle, seen)
    budget = cycle.loop.training
    attempts = 1 if len(cycle.trials) > 1 else budget.max_attempts  # the budget of a search suffices for one attempt at each recipe
    match now.outcome:
        case Outcome.DONE:
            return Do.of(Step.ACCEPT)
        case Outcome.PERMANENT:
            return End(State.FAILED, f"training cannot succeed: {now.reason}")
        case Outcome.PREEMPTED | Outcome.LOST if _starts(cycle, now.attempt) <= budget.max_restarts:
            return Do(Step.TRAIN, train_key(now.attempt, max(now.number + 1, now.successor)))
        case Outcome.FAILED if now.attempt - first + 1 < attempts:
            return _next_attempt(cycle, now)
        case _:
            return End(
                State.FAILED,
                f"training {now.outcome} in attempt {now.attempt}, incarnation {now.number}, and its budget is exhausted: {now.reason}",
            )


def _starts(cycle: CycleView, attempt: int) -> int:
    """Count the incarnations of an attempt so far. Their numbers rise, but a cluster may skip some."""
    return sum(incarnation.attempt == attempt for incarnation in cycle.incarnations)


def _next_attempt(cycle: CycleView, failed: Incarnation) -> Do | End:
    """Start the next attempt of the same plan, with the adjustment that the failed job proposed.

    Each rule of the health watch may request one adjustment per plan. A second request by the same rule ends the cycle.
    """
    key, proposal = train_key(failed.attempt + 1, 1), failed.proposal
    if proposal is None:
        return Do(Step.TRAIN, key)
    ran_with = cycle.adjustments.get(failed.attempt, Adjustment())
    if proposal.rule in ran_with.rules:
        return End(State.FAILED, f"training failed again after an adjustment for {proposal.rule}: {failed.reason}")
    return Do(Step.TRAIN, key, ran_with.then(proposal, failed.reason))


def _watch(cycle: CycleView, seen: Observation) -> Decision:
    now, job = cycle.incarnations[-1], seen.job
    if job is not None and job.incarnation > now.number:
        why = "the cluster restarted the gang" + (f": {job.reason}" if job.reason else "")
        return JobEnded(now.attempt, now.number, Outcome.PREEMPTED, why, successor=job.incarnation, usage=job.usage)
    if job is not None and job.state is JobState.ENDED and job.outcome is None:
        return Wait(f"{_named(cycle, now)}, has ended; its result is not stored yet")
    if seen.saved is not None and _newer(seen.saved, cycle, job.proposal if job else None):
        return AcceptStep(seen.saved)
    if job is None or job.state is JobState.ABSENT:
        return JobEnded(now.attempt, now.number, Outcome.LOST, "the executor no longer knows the job")
    if job.outcome is not None and job.incarnation == now.number:
        return JobEnded(now.attempt, now.number, job.outcome, job.reason, job.proposal, usage=job.usage)
    if job.state is JobState.PENDING and job.reason:
        return Wait(f"{_named(cycle, now)}, does not run yet: {job.reason}")
    return Wait(f"{_named(cycle, now)}, step {job.step} of {job.total or '?'}")


def _named(cycle: CycleView, now: Incarnation) -> str:
    trial = cycle.trial_of(now.attempt)
    searched = f", trial {trial.number} of the search" if trial else ""
    return f"training{searched}, attempt {now.attempt}"


def _newer(saved: ResumePoint, cycle: CycleView, asked: Proposal | None) -> bool:
    """Whether `saved` is newer than the checkpoints of its attempt that were accepted so far.

    If the attempt failed with a proposal, only accepted checkpoints up to the last good step count.
    """
    own = [point for point in cycle.accepted if point.attempt == saved.attempt]
    known = [point for point in own if asked is None or point.step <= asked.good]
    return all((saved.incarnation, saved.step) > (point.incarnation, point.step) for point in known)


def _stopped_at_gate(cycle: CycleView) -> End:
    verdict = cycle.result(JudgeResult).verdict
    if verdict.result is Result.FAIL:
        return End(State.REJECTED, f"the gate failed: {verdict.reasons}")
    return End(State.HELD, f"the gate is inconclusive: {verdict.reasons or 'no check returned a result'}")


def _rolled_back(seen: Observation) -> Decision:
    """Wait for the end of the rollout. A rollout that was rolled back ends the cycle."""
    if seen.rollout is None:
        return Wait("the rollout")
    if seen.recall_asked:
        return End(State.RECALLED, seen.recall_asked)
    return End(State.ROLLED_BACK, f"the rollout was rolled back ({seen.rollout[1]})")


def _stopped_at_the_end(cycle: CycleView, seen: Observation) -> End | None:
    """Apply erased data and operator requests that arrived during the rollout. Before the rollout, `decide` has applied them already."""
    stopped = _stopped_from_outside(cycle, seen)
    if stopped is None or stopped.state is State.RECALLED:
        return stopped
    return End(State.ROLLED_BACK, f"at the end of the rollout: {stopped.reason}")


def _shown(cycle: CycleView, seen: Observation) -> str:
    checks = cycle.result(JudgeResult).verdict.checks
    quality, reason = next((one.reason for one in checks if one.check == "quality"), ""), seen.rollout[1] if seen.rollout else ""
    gate, rollout = (f" ({text})" if text else "" for text in (quality, reason))
    return f"the gate showed an improvement{gate}, and the rollout showed no harm{rollout}"
