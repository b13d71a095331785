"""Control objects of the data pipeline: batches, counts, snapshots, holdout editions, probe reports and training sets.

The rows themselves are stored in Parquet artifacts. Their schemas are in contracts/data/records.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import BinaryIO, Literal, NamedTuple

from pydantic import Field

from ratchet.contracts.data.beliefs import JudgeBelief, SignalBelief, TeacherBelief
from ratchet.contracts.data.records import Tier
from ratchet.contracts.data.senders import Sender
from ratchet.contracts.extension import ExtensionVersion
from ratchet.contracts.ids import Digest, canonical
from ratchet.contracts.model import Frozen


@dataclass(frozen=True)
class Label:
    """Reward that a scorer set assigns to one sample, with its origin."""

    reward: float | None
    """Reward in [0, 1]. None if every scorer abstained."""
    tier: Tier | None
    """Tier that determined the reward. None if every scorer abstained."""
    parts: Mapping[str, float | None]
    """Scorer name -> score. None marks an abstention."""
    votes: int
    """Number of user ratings of the sample."""
    deciding: frozenset[str] = frozenset()
    """Names of the scorers in `tier` that gave a score."""

    @cached_property
    def parts_json(self) -> str:
        """Return `parts` as canonical JSON text."""
        return canonical(dict(self.parts)).decode()


@dataclass(frozen=True)
class RawBatch:
    """Unit of ingest as a source delivers it: a file, a part of a large file, or a spooled request."""

    source: str
    """Name of the source in the loop file."""
    format: str
    """otlp-json | otlp-proto | jsonl, or the name of an installed dialect, whose records are JSON values, one per line."""
    digest: Digest
    """Digest of the bytes as delivered."""
    origin: str
    """Location of the batch, for messages."""
    open: Callable[[], BinaryIO]
    """Opens a binary stream of the content. A file whose name ends in .gz is decompressed."""
    sender: Sender | None = None
    """Credential with which the receiver got the batch. None: the operator's files, which may contain any record."""
    first: int = 1
    """Number of the first line or frame. It differs from 1 for a part of a file, and if a single record is read again."""
    offset: int = 0
    """Offset of the first byte in the content of the file, in bytes: of a part of it, or of a single record that is read again."""
    is_reread: bool = False
    """Whether these bytes were ingested before, by other settings. A record whose id the lake has with other content is the same record
    then, and counts as a duplicate."""


class Unread(NamedTuple):
    """A file that a source has found and does not read."""

    name: str
    """Its path below the place of the source."""
    why: str
    """What is known of its content, in a few words."""


class Counts(Frozen):
    """Record counts of an ingest. Invariant: read = kept + duplicate + skipped + quarantined."""

    read: int = 0
    kept: int = 0
    duplicate: int = 0
    skipped: int = 0
    """Number of valid records that do not describe a model call."""
    quarantined: int = 0
    reasons: dict[str, int] = Field(default_factory=dict)
    """Reason -> number of skipped or quarantined records."""

    def __add__(self, other: Counts) -> Counts:
        reasons = dict(self.reasons)
        for reason, n in other.reasons.items():
            reasons[reason] = reasons.get(reason, 0) + n
        return Counts(
            read=self.read + other.read,
            kept=self.kept + other.kept,
            duplicate=self.duplicate + other.duplicate,
            skipped=self.skipped + other.skipped,
            quarantined=self.quarantined + other.quarantined,
            reasons=reasons,
        )

    @property
    def adds_up(self) -> bool:
        """Whether the invariant read = kept + duplicate + skipped + quarantined holds."""
        return self.read == self.kept + self.duplicate + self.skipped + self.quarantined


class FeedbackCounts(Counts):
    """Record counts for feedback, with the same invariant."""

    parked: int = 0
    """Number of kept records whose trace is not known yet."""

    def __add__(self, other: Counts) -> FeedbackCounts:
        parked = self.parked + (other.parked if isinstance(other, FeedbackCounts) else 0)
        return FeedbackCounts(**super().__add__(other).model_dump(), parked=parked)


class TraceCounts(Counts):
    """Record counts for traces, with the same invariant."""

    unsigned: int = 0
    """Number of readable records that name a version of the line without a valid signature of the router. They are no evidence."""

    def __add__(self, other: Counts) -> TraceCounts:
        unsigned = self.unsigned + (other.unsigned if isinstance(other, TraceCounts) else 0)
        return TraceCounts(**super().__add__(other).model_dump(), unsigned=unsigned)


class IngestReport(Frozen):
    """Record counts of one or several ingested batches."""

    traces: TraceCounts = Field(default_factory=TraceCounts)
    feedback: FeedbackCounts = Field(default_factory=FeedbackCounts)
    """Ratings, corrections, references, and records that only state consent."""
    consent_changed: int = 0
    """Number of records that stated a new consent or refusal for a user, a session or a known trace, or that brought the content of a trace
    that came without consent. They are also part of the other counts."""
    masked: dict[str, int] = Field(default_factory=dict)
    """Kind of personal data -> number of parts of the records' texts that placeholders replaced."""
    late_references: int = 0
    """Number of right answers that came with a record of a known trace, and that are stored for it. They are also part of the counts of
    the feedback."""

    def __add__(self, other: IngestReport) -> IngestReport:
        return IngestReport(
            traces=self.traces + other.traces,
            feedback=self.feedback + other.feedback,
            consent_changed=self.consent_changed + other.consent_changed,
            masked=dict(sorted((Counter(self.masked) + Counter(other.masked)).items())),
            late_references=self.late_references + other.late_references,
        )

    def repeated(self) -> IngestReport:
        """Return the report for a second delivery of the same batch.

        Every record counts as a duplicate, except the skipped ones.
        """
        return IngestReport(
            traces=TraceCounts(**_again(self.traces).model_dump()), feedback=FeedbackCounts(**_again(self.feedback).model_dump())
        )


def _again(counts: Counts) -> Counts:
    return Counts(read=counts.read, skipped=counts.skipped, duplicate=counts.read - counts.skipped)


class Cursor(Frozen):
    """State of the lake, which triggers compare."""

    traces: int
    feedback: int
    newest: datetime | None
    """Ingest time (UTC) of the newest commit. None for an empty lake."""
    consent: int = 0
    """Number of stored statements about consent. A preview must not reuse a result from before a withdrawal."""


class ScorerVersion(ExtensionVersion):
    """Identity of a scorer: its code version, tier and weight. A job uses it to reject different code."""

    tier: Tier
    weight: float


class HoldoutEdition(Frozen):
    """Numbered, frozen set of prompts with references.

    The champion and the candidate are always compared on the same edition.
    """

    line: str
    number: int
    prompts: Digest
    """Parquet artifact with the schema records.PROMPTS."""
    size: int
    """Number of prompts."""
    golden: Digest | None
    """Golden set, which only the gate uses: Parquet artifact with the schema records.PROMPTS. None: no golden set."""
    golden_size: int = 0
    normaliser: int
    """Version of the prompt normaliser used to hash prompts for the split."""
    fraction: float
    """Share of prompts in the holdout, in (0, 1)."""
    skipped: tuple[str, ...] = ()
    """User messages that are no question (`holdout.skip_messages` and `holdout.skip_greetings`), and texts around a question
    (`holdout.question_after` and `holdout.question_until`), normalised as `ids.SkippedTexts`."""


SHARED_ROOT, LEAST_SHARED_ROOT = 0.1, 20
"""Share and number of prompts that begin with one user message from which a person is warned."""


class PromptGroup(Frozen):
    """How many prompts belong together, of those that may be used."""

    prompts: int
    """Number of prompts in the group."""
    of: int
    """Number of all prompts that may be used."""
    side: Literal["train", "held", "neither"]
    """Side of the holdout split."""


class TrainingSides(Frozen):
    """Which prompts of a snapshot a line never trains on, and which are near-duplicates. Prompts are named by prompt_id."""

    development: tuple[Digest, ...] = ()
    """Development prompts: a right answer to one measures how long to train."""
    neither: tuple[Digest, ...] = ()
    """Prompts of which a right answer is used for nothing."""
    clusters: dict[Digest, str] = Field(default_factory=dict)
    """Prompt -> cluster of near-duplicates. A prompt that is missing here is alone in its cluster."""


class MaskedData(Frozen):
    """What was masked in the texts of a snapshot."""

    rules: str
    """Version of the rules that were in force at the freeze: of the code, and a digest of the settings."""
    on: tuple[str, ...]
    """Kinds of personal data that the rules mask."""
    off: tuple[str, ...]
    """Kinds that Ratchet knows and that the rules do not mask."""
    found: dict[str, int]
    """Kind -> number of placeholders in the distinct prompts and answers of the snapshot. Records keep the rules of their ingest."""


class NearRung(Frozen):
    """Pairs of prompts with a similarity in [least, below), both with a known right answer."""

    least: float
    below: float
    pairs: int
    different: int
    """Pairs that are different questions: the right answer of each would be a wrong answer to the other."""


class NearRule(Frozen):
    """From which similarity the prompts of a line count as near-duplicates, and why."""

    similarity: float
    """Least Jaccard similarity of near-duplicates."""
    measured: tuple[NearRung, ...] = ()
    """What `holdout.similarity = "auto"` has measured. Empty: the loop file sets the similarity."""
    template: int = 0
    """Number of character 5-grams of a template that the prompts share. They are left out of the comparison. 0: no template was found."""


class Snapshot(Frozen):
    """Frozen set of samples and prompts for training, independent of the training method."""

    name: str
    as_of: datetime
    """Ingest cutoff. Traces and feedback ingested later affect later snapshots only."""
    lake: dict[str, int | None]
    """Table name -> Iceberg snapshot id."""
    samples: Digest
    """Parquet artifact with the schema records.SAMPLES."""
    prompts: Digest
    """Prompts of the training split: Parquet artifact with the schema records.PROMPTS."""
    scorers: tuple[ScorerVersion, ...]
    edition: int
    """Number of the holdout edition that was excluded from the samples."""
    counts: dict[str, int]
    """Trace counts: `considered` = all `out:<reason>` + `holdout` + `used`. Also contains figures for `ratchet explain`."""
    content: Digest
    """Digest over samples and prompts."""
    withdrawn: Digest
    """Digest over what was left out because consent was refused or withdrawn. If it differs when the training set is built, the samples
    are computed again."""
    judges: tuple[JudgeBelief, ...] = ()
    """For each judge, whether it was believed when these samples were scored."""
    signals: tuple[SignalBelief, ...] = ()
    """For each signal that an answer has, its agreement with the ratings."""
    teachers: tuple[TeacherBelief, ...] = ()
    """For each slice with answers of a teacher, its agreement with people and what became of the answers."""
    masked: MaskedData
    """What was masked in the texts."""
    largest_cluster: PromptGroup | None = None
    """Largest cluster of near-duplicate prompts, on any side of the split. Prompts count once by the first user message of their
    conversations. None: they were not searched, or there are no prompts."""
    near: NearRule | None = None
    """None: near-duplicates were not searched."""
    largest_root: PromptGroup | None = None
    """The most prompts, of more than one session, whose first question (`ids.root_text`) is the same. None: no prompts of several sessions,
    or of no session, have the same one."""
    silent_scorers: dict[str, str] = Field(default_factory=dict)
    """Scorer that gave no score to any logged answer -> why, with the remedy. Judges are not part of it."""
    doubtful_scorers: dict[str, str] = Field(default_factory=dict)
    """Verifiable scorer that gave 0 to nearly all logged answers, or to many that say the same as the right answer -> the numbers, with the
    remedy."""


class ProbeReport(Frozen):
    """Result of a probe: k answers of the start model to each of N training prompts. If there are enough, all are new to the champion."""

    name: str
    answers: Digest
    """Parquet artifact with the schema records.SAMPLES and origin = probe."""
    prompts: int
    samples_per_prompt: int
    answered: int
    scored: int
    failures: int
    """Number of requests without an answer. They are not scored and do not count as zero."""
    cut: int | None = None
    """Number of answers that ended at `probe.max_tokens` instead of their end. None if the server does not say how its answers ended."""
    reasons: dict[str, int] = Field(default_factory=dict)
    """Why requests have no answer, in the server's words (`ChatAnswer.failure`) -> how many."""
    mean_reward: float | None
    """Mean reward over all scored answers."""
    group_coverage: float | None
    """Share of probed prompts with mixed rewards. GRPO can learn only from these prompts."""
    best_of_k: float | None
    """Mean of the best reward per prompt. GRPO cannot exceed it by sharpening the policy alone."""
    usual_reward: float | None = None
    """Mean over prompts of the reward of the champion's most frequent answer. It approximates the quality that users get without random
    sampling. It uses only prompts that the champion was not trained on, if there are enough of them, because it may know the others by
    heart. Of these it uses only prompts whose reference is independent of the model's answer (kinds `reference` and `logged`), if there are
    enough of them. Corrected prompts would bias the mean: users correct wrong answers, so these prompts are harder than others.
    """
    usual_error: float | None = None
    """Standard error of `usual_reward` over prompts. With few samples, the most frequent one may not be the model's usual answer."""
    new_prompts: int | None = None
    """Number of prompts that `usual_reward` uses, if the champion was trained on none. None: it was trained on some, or elsewhere."""


class TrainingSet(Frozen):
    """Input of a trainer, built from a snapshot and a probe, with the facts for the choice of the training method."""

    name: str
    snapshot: Digest
    """Equal to Snapshot.content. If consent was withdrawn after the freeze, the content of the snapshot without what was withdrawn."""
    probe: Digest | None
    """Equal to ProbeReport.answers. None without a probe."""
    pairs: Digest
    """Parquet artifact with the schema records.PAIRS."""
    prompts: Digest
    """Prompts for GRPO: Parquet artifact with the schema records.PROMPTS. Prompts with mixed rewards come first. Prompts without a
    reference are included only if some scorer needs no reference."""
    demonstrations: Digest
    """Demonstrations for SFT: Parquet artifact with the schema records.DEMONSTRATIONS."""
    facts: Facts
    content: Digest
    development: Digest | None = None
    """Development prompts, which are not in the other files: Parquet artifact with the schema records.DEVELOPMENT. None: the line has no
    development split, or it has no such prompts yet."""
    development_prompts: int = 0
    """Number of development prompts."""
    cross_validation: Digest | None = None
    """Training prompts of at most CROSS_VALIDATED_CLUSTERS clusters of near-duplicates that can be scored: Parquet artifact with the schema
    records.CROSS_VALIDATION. Only in sets with fewer than CROSS_VALIDATED_BELOW development prompts."""
    cross_validated_prompts: int = 0
    """Number of clusters of near-duplicates in `cross_validation` that a run can measure at least."""
    evidence: dict[str, dict[str, int]] = Field(default_factory=dict)
    """Kind of evidence -> what it became, or why it became nothing -> rows of the snapshot."""
    slices: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Artifact (pairs, prompts or demonstrations) -> slices of its rows. Rows without a slice have the empty name. An artifact with more
    than MOST_SLICES slices is left out; sets that an earlier version of Ratchet built have none. They are kept here because an artifact
    can be too large to be read for a plan."""


MOST_SLICES = 1000
"""Maximum number of slices in `TrainingSet.slices`. An application that names a slice per user would fill the ledger with names."""
EXPORT_FORMATS = ("trl", "nemo-rl", "openai", "parquet")
"""Formats in which a training set can be exported."""
CROSS_VALIDATED_BELOW = 10
"""A run finds its number of steps by cross-validation over its training prompts if there are fewer development prompts."""
CROSS_VALIDATED_LEAST = 20
"""Minimum number of clusters of near-duplicates with a prompt that can be scored. With fewer, there is no cross-validation: the standard
error of a difference would be larger than most gains."""
CROSS_VALIDATED_CLUSTERS = 3000
"""Maximum number of clusters of near-duplicates in `TrainingSet.cross_validation`. A run measures at most a tenth of them per fold, so more
would change nothing, and each costs time at its start."""


_LEAST_DIFFERENCE = 1e-6


def is_mixed(rewards: Sequence[float | None]) -> bool:
    """Return whether answers to one prompt have different rewards, so that GRPO can learn from them. None: no scorer decided."""
    scored = [reward for reward in rewards if reward is not None]
    return len(scored) > 1 and max(scored) - min(scored) > _LEAST_DIFFERENCE


UNMEASURED_NOISE = 0.2
"""Assumed share of wrong ratings if too few answers have both a rating and a verifiable score to measure it.

The value is slightly conservative, because answers to one prompt tend to be right or wrong together. On the GSM8K traces with 15 % of the
ratings flipped, thumbs-up/down pairs get a mean weight of 0.53; the correct weight is 0.50."""


class Facts(Frozen):
    """Measured facts for the choice of the training method. Shares are in [0, 1]; None means not measured."""

    pairs: int
    pairs_by_tier: dict[str, int]
    pairs_dropped: dict[str, int]
    """Reason -> number of candidate pairs that were not used."""
    prompts: int
    prompts_with_reference: int
    corrections: int
    demonstrations: dict[str, int] = Field(default_factory=dict)
    """Source of the evidence (correction, reference or a tier) -> number of answers that count as right."""
    repeats: int = 0
    """Number of these answers with a lower weight, because equal answers to near-duplicate prompts together weigh as much as those of one
    prompt."""
    teachable: int = 0
    """Number of demonstrations for prompts that the model answers wrong more often than right."""
    samples: int
    group_coverage: float | None
    """See `ProbeReport.group_coverage`."""
    never_right: float | None = None
    """Share of the probed prompts whose answers have equal rewards and are not right although a reference is known, of the same prompts as
    `group_coverage`. GRPO alone rarely learns them."""
    label_noise: float | None
    """Estimated share of wrong ratings, from their agreement with verifiable rewards of the same answers. If it is None, calculations
    use UNMEASURED_NOISE."""
    champion_reward: float | None
    """Mean reward of the start model, which is the champion or the base model. See `ProbeReport.mean_reward`."""
    best_of_k: float | None
    """See `ProbeReport.best_of_k`."""
    off_policy: float | None
    """Share of answers in the pairs that no version of this line generated."""
    usable_prompts: int | None = None
    """Number of prompts for which GRPO answers can be scored: all prompts if some scorer needs no reference, otherwise those with one."""
    usual_reward: float | None = None
    """See `ProbeReport.usual_reward`. The difference to 1 is the possible improvement."""
    usual_error: float | None = None
    """Standard error of `usual_reward`."""
    new_prompts: int | None = None
    """See `ProbeReport.new_prompts`."""
    policy_distance: float | None = None
    """Distance between the logged answers and the probed model's answers. It measures how much more often than by chance a logged answer
    is the least typical of all answers to its prompt. 0: consistent with the model's own answers. 1: the model never answers like this."""
    policy_distance_error: float | None = None
    """Standard error of `policy_distance`."""
    pair_prompts: int | None = None
    """Number of prompts in the pairs. None: near-duplicates were not searched."""
    pair_clusters: int | None = None
    """Number of clusters of near-duplicate prompts in the pairs. All pairs of a cluster together weigh as much as those of one prompt."""


TrainingSet.model_rebuild()
