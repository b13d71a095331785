"""The steps of a cycle: one declaration per step, with its texts for people, its place in the cycle, and the type of its result.

`STEPS` is the only list of the steps. The fold of a cycle, the decisions, the table of effects, the tasks in Prefect, the cards, the
timeline, the report and the reference read it. A new step is declared in this module, and its effect is added to flows/engine/effects.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ratchet.contracts.cycle import ApprovalKind
from ratchet.contracts.data.datasets import HoldoutEdition, ProbeReport, Snapshot, TrainingSet
from ratchet.contracts.data.teaching import TeacherRound
from ratchet.contracts.evaluation import EvalReport, Verdict
from ratchet.contracts.extension import ExtensionVersion
from ratchet.contracts.failure_reasons import told
from ratchet.contracts.ids import Digest
from ratchet.contracts.jobs.training import Adjustment, Checkpoint, Choice, ResumePoint, TrainingPlan
from ratchet.contracts.model import Frozen
from ratchet.contracts.serving import ModelVersion


class State(StrEnum):
    """State of a cycle. The last ten states are final."""

    OPENED = "opened"
    """The cycle is open, and its loop file is recorded."""
    SNAPSHOT = "snapshot"
    """The holdout edition and the snapshot are frozen."""
    PROBED = "probed"
    """The probe is complete, or the loop file disables it."""
    PLANNED = "planned"
    """The training method is chosen. If it is not `none`, the training plan is recorded."""
    TRAINING_APPROVED = "training_approved"
    """The training is approved."""
    ATTEMPT = "attempt"
    """At least one incarnation of the training job was started."""
    ACCEPTED = "accepted"
    """The final checkpoint is verified and is the candidate."""
    EVALUATED = "evaluated"
    """Candidate and champion have answered the prompts of the holdout edition."""
    VERDICT = "verdict"
    """The gate has judged the evaluation."""
    REGISTERED = "registered"
    """The candidate is in the model registry."""
    ROLLOUT_APPROVED = "rollout_approved"
    """The rollout is approved."""
    ROLLING = "rolling"
    """The rollout is in progress."""

    PROMOTED = "promoted"
    """Final: the candidate is the new champion."""
    NOT_TRAINED = "not_trained"
    """Final: no training method was suitable."""
    REJECTED = "rejected"
    """Final: a check of the gate failed, or an operator rejected the training or the rollout."""
    EXPIRED = "expired"
    """Final: a request for approval was not answered in time."""
    HELD = "held"
    """Final: the evidence was not sufficient, so the champion stays."""
    FAILED = "failed"
    """Final: a step cannot succeed, or all training attempts failed."""
    CANCELLED = "cancelled"
    """Final: an operator cancelled the cycle or requested a rollback of the line."""
    ROLLED_BACK = "rolled_back"
    """Final: the rollout was rolled back."""
    SUPERSEDED = "superseded"
    """Final: another version became the champion while the cycle was open, or an upgrade changed the training code after the plan."""
    RECALLED = "recalled"
    """Final: rows on which the cycle's plan rests were erased, or its start model was recalled because of such rows."""


ENDS = frozenset(list(State)[list(State).index(State.PROMOTED) :])
"""Final states of a cycle."""


class Step(StrEnum):
    """Steps of a cycle, in order. `STEPS` declares each of them.

    A step without an approval writes one `intended` row and one `done` row. Training writes one pair per incarnation. An approval writes
    one `asked` row and one `answered` row. Each step is one task run in Prefect.
    """

    FREEZE = "freeze"
    PROBE = "probe"
    PLAN = "plan"
    APPROVE_TRAINING = "approve_training"
    TRAIN = "train"
    ACCEPT = "accept"
    EVALUATE = "evaluate"
    JUDGE = "judge"
    REGISTER = "register"
    APPROVE_ROLLOUT = "approve_rollout"
    ROLL_OUT = "roll_out"
    PROMOTE = "promote"


ONLY_TRAINED = frozenset({Step.PROBE, Step.PLAN, Step.APPROVE_TRAINING, Step.TRAIN})
"""Steps that a cycle with a given model leaves out."""


class StepResult(Frozen):
    """Result of a step's effect: the content of its `done` row."""

    @property
    @abstractmethod
    def sentence(self) -> str:
        """The result in one sentence for people, without a full stop."""


class FreezeResult(StepResult):
    """The frozen data of a cycle."""

    edition: HoldoutEdition
    """The prompts on which candidate and champion are compared."""
    snapshot: Snapshot
    """All other data."""
    teacher: TeacherRound | None = None
    """What was asked of the teacher before, so that its answers are part of the snapshot. None: the loop file names no teacher."""

    @property
    def sentence(self) -> str:
        """The digest and size of the snapshot, and the size of the holdout edition."""
        counts = self.snapshot.counts
        used = f": {counts['used']:,} of {counts['considered']:,} traces used" if {"used", "considered"} <= set(counts) else ""
        frozen = f"froze snapshot {self.snapshot.content[:12]}{used}; {self.edition.size:,} prompts are held out"
        if self.teacher is None:
            return frozen
        sent = self.teacher.asked + self.teacher.measuring
        return f"{frozen}; sent {sent:,} questions to the teacher, for {self.teacher.cost:.4f} {self.teacher.currency}"


class ProbeResult(StepResult):
    """The answers of the start model to training prompts."""

    report: ProbeReport | None
    """None: the loop file disables the probe."""

    @property
    def sentence(self) -> str:
        """The number of answers and their mean reward."""
        if self.report is None:
            return "the loop file disables the probe"
        mean = self.report.mean_reward
        reward = "" if mean is None else f", mean reward {mean:.3f}"
        failed = f"; {self.report.failures:,} requests failed: {told(self.report.reasons)}" if self.report.reasons else ""
        return f"{self.report.answered:,} answers to {self.report.prompts:,} prompts{reward}{failed}"


class PlanResult(StepResult):
    """The training set, and the plan of its training."""

    choice: Choice
    """The method, with the rules and facts that led to it."""
    dataset: TrainingSet
    """What the training reads."""
    plan: TrainingPlan | None
    """None: nothing is trained."""
    trainers: tuple[ExtensionVersion, ...]
    """Code versions of the trainers."""

    @property
    def sentence(self) -> str:
        """The chosen method and the reason."""
        return f"chose {self.choice.method.upper()}: {self.choice.reason}"


class TrainResult(StepResult):
    """The start of one incarnation of the training job."""

    attempt: int
    """Number of the attempt, over all trials of a search."""
    incarnation: int
    """Number of the incarnation within the attempt."""
    job: str
    """Name of the job."""
    adjustment: Adjustment | None = None
    """What the attempt changes in the plan's recipe; None: nothing."""
    resume: ResumePoint | None = None
    """The checkpoint from which it resumes; None: it begins at the start model, or the executor restarted it by itself."""
    refused: tuple[str, ...] = ()
    """Accepted checkpoints that could not be used, with the reasons."""

    @property
    def sentence(self) -> str:
        """The name of the job."""
        return f"submitted job {self.job}"


class AcceptResult(StepResult):
    """The candidate."""

    checkpoint: Checkpoint | None
    """The verified final checkpoint of the training. None for a model that was trained elsewhere."""
    version: ModelVersion
    """The version made from it."""

    @property
    def sentence(self) -> str:
        """The step of the checkpoint and the tag of the version."""
        if self.checkpoint is None:
            return f"accepted the given model as version {self.version.tag}"
        return f"accepted the checkpoint of step {self.checkpoint.step} as version {self.version.tag}"


class EvaluateResult(StepResult):
    """The comparison of candidate and champion on the holdout edition."""

    digest: Digest
    """Digest of the stored report."""
    report: EvalReport
    """The figures, which the checks of the gate judge."""

    @property
    def sentence(self) -> str:
        """The number of compared prompts, the change of the mean reward, and where the evaluation stopped."""
        report, overall = self.report, self.report.comparison("overall")
        answered = f"{report.answered_by_both:,} of {report.asked:,} prompts answered by both"
        if overall is None:
            return f"{answered}; no comparison is possible"
        d = overall.difference
        change = f"{overall.champion:.3f} → {overall.candidate:.3f} ({d.estimate:+.3f}, {d.low:+.3f} to {d.high:+.3f})"
        return f"{answered}, mean reward {change}" + (f"; {report.stop}" if report.stop else "")


class JudgeResult(StepResult):
    """The decision of the gate."""

    verdict: Verdict
    """The result of each check, and of all together."""

    @property
    def sentence(self) -> str:
        """The verdict, and the reasons of the checks that do not pass."""
        return f"the gate: {self.verdict.result}" + (f" ({self.verdict.reasons})" if self.verdict.reasons else "")


class RegisterResult(StepResult):
    """The place of the candidate in the model registry."""

    reference: str
    """Name of the registered model and its version, as an address of the registry."""

    @property
    def sentence(self) -> str:
        """The name of the registered model and its version."""
        return f"registered as {self.reference}"


class RollOutResult(StepResult):
    """The opened rollout."""

    rollout: str
    """Its stream in the ledger."""

    @property
    def sentence(self) -> str:
        """That the rollout is open."""
        return f"opened {self.rollout}"


class PromoteResult(StepResult):
    """The version that all traffic goes to."""

    version: str
    """Its tag."""

    @property
    def sentence(self) -> str:
        """The tag of the version."""
        return f"all traffic goes to {self.version}"


@dataclass(frozen=True, kw_only=True)
class StepDeclaration:
    """What is known about one step. A step has either a result or an approval."""

    step: Step
    title: str
    """Its name for people."""
    purpose: str
    """What it does, as one sentence with a full stop."""
    doing: str
    """What it does while it runs, for example `freezing the data`."""
    after: State
    """State of the cycle after it. Two steps may share a state."""
    needs: tuple[Step, ...] = ()
    """The earlier steps whose results its effect reads."""
    result: type[StepResult] | None = None
    """Type of the result of its effect; None: a person decides."""
    approval: ApprovalKind | None = None
    """Kind of the request that it makes; None: it has an effect."""


STEPS: Mapping[Step, StepDeclaration] = {
    one.step: one
    for one in (
        StepDeclaration(
            step=Step.FREEZE,
            title="Freeze the data",
            purpose="Freeze the holdout edition and the snapshot of the traces.",
            doing="freezing the data",
            after=State.SNAPSHOT,
            result=FreezeResult,
        ),
        StepDeclaration(
            step=Step.PROBE,
            title="Probe the start model",
            purpose="Let the start model answer training prompts, and score the answers.",
            doing="probing the start model",
            after=State.PROBED,
            needs=(Step.FREEZE,),
            result=ProbeResult,
        ),
        StepDeclaration(
            step=Step.PLAN,
            title="Plan the training",
            purpose="Assemble the training set, and choose the training method, or not to train.",
            doing="choosing the training method",
            after=State.PLANNED,
            needs=(Step.FREEZE, Step.PROBE),
            result=PlanResult,
        ),
        StepDeclaration(
            step=Step.APPROVE_TRAINING,
            title="Approve the training",
            purpose="Wait for the approval of the training.",
            doing="waiting for the approval of the training",
            after=State.TRAINING_APPROVED,
            approval=ApprovalKind.TRAINING,
        ),
        StepDeclaration(
            step=Step.TRAIN,
            title="Train",
            purpose="Train, with restarts and new attempts, until a model is published.",
            doing="starting the training",
            after=State.ATTEMPT,
            needs=(Step.PLAN,),
            result=TrainResult,
        ),
        StepDeclaration(
            step=Step.ACCEPT,
            title="Accept the checkpoint",
            purpose="Verify the final checkpoint and accept it as the candidate.",
            doing="verifying the checkpoint",
            after=State.ACCEPTED,
            needs=(Step.PLAN,),
            result=AcceptResult,
        ),
        StepDeclaration(
            step=Step.EVALUATE,
            title="Evaluate the candidate",
            purpose="Let candidate and champion answer the prompts of the holdout edition.",
            doing="evaluating champion and candidate",
            after=State.EVALUATED,
            needs=(Step.FREEZE, Step.ACCEPT),
            result=EvaluateResult,
        ),
        StepDeclaration(
            step=Step.JUDGE,
            title="Judge the evaluation",
            purpose="Judge the evaluation with the checks of the gate.",
            doing="judging the evaluation",
            after=State.VERDICT,
            needs=(Step.FREEZE, Step.ACCEPT, Step.EVALUATE),
            result=JudgeResult,
        ),
        StepDeclaration(
            step=Step.REGISTER,
            title="Register the candidate",
            purpose="Register the candidate in the model registry.",
            doing="registering the candidate",
            after=State.REGISTERED,
            needs=(Step.FREEZE, Step.PLAN, Step.TRAIN, Step.ACCEPT, Step.EVALUATE, Step.JUDGE),
            result=RegisterResult,
        ),
        StepDeclaration(
            step=Step.APPROVE_ROLLOUT,
            title="Approve the rollout",
            purpose="Wait for the approval of the rollout.",
            doing="waiting for the approval of the rollout",
            after=State.ROLLOUT_APPROVED,
            approval=ApprovalKind.ROLLOUT,
        ),
        StepDeclaration(
            step=Step.ROLL_OUT,
            title="Roll out the candidate",
            purpose="Move traffic to the candidate in steps, as long as its evidence permits. The service looks at it every few seconds.",
            doing="starting the rollout",
            after=State.ROLLING,
            needs=(Step.ACCEPT,),
            result=RollOutResult,
        ),
        StepDeclaration(
            step=Step.PROMOTE,
            title="Promote the candidate",
            purpose="Route all traffic to the candidate, the new champion.",
            doing="routing all traffic to the candidate",
            after=State.ROLLING,
            needs=(Step.ACCEPT,),
            result=PromoteResult,
        ),
    )
}
"""Step -> its declaration, in the order of the cycle."""
APPROVALS: Mapping[ApprovalKind, StepDeclaration] = {one.approval: one for one in STEPS.values() if one.approval is not None}
"""Kind of a request for approval -> the step that makes it."""
_STEP_OF: Mapping[type[StepResult], Step] = {one.result: one.step for one in STEPS.values() if one.result is not None}


def step_of_result(kind: type[StepResult]) -> Step:
    """Return the step whose effect has results of this type."""
    return _STEP_OF[kind]
