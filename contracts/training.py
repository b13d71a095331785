"""From a choice to a checkpoint: plan, job, attempts, incarnations.

Three numbers that must not be mixed: the *lease epoch* guards ledger writes and never reaches a job; an *attempt* is minted
by a ledger row; an *incarnation* is a restart within an attempt. A job writes to `plan/aN/iM/step_K`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from contracts.data import Facts, ScorerVersion
from contracts.exits import Outcome
from contracts.ids import Digest, digest
from contracts.model import Frozen, ModelRef


class Method(StrEnum):
    """How to train, or that we do not."""

    GRPO = "grpo"
    DPO = "dpo"
    SFT = "sft"
    NONE = "none"


class RuleResult(Frozen):
    """One row of the choice's table."""

    rule: str
    holds: bool
    evidence: str
    """The measured figures, in words."""
    effect: str
    """What this row says to the choice."""
    change: str = ""
    """What would turn it round: the figure that it lacks, or that it has to spare."""


class Choice(Frozen):
    """The method, and the table it follows from."""

    method: Method
    reason: str
    rules: tuple[RuleResult, ...]
    facts: Facts


class TrainingPlan(Frozen):
    """Everything that decides a training run. Computed once, stored in the ledger, never recomputed."""

    line: str
    cycle: str
    start: ModelRef
    dataset: Digest
    """TrainingSet.content"""
    pairs: Digest
    prompts: Digest
    demonstrations: Digest
    method: Method
    recipe: dict[str, Any]
    """A complete recipe as data (trainers/recipes.py): no default is left to the trainer's own version."""
    seed: int
    scorers: tuple[ScorerVersion, ...]
    scorer_options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    code: Digest
    """Of contracts + rewards + trainers."""

    @property
    def id(self) -> Digest:
        return digest(self)


class Cost(Frozen):
    """What one attempt at a plan would take, at most: every row at its full length."""

    seconds: float
    price: float | None = None
    """By the price table, in its currency; none: no machines that it knows."""
    cap: float | None = None
    """Most that the loop file lets an attempt cost."""
    basis: str
    """The assumptions, in words."""


class Adjustment(Frozen):
    """What a health watch changed for an attempt: factors on the plan's recipe. The plan itself stays as it is."""

    learning_rate: float = 1.0
    """On the recipe's learning rate."""
    kl: float = 1.0
    """On the penalty that holds the model near the start model (`beta`)."""
    memory: float = 1.0
    """On rows in memory at once and on the share of a GPU's memory that generation takes."""
    rules: tuple[str, ...] = ()
    """Names of the rules that asked for it, oldest first: none may ask twice."""
    reason: str = ""
    """What went wrong in the attempt before, in words."""

    def then(self, proposal: Proposal, reason: str) -> Adjustment:
        """This one, and what the attempt that ran with it proposed."""
        further = proposal.adjustment
        return Adjustment(
            learning_rate=self.learning_rate * further.learning_rate,
            kl=self.kl * further.kl,
            memory=self.memory * further.memory,
            rules=(*self.rules, proposal.rule),
            reason=reason,
        )


class Proposal(Frozen):
    """What a failed attempt asks the next one to change. A ledger's row grants it, or does not."""

    rule: str
    """The rule of the health watch that ended the attempt."""
    adjustment: Adjustment
    """Factors on what the attempt itself ran with."""
    good: int
    """The last step before the trouble began: a checkpoint of a later one is not resumed from."""


class Attempt(Frozen):
    """One try at a plan. Minted by a ledger row; another one may have other resources or an adjustment."""

    number: int
    """1, 2, …"""
    timeout: float
    """Seconds of the whole attempt, all incarnations together."""
    nodes: int = 1
    """Machines that run together, as a gang."""
    gpus: int = 0
    """Per node; 0 trains on the CPU."""
    adjustment: Adjustment = Adjustment()


class JobSpec(Frozen):
    """One attempt of a plan, ready for any executor."""

    name: str
    plan: Digest
    attempt: int
    command: tuple[str, ...]
    """argv of process 1, our wrapper; `{python}` and `{run}` are filled in by the executor."""
    environment: dict[str, str]
    inputs: dict[str, Digest]
    """Folder name below the run folder -> artifact (a file or a folder manifest)."""
    plan_json: str
    """Written to `plan.json` in the run folder."""
    grace_seconds: int
    """From SIGTERM to SIGKILL."""
    nodes: int = 1
    gpus: int = 0
    """Per node."""
    cpus: int = 1
    """Per node."""


class ResumePoint(Frozen):
    """A checkpoint that the ledger accepted; the next incarnation resumes from it."""

    attempt: int
    incarnation: int
    step: int
    path: str
    """Of the step's folder, relative to the plan's folder: `a1/i1/step_20`."""
    manifest: Digest
    """Of its manifest.json."""


class Checkpoint(Frozen):
    """A finished model as a job published it."""

    plan: Digest
    attempt: int
    incarnation: int
    step: int
    files: Digest
    """Artifact: the folder manifest (sha256 of every file), written last."""
    model: ModelRef
    metrics: dict[str, float]

    @property
    def id(self) -> Digest:
        return digest([self.plan, self.model.id])


class JobEvent(Frozen):
    """One line of a job's events.jsonl."""

    at: float
    """Seconds since the epoch."""
    incarnation: int
    kind: str
    """started | progress | saving | checkpoint | warning | exporting | stopped | published"""
    step: int = 0
    total: int = 0
    data: dict[str, Any] = Field(default_factory=dict)


class StepFigures(Frozen):
    """What one optimiser step measured."""

    step: int
    at: float
    """Seconds since the epoch."""
    figures: dict[str, float]
    """loss, grad_norm, reward, kl, …"""


class JobState(StrEnum):
    """Where a job is."""

    ABSENT = "absent"
    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


class Usage(Frozen):
    """What an attempt has used of a cluster so far, all incarnations together."""

    started: float | None
    """Seconds from its submission to the first moment in which all of it ran."""
    used: float
    """GPU-seconds in which all of it ran."""
    idle: float
    """GPU-seconds of machines that it held and could not start on."""
    lost: float
    """GPU-seconds in which only a part of it was alive."""
    nodes: float
    """Machine-seconds, whatever for."""
    cost: float
    """By the price table, in its currency; 0 for machines that it does not know."""
    preemptions: int


class JobStatus(Frozen):
    """What an executor sees."""

    state: JobState
    incarnation: int = 0
    step: int = 0
    total: int = 0
    outcome: Outcome | None = None
    reason: str = ""
    """Why it ended, or does not run yet; where the cluster restarted it, what had died. In words for a person."""
    proposal: Proposal | None = None
    """What the next attempt should change, where the job failed and knows."""
    usage: Usage | None = None
    """Where somebody meters."""
