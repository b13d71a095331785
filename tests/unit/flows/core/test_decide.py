"""Tests the cycle's decisions state by state, the trigger, the rollout's decisions, and the first answer to an approval request."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ratchet.contracts.cycle import Answer, ApprovalKind, Identity, Row
from ratchet.contracts.data.datasets import Cursor
from ratchet.contracts.evaluation import Result
from ratchet.contracts.fakes import MemoryLedger, fake_model
from ratchet.contracts.ids import digest
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Adjustment, JobState, JobStatus, Method, Proposal, ResumePoint, TrainingPlan
from ratchet.contracts.loop import RolloutSettings, TriggerSettings
from ratchet.contracts.serving import Endpoint, StepJudgement, StepResult
from ratchet.contracts.steps import ENDS, STEPS, PromoteResult, State, Step
from ratchet.flows.core.decide import AcceptStep, Ask, Do, End, JobEnded, Observation, RecordAnswer, Wait, decide
from ratchet.flows.core.folds.cycle import AUTO, CycleView, Incarnation, train_key
from ratchet.flows.core.folds.line import LineView
from ratchet.flows.core.folds.rollout import RolloutStep, RolloutView
from ratchet.flows.core.rollouts.rollout import Hold, SetWeight, decide_rollout, is_largest_concurrent, weights
from ratchet.flows.core.triggers import cycle_is_due, edition_number
from tests.simulation.simulated_line import loop_for
from tests.unit.flows.cycles import NOON, cycle, done, entry, judge_result, plan_result, run, training

LATER = NOON + timedelta(hours=1)


def answer(approve: bool, note: str = "") -> Answer:
    return Answer(approve=approve, actor="ada", identity=Identity.CLAIMED, via="cli", note=note)


def effects_by_state() -> list[tuple[State, Step]]:
    """Return the states that the next step leaves by its effect alone. A training and a rollout may go on in the states after them."""
    states = [State.OPENED, *(one.after for one in STEPS.values())]
    found = [(state, step) for state, step in zip(states, Step, strict=False) if state not in (State.ATTEMPT, State.ROLLING)]
    return [(state, step) for state, step in found if step is not Step.TRAIN and STEPS[step].approval is None]


@pytest.mark.parametrize(("state", "step"), effects_by_state())
def test_next_step_of_each_state(state: State, step: Step) -> None:
    assert decide(cycle(state), Observation(), NOON) == Do.of(step)


def test_cycle_that_is_past_a_step_of_a_later_release_leaves_it_out() -> None:
    view = cycle(State.ROLLOUT_APPROVED)
    earlier = replace(view, done={key: row for key, row in view.done.items() if key not in (Step.PROBE, Step.REGISTER)})
    assert decide(earlier, Observation(), NOON) == Do.of(Step.ROLL_OUT)


@pytest.mark.parametrize("state", sorted(set(State) - ENDS - {State.ROLLING}))
def test_requested_rollback_cancels_the_cycle_in_any_state(state: State) -> None:
    decision = decide(cycle(state), Observation(rollback_asked="ada"), NOON)
    assert isinstance(decision, End)
    assert (decision.state, "ada" in decision.reason) == (State.CANCELLED, True)


@pytest.mark.parametrize("state", sorted(ENDS))
def test_ended_cycle_has_no_next_step(state: State) -> None:
    with pytest.raises(ValueError, match="ended"):
        decide(cycle(state), Observation(), NOON)


def planned(people: str = "yes", method: Method = Method.DPO, **fields: Any) -> CycleView:
    return cycle(State.PLANNED, people, done=done(plan_result(method)), **fields)


def test_cycle_without_a_method_ends_untrained() -> None:
    assert decide(planned(method=Method.NONE), Observation(), NOON) == End(State.NOT_TRAINED, "the figures")


PLAN = TrainingPlan(
    line="sim",
    cycle="cycle/sim/0001",
    start=fake_model("base"),
    dataset=digest("dataset"),
    pairs=digest("pairs"),
    prompts=digest("prompts"),
    demonstrations=digest("demonstrations"),
    method=Method.DPO,
    recipe={},
    seed=0,
    scorers=(),
    code=digest("code"),
)
OTHER = Observation(code=digest("code of another release"))


def with_plan(state: State, **fields: Any) -> CycleView:
    return cycle(state, "auto", done=done(plan_result(plan=PLAN)), **fields)


RUNNING = (Incarnation(1, 1, "job"),)


@pytest.mark.parametrize(
    "view",
    [
        with_plan(State.PLANNED),
        with_plan(State.TRAINING_APPROVED),
        with_plan(State.ATTEMPT, incarnations=RUNNING),
        with_plan(State.ATTEMPT, incarnations=(Incarnation(1, 1, "job", Outcome.PREEMPTED),)),
        with_plan(State.ATTEMPT, incarnations=(Incarnation(1, 1, "job", Outcome.PERMANENT),)),
    ],
    ids=["planned", "approved", "training", "preempted", "refused-by-the-job"],
)
def test_plan_of_another_release_ends_the_cycle_and_names_both_digests(view: CycleView) -> None:
    decision = decide(view, OTHER, NOON)
    assert isinstance(decision, End)
    assert (decision.state, decision.plan_again) == (State.SUPERSEDED, True)
    assert PLAN.code[:12] in decision.reason
    assert OTHER.code[:12] in decision.reason
    assert decide(view, Observation(code=PLAN.code, job=JobStatus(state=JobState.RUNNING, incarnation=1)), NOON) != decision


@pytest.mark.parametrize("state", [State.ACCEPTED, State.EVALUATED, State.ROLLOUT_APPROVED])
def test_cycle_with_a_candidate_goes_on_after_an_upgrade(state: State) -> None:
    assert isinstance(decide(with_plan(state), OTHER, NOON), Do)


def test_training_that_is_complete_is_accepted_after_an_upgrade() -> None:
    trained = with_plan(State.ATTEMPT, incarnations=(Incarnation(1, 1, "job", Outcome.DONE),))
    assert decide(trained, OTHER, NOON) == Do.of(Step.ACCEPT)
    ended = replace(OTHER, job=JobStatus(state=JobState.ENDED, incarnation=1, outcome=Outcome.DONE))
    decision = decide(with_plan(State.ATTEMPT, incarnations=RUNNING), ended, NOON)
    assert isinstance(decision, JobEnded)
    assert decision.outcome is Outcome.DONE


def test_next_cycle_is_due_at_once_after_a_plan_of_another_release() -> None:
    again = line(last_opened=NOON, last_traces=100, plan_again=True)
    cursor = Cursor(traces=100, feedback=0, newest=NOON)
    assert cycle_is_due(again, cursor, TriggerSettings(min_interval=3600), scheduled=False, now=NOON)[0]
    assert not cycle_is_due(replace(again, plan_again=False), cursor, TriggerSettings(min_interval=3600), scheduled=False, now=NOON)[0]


ASKED = {"asked": {ApprovalKind.TRAINING: LATER}}


def test_approval_is_requested_once_and_its_answer_is_recorded() -> None:
    assert decide(planned(), Observation(), NOON) == Ask(ApprovalKind.TRAINING, NOON + timedelta(seconds=500))
    assert isinstance(decide(planned(**ASKED), Observation(), NOON), Wait)
    yes = {ApprovalKind.TRAINING: answer(True)}
    assert decide(planned(**ASKED), Observation(answers=yes), NOON) == RecordAnswer(ApprovalKind.TRAINING, answer(True))
    assert decide(planned("auto"), Observation(), NOON) == RecordAnswer(ApprovalKind.TRAINING, AUTO)


def test_request_expires_without_an_answer_and_rejection_ends_the_cycle() -> None:
    expired = decide(planned(**ASKED), Observation(), LATER)
    assert isinstance(expired, End)
    assert expired.state is State.EXPIRED
    no = answer(False, "too early")
    rejected = decide(planned(**ASKED, answers={ApprovalKind.TRAINING: no}), Observation(answers={ApprovalKind.TRAINING: no}), NOON)
    assert isinstance(rejected, End)
    assert rejected.state is State.REJECTED
    assert "ada" in rejected.reason
    assert "too early" in rejected.reason


@pytest.mark.parametrize(
    ("incarnations", "expected"),
    [
        ((), Do(Step.TRAIN, train_key(1, 1))),
        ((run(1, 1, Outcome.DONE),), Do.of(Step.ACCEPT)),
        ((run(1, 1, Outcome.PREEMPTED),), Do(Step.TRAIN, train_key(1, 2))),
        ((run(1, 1, Outcome.LOST),), Do(Step.TRAIN, train_key(1, 2))),
        ((run(1, 3, Outcome.LOST),), Do(Step.TRAIN, train_key(1, 4))),
        (tuple(run(1, n, Outcome.LOST) for n in (1, 2, 3)), Do(Step.TRAIN, train_key(1, 4))),
        (tuple(run(1, n, Outcome.LOST) for n in (1, 2, 3, 4)), State.FAILED),
        (tuple(run(1, n, Outcome.PREEMPTED) for n in (1, 4, 9)), Do(Step.TRAIN, train_key(1, 10))),
        ((replace(run(1, 1, Outcome.PREEMPTED), successor=4),), Do(Step.TRAIN, train_key(1, 4))),
        ((run(1, 1, Outcome.FAILED),), Do(Step.TRAIN, train_key(2, 1))),
        ((run(2, 1, Outcome.FAILED),), State.FAILED),
        ((run(1, 1, Outcome.PERMANENT),), State.FAILED),
    ],
)
def test_attempts_and_restarts_have_budgets(incarnations: tuple[Incarnation, ...], expected: Any) -> None:
    decision = decide(training(*incarnations), Observation(), NOON)
    assert (decision.state if isinstance(decision, End) else decision) == expected


def test_jobs_begin_in_their_window_only() -> None:
    loop = loop_for("auto")
    training = loop.training.model_copy(update={"window": "22:00-06:00"})
    view = with_plan(State.TRAINING_APPROVED, loop=loop.model_copy(update={"training": training}))
    for hour, expected in ((21, Wait), (22, Do), (5, Do), (6, Wait)):
        assert isinstance(decide(view, Observation(), NOON.replace(hour=hour, minute=0)), expected)
    waiting = decide(view, Observation(), NOON)
    assert isinstance(waiting, Wait)
    assert f"window 22:00-06:00 (UTC), next at {NOON:%Y-%m-%d} 22:00 UTC" in waiting.reason


def test_gang_restarted_by_the_cluster_is_a_new_incarnation() -> None:
    """Checkpoints of the old incarnation no longer count, because their writer may be disconnected from the gang."""
    seen = Observation(job=JobStatus(state=JobState.RUNNING, incarnation=4, step=2, total=9), saved=resume(1, 8))
    decision = decide(training(run(1, 1)), seen, NOON)
    assert decision == JobEnded(1, 1, Outcome.PREEMPTED, "the cluster restarted the gang", successor=4)
    died = replace(seen, job=JobStatus(state=JobState.PENDING, incarnation=4, reason="worker-1: exit code 137 (OOMKilled)"))
    decision = decide(training(run(1, 1)), died, NOON)
    assert isinstance(decision, JobEnded)
    assert decision.reason == "the cluster restarted the gang: worker-1: exit code 137 (OOMKilled)"


def test_wait_reports_why_the_job_is_pending() -> None:
    seen = Observation(job=JobStatus(state=JobState.PENDING, incarnation=1, reason="0 of 2 pods run; ErrImagePull: x:1"))
    assert decide(training(run(1, 1)), seen, NOON) == Wait("training, attempt 1, does not run yet: 0 of 2 pods run; ErrImagePull: x:1")


ASKS = Proposal(rule="kl", adjustment=Adjustment(kl=2.0), good=4)


def failed(attempt: int, proposal: Proposal | None = ASKS) -> Incarnation:
    return Incarnation(attempt, 1, "job", Outcome.FAILED, "KL too large", proposal)


def test_failure_with_a_proposal_starts_an_adjusted_attempt() -> None:
    decision = decide(training(failed(1)), Observation(), NOON)
    assert decision == Do(Step.TRAIN, train_key(2, 1), Adjustment(kl=2.0, rules=("kl",), reason="KL too large"))


def test_each_rule_adjusts_a_plan_once_and_adjustments_accumulate() -> None:
    roomy = loop_for("yes", attempts=4)
    ran = {2: Adjustment(kl=2.0, rules=("kl",), reason="KL too large")}
    again = training(failed(1), failed(2), adjustments=ran, loop=roomy)
    decision = decide(again, Observation(), NOON)
    assert isinstance(decision, End)
    assert "again after an adjustment for kl" in decision.reason
    slower = Proposal(rule="not_finite", adjustment=Adjustment(learning_rate=0.5), good=9)
    other = training(failed(1), failed(2, slower), adjustments=ran, loop=roomy)
    expected = Adjustment(kl=2.0, learning_rate=0.5, rules=("kl", "not_finite"), reason="KL too large")
    assert decide(other, Observation(), NOON) == Do(Step.TRAIN, train_key(3, 1), expected)
    assert isinstance(decide(training(failed(1), failed(2, slower), adjustments=ran), Observation(), NOON), End), (
        "the attempt budget applies"
    )


def test_adjusted_attempt_resumes_from_good_steps_and_others_start_anew() -> None:
    steps = tuple(resume(1, step) for step in (2, 4, 6))
    adjusted = {2: Adjustment(kl=2.0, rules=("kl",))}
    taken = training(failed(1), run(2, 1), accepted=steps, adjustments=adjusted)
    assert [point.step for point in taken.resumable(2)] == [4, 2]
    own = resume(1, 5).model_copy(update={"attempt": 2})
    assert replace(taken, accepted=(*steps, own)).resumable(2)[0] == own
    assert training(failed(1, None), run(2, 1), accepted=steps).resume is None
    earlier = Proposal(rule="stall", adjustment=Adjustment(), good=3)
    third = training(failed(1), failed(2, earlier), run(3, 1), accepted=steps, adjustments={**adjusted, 3: Adjustment(kl=2.0)})
    assert [point.step for point in third.resumable(3)] == [2]


def test_checkpoint_from_before_a_failure_is_accepted() -> None:
    now = training(run(1, 1), accepted=(resume(1, 6),))
    status = JobStatus(state=JobState.ENDED, incarnation=1, outcome=Outcome.FAILED, reason="because", proposal=ASKS)
    assert decide(now, Observation(job=status, saved=resume(1, 4)), NOON) == AcceptStep(resume(1, 4))
    after = training(run(1, 1), accepted=(resume(1, 6), resume(1, 4)))
    assert decide(after, Observation(job=status, saved=resume(1, 4)), NOON) == JobEnded(1, 1, Outcome.FAILED, "because", ASKS)


def resume(incarnation: int, step: int) -> ResumePoint:
    return ResumePoint(attempt=1, incarnation=incarnation, step=step, path="a1", manifest="m")


def job(state: JobState, incarnation: int = 2, outcome: Outcome | None = None) -> JobStatus:
    return JobStatus(state=state, incarnation=incarnation, outcome=outcome, reason="because")


def test_status_of_a_running_job_is_matched_by_incarnation() -> None:
    now = training(run(1, 1, Outcome.LOST), run(1, 2), accepted=(resume(1, 4),))
    assert isinstance(decide(now, Observation(job=job(JobState.RUNNING)), NOON), Wait)
    assert isinstance(decide(now, Observation(job=job(JobState.PENDING)), NOON), Wait)
    assert decide(now, Observation(job=job(JobState.ENDED, 2, Outcome.DONE)), NOON) == JobEnded(1, 2, Outcome.DONE, "because")
    assert isinstance(decide(now, Observation(job=job(JobState.ENDED, 1, Outcome.LOST)), NOON), Wait), (
        "the previous incarnation's end is ignored"
    )
    for gone in (None, job(JobState.ABSENT)):
        decision = decide(now, Observation(job=gone), NOON)
        assert isinstance(decision, JobEnded)
        assert decision.outcome is Outcome.LOST


def test_an_end_is_recorded_only_after_its_result_is_stored() -> None:
    """The result decides which checkpoints count, so no checkpoint is accepted before it either."""
    for incarnation in (1, 2):
        seen = Observation(job=job(JobState.ENDED, incarnation), saved=resume(2, 2))
        assert decide(training(run(1, 2)), seen, NOON) == Wait("training, attempt 1, has ended; its result is not stored yet")


def test_only_newer_checkpoints_are_accepted() -> None:
    now = training(run(1, 1, Outcome.LOST), run(1, 2), accepted=(resume(1, 4),))
    running = job(JobState.RUNNING)
    assert decide(now, Observation(job=running, saved=resume(2, 2)), NOON) == AcceptStep(resume(2, 2))
    assert decide(now, Observation(job=running, saved=resume(1, 5)), NOON) == AcceptStep(resume(1, 5))
    for old in (resume(1, 4), resume(1, 3)):
        assert isinstance(decide(now, Observation(job=running, saved=old), NOON), Wait)


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([Result.PASS], Do.of(Step.REGISTER)),
        ([Result.PASS, Result.FAIL, Result.INCONCLUSIVE], State.REJECTED),
        ([Result.PASS, Result.INCONCLUSIVE], State.HELD),
        ([], State.HELD),
    ],
)
def test_cycle_continues_after_the_gate_only_with_a_pass(results: list[Result], expected: Any) -> None:
    decision = decide(cycle(State.VERDICT, done=done(judge_result(*results))), Observation(), NOON)
    assert (decision.state if isinstance(decision, End) else decision) == expected


def test_end_of_the_rollout_determines_the_end_of_the_cycle() -> None:
    assert isinstance(decide(cycle(State.ROLLING), Observation(rollback_asked="ada"), NOON), Wait), "the rollout itself rolls back first"
    back = decide(cycle(State.ROLLING), Observation(rollout=("rolled_back", "worse")), NOON)
    assert isinstance(back, End)
    assert (back.state, "worse" in back.reason) == (State.ROLLED_BACK, True)
    promoted = Observation(rollout=("promoted", "fine"))
    assert decide(cycle(State.ROLLING), promoted, NOON) == Do.of(Step.PROMOTE)
    result = judge_result(Result.PASS), PromoteResult(version="v-1")
    ended = decide(cycle(State.ROLLING, done=done(*result)), promoted, NOON)
    assert ended == End(State.PROMOTED, "the gate showed an improvement, and the rollout showed no harm (fine)")


def line(**fields: Any) -> LineView:
    from ratchet.contracts.serving import ModelVersion

    champion = ModelVersion(line="sim", number=0, tag="v-0", model=fake_model("base"), cycle=None)
    return LineView(**{"line": "sim", "seq": 1, "champion": champion, **fields})


@pytest.mark.parametrize(
    ("fields", "traces", "scheduled", "expected"),
    [
        ({"champion": None}, 9999, False, False),
        ({"open_cycle": "cycle/sim/0001"}, 9999, False, False),
        ({}, 99, False, False),
        ({}, 100, False, True),
        ({}, 1, True, True),
        ({}, 0, True, False),
        ({"last_traces": 50}, 149, False, False),
        ({"last_traces": 50}, 150, False, True),
        ({"last_traces": 50}, 40, True, False),
        ({"last_opened": NOON - timedelta(seconds=59)}, 9999, True, False),
        ({"last_opened": NOON - timedelta(seconds=60)}, 9999, False, True),
    ],
)
def test_when_a_cycle_is_due(fields: dict[str, Any], traces: int, scheduled: bool, expected: bool) -> None:
    settings = TriggerSettings(new_traces=100, min_interval=60)
    cursor = Cursor(traces=traces, feedback=0, newest=None)
    wanted, reason = cycle_is_due(line(**fields), cursor, settings, scheduled, NOON)
    assert wanted is expected, reason
    assert reason


def test_edition_changes_after_every_three_promotions() -> None:
    assert [edition_number(n, 3) for n in range(7)] == [1, 1, 1, 2, 2, 2, 3]


SETTINGS = RolloutSettings(steps=(5, 25, 100), max_seconds=100, holdback=10)


def rollout(*steps: float) -> RolloutView:
    found = tuple(RolloutStep(i, weight, NOON) for i, weight in enumerate(steps))
    return RolloutView(id="rollout/sim/0001", seq=1, first=entry(Row(kind="opened")), steps=found)


def judged(result: StepResult) -> StepJudgement:
    return StepJudgement(result=result, reasons=("figures",))


def test_rollout_advances_step_by_step_and_rolls_back_at_once() -> None:
    def decided(view: RolloutView, judgement: StepJudgement | None = None, asked: str | None = None, seconds: float = 0) -> Any:
        return decide_rollout(view, SETTINGS, judgement, asked, NOON + timedelta(seconds=seconds))

    assert decided(rollout()) == SetWeight(0, 5)
    assert decided(rollout(5), judged(StepResult.ADVANCE)) == SetWeight(1, 25)
    assert isinstance(decided(rollout(5), judged(StepResult.WAIT)), Hold)
    assert isinstance(decided(rollout(5)), Hold)
    assert decided(rollout(5, 25, 100), judged(StepResult.ADVANCE)).end == "promoted"
    for view in (rollout(5), rollout(5, 25, 100)):
        assert decided(view, judged(StepResult.ROLL_BACK)).end == "rolled_back"
        assert decided(view, judged(StepResult.WAIT), seconds=101).end == "rolled_back"
        assert decided(view, None, seconds=101).end == "rolled_back"
        assert decided(view, judged(StepResult.ADVANCE), asked="ada").end == "rolled_back"
    assert decided(rollout(), asked="ada").end == "rolled_back"


def test_largest_concurrent_weight() -> None:
    assert [is_largest_concurrent(SETTINGS, i) for i in range(3)] == [False, True, False]
    assert is_largest_concurrent(RolloutSettings(steps=(100,)), 0)


@pytest.mark.parametrize(("weight", "candidate"), [(5, 5), (25, 25), (100, 90)])
def test_weights_add_up_to_100_and_respect_the_holdback(weight: float, candidate: float) -> None:
    arms = weights(weight, SETTINGS, Endpoint(tag="a", url="u", model="m"), Endpoint(tag="b", url="u", model="m"))
    assert [arm.tag for arm in arms] == ["a", "b"]
    assert (arms[0].weight + arms[1].weight, arms[1].weight) == (100, candidate)


def test_first_of_two_answers_is_kept() -> None:
    from ratchet.contracts.cycle import Append
    from ratchet.flows.engine.line import answer as give
    from ratchet.flows.engine.line import approvals

    ledger = MemoryLedger()
    data = {"cycle": "cycle/sim/0001", "kind": "training", "subject": "s", "evidence": "e", "expires": LATER.isoformat()}
    ledger.append([Append(stream="approval/sim/0001/training", after=0, rows=(Row(kind="asked", key="training", data=data),))], None, NOON)
    (request,) = approvals(ledger, "sim")
    assert give(ledger, request, answer(False), LATER) == (None, False), "too late"
    assert give(ledger, request, answer(True), NOON) == (answer(True), True)
    assert give(ledger, request, answer(False), NOON) == (answer(True), False), "given on a form that was opened before the first answer"
    (after,) = approvals(ledger, "sim")
    assert give(ledger, replace(after), answer(False), NOON) == (answer(True), False)
