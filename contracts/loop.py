"""A loop file as data: everything that a person decides about one model line. flows/config reads it from TOML.

Each field's docstring is its documentation. Unknown keys are errors. Times are seconds unless the name says otherwise;
shares are in [0, 1]; rollout weights are percent.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from contracts.cluster import ClusterSettings
from contracts.model import Frozen
from contracts.records import Tier

Share = Annotated[float, Field(ge=0, le=1)]
Percent = Annotated[float, Field(gt=0, le=100)]
Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]


class LineSettings(Frozen):
    """The model line."""

    name: Name
    """Name of the line: lower-case letters, digits and hyphens, at most 40."""
    served_model: str
    """The model name that clients ask for; the router answers under it."""
    start_from: Literal["champion", "base"] = "champion"
    """Where each cycle's training starts: at today's champion, or at version 0."""
    salt: str = "ratchet"
    """Decides which prompts are holdout. Never change it on a line that has run: train and holdout would mix."""
    seed: int = 0
    """Seeds probes, training and bootstraps."""


class SourceSettings(Frozen):
    """One source of traces."""

    name: Name
    """Part of every record's identity: renaming a source makes its records new."""
    kind: Literal["otlp", "jsonl", "receiver"]
    """otlp: files of OTLP JSON requests, one a line; jsonl: one record a line; receiver: our OTLP/HTTP endpoint."""
    path: str | None = None
    """A file, or a folder that is read recursively (*.jsonl, *.jsonl.gz, *.json). Relative to the loop file. Not for receiver."""
    mapping: dict[str, str] = Field(default_factory=dict)
    """jsonl only: our column -> their dotted key, where the names differ."""

    @model_validator(mode="after")
    def _path_where_read(self) -> SourceSettings:
        if (self.kind == "receiver") == (self.path is not None):
            raise ValueError(f"source {self.name!r}: kind {self.kind!r} " + ("takes no path" if self.path else "needs a path"))
        return self


class GovernanceSettings(Frozen):
    """What may be used at all. Fail-closed: what is unknown is out."""

    consent: Literal["required", "assumed"] = "required"
    """assumed: for traffic whose consent is settled elsewhere; recorded in every snapshot."""
    regions: tuple[str, ...] = ()
    """Regions whose traces may be used; empty: all."""
    max_chars: Positive = 32_000
    """Longer prompts or answers are left out (counted)."""


class RewardSettings(Frozen):
    """One scorer."""

    name: str
    """Short name of an installed reward (entry point group `ratchet.rewards`)."""
    tier: Tier | None = None
    """Overrides the scorer's own tier."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Within its tier."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the scorer; it checks them."""


class HoldoutSettings(Frozen):
    """What training never sees."""

    fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of prompts (by hash) that are for ever holdout."""
    max_size: Positive = 1000
    """Prompts per edition."""
    golden: str | None = None
    """A JSONL file of {prompt | question | messages, reference, slice?} that only the gate sees. Relative to the loop file."""
    rotate_after: Positive = 8
    """Evaluations that one edition may give before the next edition's number is used. They share the error 1 - gate.level."""


class SnapshotSettings(Frozen):
    """How pairs are made."""

    chosen_min: Share = 0.7
    """A chosen answer's least reward."""
    rejected_max: Share = 0.5
    """A rejected answer's reward lies below this."""
    margin: Share = 0.3
    """Least difference between them."""
    pairs_per_prompt: Positive = 2
    """Of demonstrations too."""
    pairs_per_person: Positive = 20
    """Of demonstrations too. A correction counts for who wrote it, a single rating for who gave it; all corrections without a name
    count as one person's. Traffic in which nobody has a name is not capped."""
    demonstration_min: Annotated[float, Field(gt=0.5, le=1)] = 0.9
    """An answer is imitated where it is right with at least this probability: what users liked must be liked beyond doubt."""
    references_are_answers: bool = False
    """Reviewers' and logged references are whole answers as a user should read them, not bare results: SFT may imitate them."""


class ProbeSettings(Frozen):
    """The champion's own answers to training prompts."""

    prompts: int = Field(default=200, ge=0)
    """How many prompts to ask; 0: no probe."""
    samples: Annotated[int, Field(ge=2, le=64)] = 4
    """Answers per prompt."""
    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    max_tokens: Positive = 256


class TrainingSettings(Frozen):
    """Which methods may be chosen, how, and for how much."""

    methods: tuple[Literal["dpo", "grpo", "sft"], ...] = ("sft", "grpo", "dpo")
    """Methods the choice may take, in order of preference where both would do."""
    dpo: dict[str, Any] = Field(default_factory=dict)
    """Changes to the DPO recipe (trainers/recipes.py)."""
    grpo: dict[str, Any] = Field(default_factory=dict)
    """Changes to the GRPO recipe."""
    sft: dict[str, Any] = Field(default_factory=dict)
    """Changes to the SFT recipe."""
    grpo_on: Literal["trl", "nemo-rl"] = "trl"
    """What runs GRPO: trl on one machine, nemo-rl on a cluster with its own container image."""
    min_pairs: Positive = 50
    """DPO needs at least so many pairs."""
    min_group_coverage: Share = 0.15
    """GRPO needs at least this share of probed prompts with mixed rewards."""
    min_prompts: Positive = 32
    """GRPO needs at least so many prompts that its answers can be scored on, and never fewer than a step takes."""
    min_demonstrations: Positive = 50
    """SFT needs at least so many answers that count as right."""
    min_teachable: Positive = 20
    """SFT needs at least so many of them on prompts that the model gets wrong more often than right."""
    max_attempts: Positive = 2
    """Attempts of one plan that may fail."""
    max_restarts: int = Field(default=10, ge=0)
    """Incarnations within one attempt after preemption or loss."""
    timeout: Seconds = 86_400
    """Of one attempt."""
    nodes: Positive = 1
    """Machines that train together."""
    gpus: int = Field(default=0, ge=0)
    """Per node; 0 trains on the CPU."""

    def recipe(self, method: str) -> dict[str, Any]:
        """The changes to that method's recipe."""
        return {"dpo": self.dpo, "grpo": self.grpo, "sft": self.sft}[method]


class GateSettings(Frozen):
    """When a candidate counts as better."""

    level: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """One minus the chance that a line without any effect passes within one edition. Each evaluation's intervals are at
    1 - (1 - level) / holdout.rotate_after."""
    min_effect: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The interval's lower end must lie above this, on golden and holdout together."""
    slice_margin: Share = 0.1
    """A slice fails where its interval lies wholly below minus this; where only its estimate does, the gate is inconclusive."""
    slice_tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Where a loss of more than this cannot be ruled out in a slice, the verdict says so, and about how many prompts would tell."""
    min_prompts: Positive = 50
    """Fewer answered pairs are inconclusive."""
    min_slice: Positive = 10
    """Smaller slices are shown, not judged."""
    max_failures: Share = 0.02
    """Share of unanswered or unscored requests on either side above which the evidence is inconclusive."""
    max_unlike: Share = 0.1
    """Share of prompts whose two answers other scorers decided, one having been away, above which the evidence is inconclusive; below it,
    they are left out."""
    max_length_ratio: Annotated[float, Field(gt=1)] = 3.0
    """Mean answer length, candidate over champion (and its inverse), above which the gate fails."""
    max_tokens: Positive = 256
    """Per answer."""


class RolloutSettings(Frozen):
    """How a passing candidate meets users."""

    steps: tuple[Percent, ...] = (1, 5, 25, 100)
    """Weights in percent, rising, ending at 100."""
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Non-inferiority margin on the mean rating, decided at the largest weight below 100."""
    error_margin: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Largest tolerated rise of the error share."""
    latency_ratio: Annotated[float, Field(gt=1)] = 1.5
    """Largest tolerated p95 latency, candidate over champion."""
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """Chance of a false rollback, over all metrics, looks and steps."""
    beta: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """Chance that a version worse than the margin is promoted, over all looks."""
    min_requests: Positive = 100
    """Of the candidate, in each step, before it may advance."""
    min_seconds: float = Field(default=600, ge=0)
    """In each step, before it may advance."""
    max_seconds: Seconds = 7 * 86_400
    """Of a step; undecided by then is inconclusive and rolls back."""
    maturity: float = Field(default=60, ge=0)
    """Age of a trace from which its feedback counts as arrived."""
    holdback: Annotated[float, Field(ge=0, le=50)] = 5
    """Percent of sessions that stay with the champion during the last step, so that both arms stay comparable; 0: none."""
    dark: Seconds = 300
    """No traces from either arm for so long: rolls back."""

    @model_validator(mode="after")
    def _rising_to_100(self) -> RolloutSettings:
        if not self.steps or list(self.steps) != sorted(set(self.steps)) or self.steps[-1] != 100:
            raise ValueError(f"rollout.steps must rise and end at 100, got {list(self.steps)}")
        return self


class ApprovalSettings(Frozen):
    """Who says yes."""

    mode: Literal["person", "auto"] = "person"
    """auto: nobody is asked, and the ledger says so."""
    expires: Seconds = 3 * 86_400
    """Unanswered for so long: the cycle expires."""


class Approvals(Frozen):
    """Both questions."""

    training: ApprovalSettings = ApprovalSettings()
    rollout: ApprovalSettings = ApprovalSettings()


class ServingSettings(Frozen):
    """How the models of this line are served and routed."""

    kind: str = "embedded"
    """Short name of an installed server (entry point group `ratchet.servers`)."""
    router_port: int = Field(default=0, ge=0, le=65535)
    """0: any free port, kept in RATCHET_HOME."""
    receiver_port: int = Field(default=0, ge=0, le=65535)
    """Of the OTLP/HTTP receiver, loopback. 0: any free port, kept in RATCHET_HOME."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the server; it checks them."""


def _cron(value: str | None) -> str | None:
    if value is not None and len(value.split()) != 5:
        raise ValueError(f"cron {value!r} has {len(value.split())} fields; it needs 5: minute hour day month weekday")
    return value


class TriggerSettings(Frozen):
    """When a cycle opens by itself."""

    cron: Annotated[str | None, AfterValidator(_cron)] = None
    """Five fields; none: no schedule."""
    timezone: str = "UTC"
    """IANA zone of the cron."""
    new_traces: Positive = 1000
    """New traces since the last cycle's snapshot that open one."""
    min_interval: float = Field(default=3600, ge=0)
    """Between two cycles' openings."""


class Loop(Frozen):
    """One loop file."""

    line: LineSettings
    sources: tuple[SourceSettings, ...]
    governance: GovernanceSettings = GovernanceSettings()
    rewards: tuple[RewardSettings, ...]
    holdout: HoldoutSettings = HoldoutSettings()
    snapshot: SnapshotSettings = SnapshotSettings()
    probe: ProbeSettings = ProbeSettings()
    training: TrainingSettings = TrainingSettings()
    gate: GateSettings = GateSettings()
    rollout: RolloutSettings = RolloutSettings()
    approvals: Approvals = Approvals()
    serving: ServingSettings = ServingSettings()
    trigger: TriggerSettings = TriggerSettings()
    cluster: ClusterSettings | None = None
    """Where training jobs run; none: on this machine."""

    @model_validator(mode="after")
    def _names_once(self) -> Loop:
        for what, names in (("sources", [s.name for s in self.sources]), ("rewards", [r.name for r in self.rewards])):
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise ValueError(f"{what}: {', '.join(sorted(twice))} is listed twice")
        return self
