"""Folds the rows of a cycle into its view. Pure; makes no decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from ratchet.contracts.cycle import Answer, ApprovalKind, Entry, Identity
from ratchet.contracts.errors import Permanent
from ratchet.contracts.evaluation import EvalReport, Verdict
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.search import Chosen, Trial, TrialEnd, trial_plan
from ratchet.contracts.jobs.training import Adjustment, Checkpoint, Choice, Method, Proposal, ResumePoint, TrainingPlan, Usage
from ratchet.contracts.rows import Asked, CycleOpened, EffectIntended, FailedTry, GivenModel, JobEnd, Reason, TrialBegun, content_of
from ratchet.contracts.schema import upgraded
from ratchet.contracts.serving import ModelVersion
from ratchet.contracts.steps import (
    APPROVALS,
    ENDS,
    ONLY_TRAINED,
    STEPS,
    AcceptResult,
    EvaluateResult,
    JudgeResult,
    PlanResult,
    State,
    Step,
    StepResult,
    TrainResult,
    step_of_result,
)
from ratchet.flows.core.searches.search import Tried

if TYPE_CHECKING:
    from ratchet.contracts.loop import Loop

_Result = TypeVar("_Result", bound=StepResult)


@dataclass(frozen=True)
class Done:
    """The `done` row of an effect. Its content is parsed when it is first read, so that a damaged row does not hide the others."""

    row: Entry

    @property
    def step(self) -> Step:
        """The step whose effect it is."""
        return _step_of(self.row)

    @cached_property
    def result(self) -> StepResult:
        """The result of the effect. Raises Permanent if the row does not fit the step's type."""
        kind = STEPS[self.step].result
        if kind is None:
            raise Permanent(f"row {self.row.seq} of {self.row.stream} records a result of {self.step}, which has none")
        return content_of(kind, self.row)

    def of(self, kind: type[_Result]) -> _Result:
        """Return the result, which is of this type. Raises TypeError if the step has another type."""
        if not isinstance(self.result, kind):
            raise TypeError(f"{self.row.key} has a {type(self.result).__name__}, not a {kind.__name__}")
        return self.result


def _step_of(row: Entry) -> Step:
    name = row.key.split("/")[0]
    if name not in STEPS:
        raise Permanent(f"row {row.seq} of {row.stream} ({row.kind} {row.key}) is about a step that this release does not know")
    return Step(name)


@dataclass(frozen=True)
class Incarnation:
    """One start of a training job within an attempt."""

    attempt: int
    number: int
    job: str
    outcome: Outcome | None = None
    reason: str = ""
    proposal: Proposal | None = None
    """The change that the failed job proposes for the next attempt; None if it proposes none."""
    events: str | None = None
    """Artifact digest of the attempt's event log, up to the end of this incarnation."""
    successor: int = 0
    """The incarnation that the executor started by itself as a replacement; 0 if there is none."""
    usage: Usage | None = None
    """Resources that the attempt used up to the end of this incarnation; None without metering."""
    began: datetime | None = None
    """When the ledger recorded its start."""
    ended: datetime | None = None
    """When the ledger recorded its end."""


@dataclass(frozen=True)
class CycleView:
    """The state of a cycle, folded from its rows."""

    id: str
    seq: int
    state: State
    first: Entry
    """The row that opened it. Its content is parsed when it is first read."""
    intended: frozenset[str]
    done: Mapping[str, Done]
    """Maps the effect key to the row with the effect's result."""
    asked: dict[ApprovalKind, datetime] = field(default_factory=dict)
    """Maps each open or answered approval request to its expiry time."""
    answers: dict[ApprovalKind, Answer] = field(default_factory=dict)
    incarnations: tuple[Incarnation, ...] = ()
    accepted: tuple[ResumePoint, ...] = ()
    """Accepted intermediate checkpoints of all attempts, in order of acceptance."""
    adjustments: dict[int, Adjustment] = field(default_factory=dict)
    """Maps an attempt number to its adjustment. Attempts without an adjustment are absent."""
    tries: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Maps an effect key to the errors that were recorded for its failed tries."""
    trials: tuple[Tried, ...] = ()
    """The trials of the plan's search, in order."""
    chosen: Chosen | None = None
    """The result of the search; None before its end, or without a search."""
    reason: str = ""
    """Why the cycle ended; empty while it is open."""
    ended_at: datetime | None = None
    """When the cycle ended; None while it is open."""

    @property
    def ended(self) -> bool:
        """Whether the cycle is in an end state."""
        return self.state in ENDS

    @property
    def resume(self) -> ResumePoint | None:
        """The preferred resume point for the next incarnation of the newest attempt. Its files are not checked here."""
        points = self.resumable(self.incarnations[-1].attempt) if self.incarnations else ()
        return points[0] if points else None

    def resumable(self, attempt: int) -> tuple[ResumePoint, ...]:
        """List the accepted checkpoints that an attempt may resume from, best first.

        The attempt's own checkpoints come first. If the attempt has an adjustment, those of the previous attempt follow, up to its
        last good step. An attempt without any checkpoint begins at the start model.
        """
        own = [point for point in self.accepted if point.attempt == attempt]
        own.sort(key=lambda point: (point.incarnation, point.step), reverse=True)
        good = self._good(attempt - 1) if attempt in self.adjustments else None
        before = self.resumable(attempt - 1) if good is not None else ()
        return (*own, *(point for point in before if good is not None and point.step <= good))

    def _good(self, attempt: int) -> int | None:
        last = next((i for i in reversed(self.incarnations) if i.attempt == attempt), None)
        return last.proposal.good if last and last.proposal else None

    @property
    def line(self) -> str:
        """Name of the cycle's model line."""
        return self.id.split("/")[1]

    @property
    def number(self) -> int:
        """Number of the cycle within its line, starting at 1."""
        return int(self.id.split("/")[2])

    @property
    def opened_at(self) -> datetime:
        """When the cycle was opened."""
        return self.first.at

    @cached_property
    def opened(self) -> CycleOpened:
        """What the cycle was opened with. Raises Permanent if its first row does not fit the type."""
        return content_of(CycleOpened, self.first)

    @property
    def given(self) -> GivenModel | None:
        """The model that an operator gave as the candidate; None if the cycle trains one."""
        return self.opened.given

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the cycle, in order. A cycle with a given model trains nothing."""
        return tuple(step for step in Step if not (self.is_given and step in ONLY_TRAINED))

    @property
    def is_given(self) -> bool:
        """Whether an operator gave the candidate. It is known without the content of the first row, which may be damaged."""
        return "given" in self.first.data

    @property
    def loop(self) -> Loop:
        """The content of the loop file when the cycle was opened."""
        return self.opened.loop

    @property
    def champion(self) -> ModelVersion:
        """The line's champion when the cycle was opened."""
        return self.opened.champion

    @property
    def baseline(self) -> ModelVersion:
        """The version that the candidate is compared with: the champion, or the newest champion before it that is not recalled."""
        return self.opened.baseline or self.opened.champion

    @property
    def start(self) -> ModelVersion:
        """The version that training starts from."""
        return self.opened.start

    def has(self, step: Step) -> bool:
        """Return whether the ledger has a result of the step, or an answer to its request. A training has one as soon as it has begun."""
        if step is Step.TRAIN:
            return bool(self.incarnations)
        approval = STEPS[step].approval
        return step in self.done if approval is None else approval in self.answers

    def get(self, kind: type[_Result]) -> _Result | None:
        """Return the result of this type, for example `FreezeResult`; None before its step is done. For a `TrainResult`, see `begun`."""
        done = self.done.get(step_of_result(kind))
        return done.of(kind) if done is not None else None

    def result(self, kind: type[_Result]) -> _Result:
        """Return the result of this type. Raises Permanent before its step is done."""
        found = self.get(kind)
        if found is None:
            raise Permanent(f"{self.id} has no result of the step {step_of_result(kind)}")
        return found

    def begun(self, attempt: int, incarnation: int) -> TrainResult | None:
        """Return how an incarnation of the training began; None if the cycle has no such incarnation."""
        done = self.done.get(train_key(attempt, incarnation))
        return done.of(TrainResult) if done is not None else None

    @property
    def choice(self) -> Choice | None:
        """The chosen method and its rules; None before the plan is done."""
        planned = self.get(PlanResult)
        return planned.choice if planned else None

    @property
    def plan(self) -> TrainingPlan | None:
        """The training plan; None before planning, or if nothing is trained."""
        planned = self.get(PlanResult)
        return planned.plan if planned else None

    @property
    def last(self) -> Incarnation | None:
        """The newest incarnation; after a search, that of the chosen trial. None before the first one."""
        found = self.incarnations
        if self.chosen is not None:
            found = tuple(one for one in found if (trial := self.trial_of(one.attempt)) and trial.number == self.chosen.trial)
        return found[-1] if found else None

    @property
    def has_trained(self) -> bool:
        """Whether a training has published the model that can become the candidate."""
        searched = self.chosen is not None or self.plan is None or self.plan.search is None
        return searched and self.last is not None and self.last.outcome is Outcome.DONE

    def trial_of(self, attempt: int) -> Trial | None:
        """Return the trial that an attempt belongs to; None without a search."""
        return next((one.trial for one in reversed(self.trials) if one.trial.attempt <= attempt), None)

    def plan_of(self, attempt: int) -> TrainingPlan | None:
        """Return the plan that an attempt runs: the cycle's, or that of the attempt's trial. None before planning."""
        trial = self.trial_of(attempt)
        return self.plan if trial is None or self.plan is None else trial_plan(self.plan, trial)

    @property
    def trained_plan(self) -> TrainingPlan | None:
        """The plan of the newest training; after a search, that of the chosen trial."""
        return self.plan_of(self.last.attempt) if self.last else self.plan

    @property
    def method(self) -> Method | None:
        """The method of the newest training, or the chosen one before it; `none` if nothing is trained. None before the choice."""
        plan = self.trained_plan
        return plan.method if plan else self.choice.method if self.choice else None

    @property
    def method_name(self) -> str | None:
        """The method for tables, or `given` for a model that was trained elsewhere. None before the choice."""
        return "given" if self.is_given else str(self.method) if self.method else None

    @property
    def plans(self) -> tuple[TrainingPlan, ...]:
        """All plans that jobs of the cycle run: the cycle's own, and that of each trial."""
        return () if self.plan is None else (self.plan, *(trial_plan(self.plan, one.trial) for one in self.trials))

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The accepted final checkpoint; None before its acceptance."""
        accepted = self.get(AcceptResult)
        return accepted.checkpoint if accepted else None

    @property
    def candidate(self) -> ModelVersion | None:
        """The model version made from the accepted checkpoint; None before its acceptance."""
        accepted = self.get(AcceptResult)
        return accepted.version if accepted else None

    @property
    def report(self) -> EvalReport | None:
        """The comparison of candidate and champion; None before the evaluation."""
        evaluated = self.get(EvaluateResult)
        return evaluated.report if evaluated else None

    @property
    def verdict(self) -> Verdict | None:
        """The gate's verdict on the candidate; None before the judge step."""
        judged = self.get(JudgeResult)
        return judged.verdict if judged else None


def train_key(attempt: int, incarnation: int) -> str:
    """Return the effect key of one incarnation, `train/ATTEMPT/INCARNATION`."""
    return f"{Step.TRAIN}/{attempt}/{incarnation}"


def fold_cycle(entries: Sequence[Entry]) -> CycleView:
    """Fold a cycle's rows into its view. The first row must be `opened`."""
    entries = upgraded(entries)
    first = entries[0]
    state, reason = State.OPENED, ""
    ended_at: datetime | None = None
    intended: set[str] = set()
    done: dict[str, Done] = {}
    asked: dict[ApprovalKind, datetime] = {}
    answers: dict[ApprovalKind, Answer] = {}
    incarnations: dict[tuple[int, int], Incarnation] = {}
    accepted: list[ResumePoint] = []
    adjustments: dict[int, Adjustment] = {}
    tries: dict[str, tuple[str, ...]] = {}
    trials: list[Tried] = []
    chosen: Chosen | None = None
    for entry in entries[1:]:
        if entry.kind == "intended":
            intended.add(entry.key)
            if entry.data and (adjustment := content_of(EffectIntended, entry).adjustment):
                adjustments[int(entry.key.split("/")[1])] = adjustment
        elif entry.kind == "done":
            done[entry.key] = performed = Done(entry)
            step = performed.step
            state = STEPS[step].after
            if step is Step.TRAIN:
                began = performed.of(TrainResult)
                incarnations[began.attempt, began.incarnation] = Incarnation(began.attempt, began.incarnation, began.job, began=entry.at)
        elif entry.kind == "asked":
            asked[ApprovalKind(entry.key)] = content_of(Asked, entry).expires
        elif entry.kind == "answered":
            kind = ApprovalKind(entry.key)
            answers[kind] = given = content_of(Answer, entry)
            state = APPROVALS[kind].after if given.approve else state
        elif entry.kind == "job_ended":
            end = content_of(JobEnd, entry)
            before = incarnations[end.attempt, end.incarnation]
            incarnations[end.attempt, end.incarnation] = Incarnation(
                end.attempt,
                end.incarnation,
                before.job,
                end.outcome,
                end.reason,
                end.proposal,
                end.events,
                end.successor,
                end.usage,
                before.began,
                entry.at,
            )
        elif entry.kind == "trial_intended":
            trials.append(Tried(content_of(TrialBegun, entry).trial))
        elif entry.kind == "trial_ended":
            trials[-1] = Tried(trials[-1].trial, content_of(TrialEnd, entry))
        elif entry.kind == "chosen":
            chosen = content_of(Chosen, entry)
        elif entry.kind == "tried":
            tries[entry.key] = (*tries.get(entry.key, ()), content_of(FailedTry, entry).error)
        elif entry.kind == "step_accepted":
            accepted.append(content_of(ResumePoint, entry))
        elif entry.kind == "ended":
            state, reason, ended_at = State(entry.key), content_of(Reason, entry).reason, entry.at
    return CycleView(
        id=first.stream,
        seq=entries[-1].seq,
        state=state,
        first=first,
        intended=frozenset(intended),
        done=done,
        asked=asked,
        answers=answers,
        incarnations=tuple(incarnations[key] for key in sorted(incarnations)),
        accepted=tuple(accepted),
        adjustments=adjustments,
        tries=tries,
        trials=tuple(trials),
        chosen=chosen,
        reason=reason,
        ended_at=ended_at,
    )


AUTO = Answer(approve=True, actor="loop file", identity=Identity.AUTO, via="loop-file")
