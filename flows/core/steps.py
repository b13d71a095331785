"""The step that a cycle is at, and what its steps have led to so far. Pure."""

from __future__ import annotations

from ratchet.contracts.evaluation import Result
from ratchet.contracts.jobs.training import Method
from ratchet.contracts.steps import STEPS, State, Step
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.folds.rollout import RolloutView


def next_step(cycle: CycleView, is_rolled_out: bool) -> Step | None:
    """Return the first step that a cycle has not passed, or None if it has passed all of them.

    `is_rolled_out` says whether the cycle's rollout has ended with the promotion of the candidate. All steps before the newest one with a
    result are passed, also one that a later release has put there.
    """
    order = cycle.steps
    newest = max((number for number, step in enumerate(order) if cycle.has(step)), default=0)
    return next((step for step in order[newest:] if not _has_passed(cycle, step, is_rolled_out)), None)


def _has_passed(cycle: CycleView, step: Step, is_rolled_out: bool) -> bool:
    """Whether a cycle may go on after the step. A step with a result that ends the cycle, for example a gate that fails, is not passed."""
    match step:
        case Step.PLAN:
            return cycle.choice is not None and cycle.choice.method is not Method.NONE
        case Step.TRAIN:
            return cycle.has_trained
        case Step.JUDGE:
            return cycle.verdict is not None and cycle.verdict.result is Result.PASS
        case Step.ROLL_OUT:
            return cycle.has(step) and is_rolled_out
    approval = STEPS[step].approval
    return cycle.has(step) if approval is None else approval in cycle.answers and cycle.answers[approval].approve


def step_of(cycle: CycleView, rollout: RolloutView | None) -> Step | None:
    """Return the step that an open cycle is at, or None for an ended cycle. `rollout` is the cycle's rollout, None before it opens.

    A step that ends the cycle stays the step of the cycle until the end is recorded. The last step does so, too.
    """
    if cycle.ended:
        return None
    return next_step(cycle, rollout is not None and rollout.end == "promoted") or cycle.steps[-1]


def outcome_text(cycle: CycleView, step: Step) -> str:
    """Return one sentence about what a step has led to. A training and a rollout go on after their effect, and approvals have none."""
    approval = STEPS[step].approval
    if cycle.ended and STEPS[step].after is not State.ROLLING:
        return f"{cycle.id} ended {cycle.state}: {cycle.reason}"
    if approval is not None:
        given = cycle.answers.get(approval)
        return f"approved by {given.actor} via {given.via}" if given else "approved"
    if step is Step.TRAIN and cycle.incarnations:
        last, chosen = cycle.incarnations[-1], cycle.chosen
        if chosen is not None:
            return f"the search chose trial {chosen.trial} ({chosen.variant}): {chosen.reason}"
        return f"attempt {last.attempt}, incarnation {last.number}: {last.outcome or 'running'}"
    if cycle.ended:
        return f"{cycle.state}: {cycle.reason}"
    return cycle.done[step].result.sentence if step in cycle.done else f"{step} is done"
