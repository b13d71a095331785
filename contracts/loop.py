"""Settings of a loop file, which configures one model line. flows/config reads it from TOML.

The docstring of each field documents the setting. Unknown keys are errors. Times are in seconds unless the name states another unit.
Shares are in [0, 1]. Rollout weights are percentages. File paths are relative to the loop file.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from contracts.data.records import Tier
from contracts.jobs.cluster import ClusterSettings
from contracts.model import Frozen
from contracts.serving import Unit
from contracts.time_window import checked_window

Share = Annotated[float, Field(ge=0, le=1)]
Percent = Annotated[float, Field(gt=0, le=100)]
Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]
Days = Annotated[float, Field(gt=0)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{value!r} is not a regular expression: {error}") from None
    return value


Kind = Annotated[str, Field(pattern=r"^[a-z][a-z_]{1,30}$")]
Pattern = Annotated[str, AfterValidator(_pattern)]


class LineSettings(Frozen):
    """Settings of the model line."""

    name: Name
    """Name of the line: lower-case letters, digits and hyphens, at most 40."""
    served_model: str
    """Model name in client requests. The router serves the line under this name."""
    start_from: Literal["champion", "base", "held"] = "champion"
    """Start model of each training: the current champion, or the base model (version 0). held: the newest candidate that the gate held
    against the current champion with a higher mean score, if there is one; otherwise the champion. A candidate is always compared with the
    champion."""
    salt: str = "ratchet"
    """Salt of the hash that assigns prompts to the holdout. Do not change it after the line's first run: training and holdout prompts
    would mix."""
    seed: int = 0
    """Base seed for probes and training. Training adds the cycle number."""


class SourceSettings(Frozen):
    """Settings of one trace source."""

    name: Name
    """Name of the source. It is part of every record's identity, so renaming a source makes all its records new."""
    kind: str
    """Entry point name of an installed source (group `ratchet.sources`). otlp: files with one OTLP JSON request per line. jsonl: files with
    one record per line. receiver: the built-in OTLP/HTTP endpoint."""
    path: str | None = None
    """A file, or a folder that is read recursively (*.jsonl, *.jsonl.gz, *.json). Required for otlp and jsonl, not allowed for receiver."""
    mapping: dict[str, str] = Field(default_factory=dict)
    """For jsonl only: Ratchet's column -> dotted key in the record, for keys with different names."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the source, which validates them."""

    @model_validator(mode="after")
    def _path_where_read(self) -> SourceSettings:
        if self.kind in ("otlp", "jsonl", "receiver") and (self.kind == "receiver") == (self.path is not None):
            raise ValueError(f"source {self.name!r}: kind {self.kind!r} " + ("takes no path" if self.path else "needs a path"))
        return self


class GovernanceSettings(Frozen):
    """Rules for which traces may be used. Traces with missing information are excluded."""

    consent: Literal["required", "assumed"] = "required"
    """required: use only traces that record consent. assumed: consent for all traffic is obtained elsewhere. Recorded in every snapshot."""
    regions: tuple[str, ...] = ()
    """Regions whose traces may be used. Empty: all regions."""
    confidentiality: tuple[str, ...] = ()
    """Confidentiality labels whose traces may be used, for example `public`. Empty: all labels, and traces without one."""
    max_chars: Positive = 32_000
    """Maximum length of a prompt or an answer in characters. Longer ones are excluded and counted."""
    min_users: Positive = 1
    """Minimum number of different users who have sent a prompt (k-anonymity, after masking). Rarer prompts are excluded and counted. All
    traces without a user count as those of one user."""


PersonalData = Literal["email", "phone", "card", "iban", "national_id", "secret", "ip"]
"""Kinds of personal data and secrets that the masking knows."""


class NameSettings(Frozen):
    """Search for names of people and places with models of spaCy, through Presidio. Needs the extra `presidio` and the models."""

    models: dict[Annotated[str, Field(pattern=r"^[a-z]{2,3}$")], str] = Field(min_length=1)
    """Language -> installed package or absolute folder of a spaCy model, for example `en = "en_core_web_lg"`. Every model searches every
    text, and takes milliseconds for it."""
    entities: tuple[Annotated[str, Field(pattern=r"^[A-Z][A-Z_]{1,30}$")], ...] = Field(default=("PERSON", "LOCATION"), min_length=1)
    """Entities that are masked, by Presidio's names, for example also ORGANIZATION or NRP. `[PERSON_1]` replaces a person."""
    min_score: Share = 0.5
    """Least score of a finding. Models of spaCy give no score, and Presidio counts each of their findings as 0.85."""


class PrivacySettings(Frozen):
    """Masking of personal data and secrets at ingest. Placeholders such as `[EMAIL_1]` replace them before a record is stored."""

    mask: tuple[PersonalData, ...] = ("email", "phone", "card", "iban", "national_id", "secret", "ip")
    """Kinds that are masked. card: payment cards. iban: bank accounts. national_id: numbers of the United States, Korea and European
    countries. secret: API keys, tokens, passwords and private keys. ip: public IP addresses. Empty: the texts are stored as they are."""
    phone_regions: tuple[Annotated[str, Field(pattern=r"^[A-Z]{2}$")], ...] = ("US", "GB", "DE", "FR", "ES", "IT", "NL", "PL", "KR")
    """Countries (ISO 3166) whose phone numbers are found without a country code. Numbers with a country code are always found."""
    patterns: dict[Kind, Pattern] = Field(default_factory=dict)
    """Own kinds: name -> regular expression, for example of customer numbers. What it finds becomes `[NAME_1]`."""
    allow: tuple[str, ...] = ()
    """Values that are not masked, for example the address of your support."""
    ner: NameSettings | None = None
    """Whether names are masked, too. None: they are not."""


class RetentionSettings(Frozen):
    """How long the lake keeps rows. The service deletes older ones once a day, also from the artifacts (`ratchet gc`)."""

    traces: Days | None = None
    """Days after the call for which traces are kept. None: without a limit. Editions and training sets lose the rows of deleted traces."""
    feedback: Days | None = None
    """Days for which ratings, corrections and references are kept. None: without a limit."""
    quarantine: Days | None = 30
    """Days after the ingest for which quarantined records are kept. None: without a limit."""
    grace: Annotated[float, Field(ge=0)] = 7
    """Days for which files that nothing refers to are kept before `ratchet gc` deletes them."""


class QuarantineSettings(Frozen):
    """Settings of the quarantine, where records wait that could not be read or were not admitted."""

    alarm_share: Share = 0.05
    """Share of quarantined records above which an alarm is raised. 1: no alarm."""
    alarm_window: Seconds = 86_400
    """Seconds of the past over which the share is measured."""
    alarm_min_records: Positive = 20
    """Minimum number of records in the window. With fewer, no alarm is raised."""
    keep_days: Annotated[float, Field(ge=0, le=3650)] = 30
    """Days after which the masked bytes of a quarantined record are deleted. 0: no bytes are kept, only place and reason. Only records that
    consent to the use of their content, and those without a statement where consent is assumed, keep bytes."""
    keep_unreadable: bool = False
    """Whether records whose consent cannot be read keep masked bytes too, for example lines that are no JSON. Ids of users are replaced
    in them only where they are found by their usual keys."""
    max_bytes: Annotated[int, Field(gt=0, le=1 << 24)] = 65_536
    """Maximum number of masked bytes that are kept of a record. Longer ones are cut, and then only a file can be replayed."""
    max_total_bytes: Positive = 536_870_912
    """Maximum number of masked bytes that are kept in total for the line. Records beyond it keep none."""


class RewardSettings(Frozen):
    """Settings of one reward scorer."""

    name: str
    """Entry point name of an installed reward (group `ratchet.rewards`)."""
    tier: Tier | None = None
    """Tier of the scorer. None selects the scorer's default tier."""
    weight: Annotated[float, Field(gt=0)] = 1.0
    """Weight of the scorer in the weighted mean of its tier."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the scorer, which validates them."""


class HoldoutSettings(Frozen):
    """Settings of the holdout, which is never used for training."""

    fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of prompts, selected by hash, that belong to the holdout permanently."""
    max_size: Positive = 1000
    """Maximum number of prompts per edition."""
    golden: str | None = None
    """JSONL file with records {prompt | question | messages, reference, slice?} that only the gate uses. None: no golden set."""
    near_duplicates: bool | None = None
    """Whether near-duplicates of a prompt are on the same side of the split: they differ in a few characters or words. None: true for a
    line that freezes its first data with this release, false for older ones. true for an older line applies to its new prompts. It
    cannot be switched off again."""
    similarity: Annotated[float, Field(ge=0.7, le=1)] = 0.8
    """Least Jaccard similarity of the character 5-grams of near-duplicates. A higher value separates prompts of one template, which
    otherwise are all on one side. A change applies to prompts that are frozen for the first time afterwards."""
    development: Annotated[float, Field(ge=0, lt=0.5)] = 0.15
    """Share of the training prompts, selected by hash of their cluster of near-duplicates, that the line never trains on. Training jobs
    measure with them how long to train (`steps = "auto"`). Bound at first use. 0: none."""
    rotate_after: Positive = 8
    """Number of evaluations per edition. The next evaluation uses the next edition. All evaluations of an edition share the error
    1 - gate.level."""


class SnapshotSettings(Frozen):
    """Settings for building pairs and demonstrations."""

    chosen_min: Share = 0.7
    """Minimum reward of a chosen answer."""
    rejected_max: Share = 0.5
    """Exclusive upper limit for the reward of a rejected answer."""
    margin: Share = 0.3
    """Minimum reward difference between the chosen and the rejected answer."""
    pairs_per_prompt: Positive = 2
    """Maximum pairs (and demonstrations) per prompt."""
    pairs_per_person: Positive = 20
    """Maximum pairs (and demonstrations) per user. A correction counts for its author, and a single rating for its rater. All anonymous
    corrections count as those of one user. Traffic without user names has no limit."""
    newcomer_days: float = Field(default=7, ge=0)
    """Days for which the ratings and corrections of a new user wait before they are used, from the ingest of the user's first trace on. It
    limits what somebody can achieve with many new ids. 0: they are used at once. Users who came within this time after the line's first
    trace, reviewers' references, the feedback of trusted credentials and that in the operator's files do not wait."""
    demonstration_min: Annotated[float, Field(gt=0.5, le=1)] = 0.9
    """Minimum probability that an answer is right for using it as a demonstration. The high default requires clear user feedback."""
    references_are_answers: bool = False
    """Whether reviewers' and logged references are complete answers and not bare results. If true, SFT may use them as demonstrations."""


class ProbeSettings(Frozen):
    """Settings of the probe, in which the start model of the training answers training prompts."""

    prompts: int = Field(default=200, ge=0)
    """Number of prompts. 0: no probe."""
    samples: Annotated[int, Field(ge=2, le=64)] = 4
    """Number of answers per prompt."""
    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Sampling temperature of the answers."""
    max_tokens: Positive = 256
    """Maximum tokens per answer."""


class SearchSettings(Frozen):
    """Search over recipes: suitable methods and learning rates, compared on the line's development prompts."""

    budget: Annotated[float, Field(ge=0)] = 0
    """Seconds of job time that a cycle may spend on further recipes after the plan's own one, lost and preempted time included. 0: no
    search."""


class TrainingSettings(Frozen):
    """Settings for the choice of the training method, its requirements and its resources."""

    methods: tuple[Literal["dpo", "grpo", "sft"], ...] = ("sft", "grpo", "dpo")
    """Allowed methods, in order of preference if several are suitable."""
    dpo: dict[str, Any] = Field(default_factory=dict)
    """Overrides of the DPO recipe (trainers/recipes.py)."""
    grpo: dict[str, Any] = Field(default_factory=dict)
    """Overrides of the GRPO recipe (trainers/recipes.py)."""
    sft: dict[str, Any] = Field(default_factory=dict)
    """Overrides of the SFT recipe (trainers/recipes.py)."""
    dpo_on: str = "trl"
    """Entry point name of an installed trainer (group `ratchet.trainers`) for DPO. trl: the built-in one."""
    grpo_on: str = "trl"
    """Entry point name of an installed trainer (group `ratchet.trainers`) for GRPO. trl: the built-in one, on one machine. nemo-rl: NeMo RL
    on a cluster with its own container image."""
    sft_on: str = "trl"
    """Entry point name of an installed trainer (group `ratchet.trainers`) for SFT. trl: the built-in one."""
    min_pairs: Positive = 50
    """Minimum number of pairs for DPO."""
    min_group_coverage: Share = 0.15
    """Minimum share of probed prompts with mixed rewards for GRPO."""
    min_prompts: Positive = 32
    """Minimum number of prompts with scorable answers for GRPO. GRPO also needs at least the recipe's prompts_per_step."""
    min_demonstrations: Positive = 50
    """Minimum number of demonstrations for SFT."""
    min_teachable: Positive = 20
    """Minimum number of demonstrations for SFT on prompts that the model answers wrong more often than right."""
    max_attempts: Positive = 2
    """Maximum number of failed attempts of one plan."""
    max_restarts: int = Field(default=10, ge=0)
    """Maximum number of restarts within one attempt after preemption or loss."""
    timeout: Seconds = 86_400
    """Maximum duration of one attempt in seconds, over all its incarnations."""
    search: SearchSettings = SearchSettings()
    """Search over recipes."""
    window: Annotated[str | None, AfterValidator(checked_window)] = None
    """Daily time in which jobs may begin, in trigger.timezone, for example "22:00-06:00". A further trial of a search begins only if it
    is likely to end in it. For a GPU that also serves. None: at any time."""
    nodes: Positive = 1
    """Number of nodes that train together."""
    gpus: int = Field(default=0, ge=0)
    """Number of GPUs per node. 0: train on the CPU."""

    def recipe(self, method: str) -> dict[str, Any]:
        """Return the recipe overrides for `method` (`dpo`, `grpo` or `sft`)."""
        return {"dpo": self.dpo, "grpo": self.grpo, "sft": self.sft}[method]

    def trainer(self, method: str) -> str:
        """Return the entry point name of the trainer for `method` (`dpo`, `grpo` or `sft`)."""
        on = {"dpo": self.dpo_on, "grpo": self.grpo_on, "sft": self.sft_on}[method]
        return method if on == "trl" else on

    def built_in(self, method: str) -> bool:
        """Return whether a trainer of Ratchet trains `method` (`dpo`, `grpo` or `sft`), with a recipe of trainers/recipes.py."""
        return self.trainer(method) in (method, "nemo-rl")


class GateSettings(Frozen):
    """Conditions under which the gate accepts a candidate."""

    level: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """Confidence level of one edition: 1 - level is the probability that a candidate without improvement passes within the edition.
    Each end of an interval has the error of one evaluation: 1 - level ^ (1 / holdout.rotate_after) up to the first promotion of the
    edition. An evaluation directly after promotions also gets their errors."""
    looks: Annotated[int, Field(ge=1, le=5)] = 5
    """Maximum number of batches in which an evaluation asks its prompts. After each it stops if the gain is shown, or if the rest would
    hardly show one. A batch has at least 40 conversations, so small editions have fewer. 1: all prompts are asked at once."""
    min_effect: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Value that the lower bound of the reward difference must exceed, over golden set and holdout together."""
    slice_margin: Share = 0.1
    """Tolerated loss per slice. A slice fails if its whole interval is below the negative margin. The gate is inconclusive if the estimate
    is below it, and below the other slices by more than chance explains (error about 0.05 over all slices)."""
    slice_tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Loss per slice above which the verdict reports a warning. If such a loss cannot be ruled out, the verdict estimates how many
    prompts are needed to decide."""
    min_prompts: Positive = 50
    """Minimum number of prompts answered by both models. With fewer, the gate is inconclusive."""
    min_slice: Positive = 20
    """Minimum number of prompts in a slice. Smaller slices are reported but not judged."""
    max_failures: Share = 0.02
    """Maximum share of prompts with an unanswered or unscored request, per model. Above it, the gate is inconclusive."""
    max_unlike: Share = 0.1
    """Maximum share of prompts whose two answers were decided by different scorers, because a scorer was unavailable. Such prompts are
    excluded. Above this share, the gate is inconclusive."""
    max_length_ratio: Annotated[float, Field(gt=1)] = 3.0
    """Maximum ratio of the mean answer lengths, candidate to champion or the inverse. Above it, the gate fails."""
    max_tokens: Positive = 256
    """Maximum tokens per answer."""
    samples: Annotated[int, Field(ge=1, le=8)] = 1
    """Number of answers per prompt and model. The gate compares their means, so it sees smaller gains if the answers of a model vary. The
    requests and the scoring cost as many times more. More than 1 needs `temperature` above 0."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sampling temperature of the answers; best the one of the line's users. 0: greedy. Both models get the same seed for each answer."""
    checks: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Entry point name of an installed check (group `ratchet.checks`) -> its options, which the check validates. All installed checks
    apply, also those without options here."""

    @model_validator(mode="after")
    def _draws_differ(self) -> GateSettings:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"gate.samples = {self.samples} needs gate.temperature above 0: at temperature 0, each answer to a prompt would be the same"
            )
        return self


class RolloutSettings(Frozen):
    """Settings of the rollout of an accepted candidate."""

    steps: tuple[Percent, ...] = (5, 25, 50, 100)
    """Traffic weights of the candidate in percent. They must increase and end at 100. Decisions on ratings are fastest at 50. A line with
    tens of thousands of requests a day can begin with 1."""
    unit: Unit = "session"
    """What stays with one version during a rollout. session: all requests of a session; a user's sessions are compared with each other.
    user: all requests of a user; decisions need far more users. A request that does not name it is assigned by the other one."""
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Non-inferiority margin of the mean rating; with `mirror`, also of the mean reward of mirrored prompts. It is decided at the largest
    weight below 100."""
    error_margin: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """Maximum increase of the error share, and of the share of refused requests. At the largest weight below 100, the rollout advances only
    if a larger increase of the error share is excluded."""
    latency_ratio: Annotated[float, Field(gt=1)] = 1.5
    """Maximum latency ratio, candidate to champion. The candidate is rolled back if both the median and the 95th percentile exceed it."""
    slow_margin: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Maximum increase of the share of slow answers: those that take longer than `latency_ratio` times the champion's 95th percentile. At
    the largest weight below 100, the rollout advances only if a larger increase is excluded."""
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """Probability of a false rollback, over all metrics, evaluations and steps."""
    beta: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """Probability that a version worse than the margin is promoted, over all evaluations."""
    min_people: Positive = 30
    """Minimum effective number of raters of each version before ratings decide anything. Users with unequal numbers of ratings count as
    fewer."""
    mirror: Annotated[int, Field(ge=0)] = 0
    """Maximum number of users' prompts per rollout that the service asks again at both versions, and scores with the scorers for new
    answers. With it, the paired rewards decide `margin` instead of the ratings, so that a line with few raters can decide. Ratings still
    roll back. Only prompts that may be used for evaluation are asked. Users do not see the answers, and nothing is trained on them. Each
    prompt costs two requests and their scoring. 0: none."""
    min_requests: Positive = 100
    """Minimum number of requests of each version in each step before the rollout advances. The champion needs none if the route gives it
    no sessions. Refused requests do not count."""
    min_seconds: float = Field(default=600, ge=0)
    """Minimum duration of each step in seconds before the rollout advances."""
    max_seconds: Seconds = 7 * 86_400
    """Maximum duration of a step in seconds. A step that is undecided after it is inconclusive and rolls back."""
    maturity: float = Field(default=60, ge=0)
    """Age of a trace in seconds after which its feedback counts as complete."""
    holdback: Annotated[float, Field(ge=0, le=50)] = 5
    """Percentage of sessions that stay on the champion during the last step, so that both arms remain comparable. 0: none."""
    dark: Seconds = 300
    """Seconds until the trace of a request must be in the lake. The rollout rolls back if the router sent requests to a version and no
    trace of them is in the lake after this time, or if the metrics or the router's counts are unavailable for this time. Without requests,
    the rollout waits."""
    metrics: str = "lake"
    """Entry point name of the installed metrics (group `ratchet.metrics`) that measure live traffic. lake: the ingested traces and
    feedback."""
    metrics_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the metrics, which validate them."""

    @model_validator(mode="after")
    def _rising_to_100(self) -> RolloutSettings:
        if not self.steps or list(self.steps) != sorted(set(self.steps)) or self.steps[-1] != 100:
            raise ValueError(f"rollout.steps must increase and end at 100, got {list(self.steps)}")
        return self


class ApprovalSettings(Frozen):
    """Settings of one request for approval."""

    mode: Literal["person", "auto"] = "person"
    """person: an operator must approve. auto: approval is automatic, and the ledger records this."""
    expires: Seconds = 3 * 86_400
    """Timeout of the request in seconds. If it is unanswered after that, the cycle expires."""


class Approvals(Frozen):
    """Settings of the two requests for approval."""

    training: ApprovalSettings = ApprovalSettings()
    """Approval before the training."""
    rollout: ApprovalSettings = ApprovalSettings()
    """Approval before the rollout."""


class ServingSettings(Frozen):
    """Settings for serving and routing the models of the line."""

    kind: str = "embedded"
    """Entry point name of an installed server (group `ratchet.servers`)."""
    router_port: int = Field(default=0, ge=0, le=65535)
    """TCP port of the router. 0: any free port, which is stored in RATCHET_HOME and reused."""
    receiver_port: int = Field(default=0, ge=0, le=65535)
    """TCP port of the OTLP/HTTP receiver on the loopback interface. 0: any free port, which is stored in RATCHET_HOME and reused."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the server, which validates them."""
    router: str = "local"
    """Entry point name of an installed router (group `ratchet.routers`). local: a router process on this machine."""
    router_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the router, which validates them."""
    drain: float = Field(default=120, ge=0, le=900)
    """Maximum seconds for which the server of a version without traffic keeps running, so that it can finish its answers. It stops earlier
    if the router reports that no request to it is in flight."""


def _cron(value: str | None) -> str | None:
    if value is not None and len(value.split()) != 5:
        raise ValueError(f"cron {value!r} has {len(value.split())} fields; 5 are required: minute hour day month weekday")
    return value


class TriggerSettings(Frozen):
    """Conditions that open a cycle automatically."""

    cron: Annotated[str | None, AfterValidator(_cron)] = None
    """Schedule as a cron expression with five fields. A scheduled cycle opens if there is at least one new trace. None: no schedule."""
    timezone: str = "UTC"
    """IANA time zone of the schedule."""
    new_traces: Positive = 1000
    """Number of new traces since the last cycle's snapshot that opens a cycle."""
    min_interval: float = Field(default=3600, ge=0)
    """Minimum seconds between the openings of two cycles."""


class Loop(Frozen):
    """All settings of one loop file."""

    line: LineSettings
    sources: tuple[SourceSettings, ...]
    governance: GovernanceSettings = GovernanceSettings()
    privacy: PrivacySettings = PrivacySettings()
    retention: RetentionSettings = RetentionSettings()
    quarantine: QuarantineSettings = QuarantineSettings()
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
    """Kubernetes cluster for training jobs. None: jobs run on the local machine."""

    @model_validator(mode="after")
    def _names_once(self) -> Loop:
        for what, names in (("sources", [s.name for s in self.sources]), ("rewards", [r.name for r in self.rewards])):
            twice = {name for name in names if names.count(name) > 1}
            if twice:
                raise ValueError(f"{what}: {', '.join(sorted(twice))} is listed twice")
        return self
