"""The steps of a cycle as a user sees them, which of them are done, and the one that a cycle is at. Pure."""

from __future__ import annotations

from enum import StrEnum

from ratchet.contracts.cycle import ApprovalKind, State, Step
from ratchet.contracts.evaluation import Result
from ratchet.contracts.jobs.training import Method
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.folds.rollout import RolloutView


class CycleStep(StrEnum):
    """A step of a cycle, in order. Each is one task run in Prefect."""

    FREEZE = "freeze"
    """Freeze the holdout edition and the snapshot."""
    PROBE = "probe"
    """Let the start model answer training prompts."""
    CHOOSE = "choose"
    """Choose the training method."""
    APPROVE_TRAINING = "approve training"
    """Wait for the approval of the training."""
    TRAIN = "train"
    """Train until an attempt has published its model."""
    ACCEPT = "accept"
    """Verify the final checkpoint."""
    EVALUATE = "evaluate"
    """Let candidate and champion answer the holdout edition."""
    JUDGE = "judge"
    """Judge the evaluation."""
    REGISTER = "register"
    """Register the candidate."""
    APPROVE_ROLLOUT = "approve rollout"
    """Wait for the approval of the rollout."""
    ROLL_OUT = "roll out"
    """Move traffic to the candidate in steps."""
    PROMOTE = "promote"
    """Route all traffic to the candidate."""


_STEPS = {
    State.OPENED: CycleStep.FREEZE,
    State.SNAPSHOT: CycleStep.PROBE,
    State.PROBED: CycleStep.CHOOSE,
    State.TRAINING_APPROVED: CycleStep.TRAIN,
    State.ACCEPTED: CycleStep.EVALUATE,
    State.EVALUATED: CycleStep.JUDGE,
    State.REGISTERED: CycleStep.APPROVE_ROLLOUT,
    State.ROLLOUT_APPROVED: CycleStep.ROLL_OUT,
}


def step_of(cycle: CycleView, rollout: RolloutView | None) -> CycleStep | None:
    """Return the step that an open cycle is at, or None for an ended cycle. `rollout` is the cycle's rollout, None before it opens.

    A step that ends the cycle stays the step of the cycle until the end is recorded, for example a gate that fails.
    """
    if cycle.ended:
        return None
    match cycle.state:
        case State.PLANNED:
            trained = cycle.choice is not None and cycle.choice.method is not Method.NONE
            return CycleStep.APPROVE_TRAINING if trained else CycleStep.CHOOSE
        case State.ATTEMPT:
            return CycleStep.ACCEPT if cycle.has_trained else CycleStep.TRAIN
        case State.VERDICT:
            passed = cycle.verdict is not None and cycle.verdict.result is Result.PASS
            return CycleStep.REGISTER if passed else CycleStep.JUDGE
        case State.ROLLING:
            return CycleStep.PROMOTE if rollout is not None and rollout.end == "promoted" else CycleStep.ROLL_OUT
        case state:
            return _STEPS[state]


_EFFECTS = {
    CycleStep.FREEZE: Step.FREEZE,
    CycleStep.PROBE: Step.PROBE,
    CycleStep.CHOOSE: Step.PLAN,
    CycleStep.ACCEPT: Step.ACCEPT,
    CycleStep.EVALUATE: Step.EVALUATE,
    CycleStep.JUDGE: Step.JUDGE,
    CycleStep.REGISTER: Step.REGISTER,
    CycleStep.ROLL_OUT: Step.ROLL,
    CycleStep.PROMOTE: Step.PROMOTE,
}
APPROVALS = {CycleStep.APPROVE_TRAINING: ApprovalKind.TRAINING, CycleStep.APPROVE_ROLLOUT: ApprovalKind.ROLLOUT}
"""Step that waits for a person -> kind of its request."""


def is_done(cycle: CycleView, step: CycleStep) -> bool:
    """Return whether the ledger has a result of the step. A training counts as soon as it has begun, a rollout when it has opened."""
    if step is CycleStep.TRAIN:
        return bool(cycle.incarnations)
    return APPROVALS[step] in cycle.answers if step in APPROVALS else _EFFECTS[step] in cycle.done
