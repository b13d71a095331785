"""Types for training, from the choice of a method to a checkpoint: plans, jobs, attempts and incarnations.

Three numbers must not be confused. The *lease epoch* protects ledger writes and is never passed to a job. An *attempt* is created by a
ledger row. An *incarnation* is a restart within an attempt. A job writes to `plan/aN/iM/step_K`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from ratchet.contracts.data.datasets import Facts, ScorerVersion
from ratchet.contracts.ids import Digest, digest
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.model import Frozen, ModelRef


class Method(StrEnum):
    """Training method. NONE means that no training takes place."""

    GRPO = "grpo"
    DPO = "dpo"
    SFT = "sft"
    NONE = "none"


class RuleResult(Frozen):
    """Result of one rule in the choice of the training method."""

    rule: str
    holds: bool
    evidence: str
    """Description of the measured figures."""
    effect: str
    """Effect of this rule on the choice."""
    change: str = ""
    """Change that would reverse the result: how far the figure is from its limit."""


class LeftOut(Frozen):
    """Rows of a training set that a training job leaves out, counted by reason."""

    what: str
    """What the rows are, in the plural: pairs, answers, prompts."""
    rows: int
    """Number of all rows, those that are left out included."""
    reasons: dict[str, int]
    """Reason -> number of rows. Each row counts once, under the first reason that applies. A reason follows its number in a sentence."""

    @property
    def kept(self) -> int:
        """Number of rows that the job trains on."""
        return self.rows - sum(self.reasons.values())

    @property
    def counts(self) -> str:
        """The number of rows for each reason; empty if no row is left out."""
        return ", ".join(f"{n} {reason}" for reason, n in self.reasons.items() if n)

    @property
    def sentence(self) -> str:
        """How many rows are left out, for which reasons."""
        if not self.counts:
            return f"none of {self.rows} {self.what} is excluded"
        if not self.kept:
            return f"all {self.rows} {self.what} are excluded: {self.counts}"
        return f"of {self.rows} {self.what}, excluded: {self.counts}"


class BeforeTraining(Frozen):
    """What is known about a training job before it runs."""

    left_out: tuple[LeftOut, ...]
    """Rows that the job leaves out. The first entry is what the method trains on."""
    warnings: tuple[str, ...] = ()
    """In what the model is not trained as it is served, each with its remedy."""


class Choice(Frozen):
    """Chosen training method, with the rule results and the facts that led to it."""

    method: Method
    reason: str
    rules: tuple[RuleResult, ...]
    facts: Facts
    left_out: tuple[LeftOut, ...] = ()
    """Rows that the job of the method will leave out. Empty if nothing is trained, or if they were not counted."""
    warnings: tuple[str, ...] = ()
    """What does not prevent the training but can spoil its result, each with its remedy."""


class Variant(Frozen):
    """One recipe of a search."""

    name: str
    """What distinguishes it, for example `sft, rate × 3`. Unique within a search."""
    method: Method
    recipe: dict[str, Any]
    """Complete recipe, as in a plan."""


class Search(Frozen):
    """Search for the best recipe of a plan: its space and its budget. The seed, the data and the development prompts are the plan's."""

    variants: tuple[Variant, ...]
    """All recipes, in the order in which they are tried. The first one is the plan's own."""
    budget: float
    """Seconds of job time for all trials but the first, lost and preempted time included."""
    first: str
    """Why the first variant is the first."""


class TrainingPlan(Frozen):
    """All inputs of a training run. It is computed once, stored in the ledger and never recomputed."""

    line: str
    cycle: str
    start: ModelRef
    """Start model of the training."""
    dataset: Digest
    """Equal to TrainingSet.content."""
    pairs: Digest
    prompts: Digest
    demonstrations: Digest
    method: Method
    recipe: dict[str, Any]
    """Complete recipe as data (trainers/recipes). It contains every value, so that it does not depend on a trainer's defaults."""
    seed: int
    scorers: tuple[ScorerVersion, ...]
    scorer_options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    code: Digest
    """Digest of the packages contracts, runtime, rewards and trainers."""
    development: Digest | None = None
    """See `TrainingSet.development`. A job reads it if its recipe has `steps = "auto"`."""
    answer_tokens: int | None = None
    """Maximum tokens of an answer to a development prompt, as in the gate."""
    answer_temperature: float | None = None
    """Sampling temperature of an answer to a development prompt, as in the gate. None: the most probable token at each place.
    NeMo RL validates with the sampling of its release."""
    search: Search | None = None
    """The search that the plan permits. None: its recipe is the only one."""
    cross_validation: Digest | None = None
    """See `TrainingSet.cross_validation`. A job reads it if its recipe has `steps = "auto"` and folds."""

    @property
    def rows(self) -> Digest:
        """The artifact of the rows that the method trains on, which have a column `prompt_id`."""
        return {Method.SFT: self.demonstrations, Method.DPO: self.pairs, Method.GRPO: self.prompts}[self.method]

    @property
    def data(self) -> tuple[Digest, ...]:
        """The artifacts with rows, of which the job reads some."""
        return (self.pairs, self.prompts, self.demonstrations, *filter(None, [self.development, self.cross_validation]))

    @property
    def id(self) -> Digest:
        """Return the id of the plan, the digest of its content."""
        return digest(self.model_dump(mode="json"))


class Cost(Frozen):
    """Upper estimate of the duration and price of one attempt. It assumes that every row has the maximum length."""

    seconds: float
    """Duration in seconds."""
    price: float | None = None
    """Price in the price table's currency. None if the table does not contain the machines."""
    cap: float | None = None
    """Maximum cost of an attempt according to the loop file. None: no limit."""
    basis: str
    """Description of the assumptions."""


class Adjustment(Frozen):
    """Factors that health rules apply to the plan's recipe for one attempt. The plan itself does not change."""

    learning_rate: float = 1.0
    """Factor on the recipe's learning rate."""
    kl: float = 1.0
    """Factor on the penalty (`beta`) that keeps the model close to the start model."""
    memory: float = 1.0
    """Factor on the number of rows in memory and on the share of GPU memory for generation."""
    rules: tuple[str, ...] = ()
    """Names of the rules that requested the adjustment, oldest first. Each rule may do so only once."""
    reason: str = ""
    """Reason why the previous attempt failed."""

    def then(self, proposal: Proposal, reason: str) -> Adjustment:
        """Return this adjustment combined with the proposal of the attempt that used it."""
        further = proposal.adjustment
        return Adjustment(
            learning_rate=self.learning_rate * further.learning_rate,
            kl=self.kl * further.kl,
            memory=self.memory * further.memory,
            rules=(*self.rules, proposal.rule),
            reason=reason,
        )


class Proposal(Frozen):
    """Change that a failed attempt proposes for the next attempt. It takes effect only if a ledger row accepts it."""

    rule: str
    """Name of the health rule that ended the attempt."""
    adjustment: Adjustment
    """Factors relative to the values that the failed attempt used."""
    good: int
    """Last step before the problem began. Checkpoints of later steps are not used for resuming."""


class Attempt(Frozen):
    """One attempt at a plan, created by a ledger row. Later attempts may have different resources or an adjustment."""

    number: int
    """Attempt number, counted from 1."""
    timeout: float
    """Maximum duration in seconds, over all incarnations."""
    nodes: int = 1
    """Number of nodes, which run together as a gang."""
    gpus: int = 0
    """Number of GPUs per node. 0: train on the CPU."""
    adjustment: Adjustment = Field(default_factory=Adjustment)


class JobSpec(Frozen):
    """Executable form of an attempt, independent of the executor."""

    name: str
    plan: Digest
    attempt: int
    command: tuple[str, ...]
    """Command line of the supervisor, the job's main process (PID 1). The executor substitutes `{python}` and `{run}`."""
    environment: dict[str, str]
    inputs: dict[str, Digest]
    """Relative name below the run folder -> artifact (a file or a folder manifest)."""
    plan_json: str
    """Content of `plan.json` in the run folder."""
    grace_seconds: int
    """Seconds between SIGTERM and SIGKILL."""
    nodes: int = 1
    gpus: int = 0
    """Number of GPUs per node."""
    cpus: int = 1
    """Number of CPUs per node."""


class ResumePoint(Frozen):
    """Accepted checkpoint from which the next incarnation resumes."""

    attempt: int
    incarnation: int
    step: int
    path: str
    """Path of the step's folder, relative to the plan's folder, for example `a1/i1/step_20`."""
    manifest: Digest
    """Digest of the step's manifest.json."""


class Checkpoint(Frozen):
    """Finished model that a job published."""

    plan: Digest
    attempt: int
    incarnation: int
    step: int
    files: Digest
    """Artifact of the model folder: its manifest with the SHA-256 of every file, written last."""
    model: ModelRef
    metrics: dict[str, float]
    adapter: ModelRef | None = None
    """The trained adapter, whose `parent` is the start model. `model` has it merged in. None if the run trained all weights, or if the
    trainer publishes no adapter."""

    @property
    def id(self) -> Digest:
        """Return the id of the checkpoint, derived from the plan and the model."""
        return digest([self.plan, self.model.id])


class JobEvent(Frozen):
    """One line of a job's events.jsonl."""

    at: float
    """Time in seconds since the epoch."""
    incarnation: int
    kind: str
    """started | layout | loading | measuring | measured | fold | cross_validated | sifted | progress | saving | checkpoint | warning |
    exporting | stopped | published"""
    step: int = 0
    total: int = 0
    data: dict[str, Any] = Field(default_factory=dict)


class StepFigures(Frozen):
    """Metrics of one optimiser step."""

    step: int
    at: float
    """Time in seconds since the epoch."""
    figures: dict[str, float]
    """Metric name (loss, grad_norm, reward, kl, …) -> value."""


class JobState(StrEnum):
    """State of a job in its executor."""

    ABSENT = "absent"
    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


class Usage(Frozen):
    """Cluster resources that an attempt has used so far, over all incarnations."""

    started: float | None
    """Seconds from the submission until the whole gang ran for the first time. None if it has not run yet."""
    used: float
    """GPU-seconds while the whole gang ran."""
    idle: float
    """GPU-seconds on allocated machines while the gang could not start."""
    lost: float
    """GPU-seconds while only a part of the gang was alive."""
    nodes: float
    """Machine-seconds in total."""
    cost: float
    """Cost in the price table's currency. Machines that are missing in the table count as 0."""
    preemptions: int


class JobStatus(Frozen):
    """Status of a job as its executor reports it."""

    state: JobState
    incarnation: int = 0
    step: int = 0
    total: int = 0
    outcome: Outcome | None = None
    """Outcome of an ended job. None while it runs, and after its end until the executor has stored its result."""
    reason: str = ""
    """Readable reason why the job ended or does not run yet. After a restart by the cluster, the cause of the restart."""
    proposal: Proposal | None = None
    """Proposed change for the next attempt, if a failed job made one."""
    usage: Usage | None = None
    """Resource usage, if the executor measures it."""
