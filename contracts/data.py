"""What the lake hands out: batches in, counts, snapshots, holdout editions, probes, training sets.

Control objects only; the rows they stand for lie in Parquet artifacts whose schemas are in contracts/records.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import BinaryIO

from pydantic import Field

from contracts.ids import Digest, canonical
from contracts.model import Frozen
from contracts.records import Tier


@dataclass(frozen=True)
class Label:
    """What a panel says about one sample."""

    reward: float | None
    """In [0, 1]; None where every scorer abstained."""
    tier: Tier | None
    """The tier that decided."""
    parts: Mapping[str, float | None]
    """scorer -> score, None for an abstention."""
    votes: int
    """Ratings behind the sample."""
    deciding: frozenset[str] = frozenset()
    """The scorers that spoke in the tier that decided."""

    @property
    def parts_json(self) -> str:
        return canonical(dict(self.parts)).decode()


@dataclass(frozen=True)
class RawBatch:
    """One unit of ingest as a source delivers it: a file, or a spooled request."""

    source: str
    """Name of the source in the loop file."""
    format: str
    """otlp-json | otlp-proto | jsonl: which decoder reads it."""
    digest: Digest
    """Of its bytes as delivered."""
    origin: str
    """Where it lies, for messages."""
    open: Callable[[], BinaryIO]
    """Opens the bytes (decompressed where the name ends in .gz)."""


class Counts(Frozen):
    """read = kept + duplicate + skipped + quarantined, always."""

    read: int = 0
    kept: int = 0
    duplicate: int = 0
    skipped: int = 0
    """Well-formed records that are no model call."""
    quarantined: int = 0
    reasons: dict[str, int] = Field(default_factory=dict)
    """Why, for skipped and quarantined ones."""

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
        return self.read == self.kept + self.duplicate + self.skipped + self.quarantined


class FeedbackCounts(Counts):
    """The same law for feedback; `parked` counts those among `kept` whose trace is not known (yet)."""

    parked: int = 0

    def __add__(self, other: Counts) -> FeedbackCounts:
        parked = self.parked + (other.parked if isinstance(other, FeedbackCounts) else 0)
        return FeedbackCounts(**super().__add__(other).model_dump(), parked=parked)


class IngestReport(Frozen):
    """What one batch (or several) brought."""

    traces: Counts = Counts()
    feedback: FeedbackCounts = FeedbackCounts()

    def __add__(self, other: IngestReport) -> IngestReport:
        return IngestReport(traces=self.traces + other.traces, feedback=self.feedback + other.feedback)

    def repeated(self) -> IngestReport:
        """The same batch delivered again: whatever it brought is a duplicate now; skipped stays skipped."""
        return IngestReport(traces=_again(self.traces), feedback=FeedbackCounts(**_again(self.feedback).model_dump(exclude={"parked"})))


def _again(counts: Counts) -> Counts:
    return Counts(read=counts.read, skipped=counts.skipped, duplicate=counts.read - counts.skipped)


class Cursor(Frozen):
    """Where the lake stands: what triggers compare."""

    traces: int
    feedback: int
    newest: datetime | None
    """Ingest time of the newest commit, UTC."""


class ScorerVersion(Frozen):
    """Exactly which code scored."""

    name: str
    distribution: str
    version: str
    code: Digest
    """Of the scorer's whole package (rewards/installed.py), so that a job can refuse a mismatch."""
    tier: Tier
    weight: float


class HoldoutEdition(Frozen):
    """A numbered, frozen set of prompts with references. Champion and candidate are always compared on one edition."""

    line: str
    number: int
    prompts: Digest
    """Parquet of records.PROMPTS."""
    size: int
    golden: Digest | None
    """Parquet of records.PROMPTS: the golden set, which only the gate sees."""
    golden_size: int = 0
    normaliser: int
    """Version of the prompt normaliser that the split hashes."""
    fraction: float


class Snapshot(Frozen):
    """What may be trained on, pinned; method-neutral."""

    name: str
    as_of: datetime
    """Traces and feedback ingested later touch the next snapshot only."""
    lake: dict[str, int | None]
    """Iceberg snapshot id per table."""
    samples: Digest
    """Parquet of records.SAMPLES."""
    prompts: Digest
    """Parquet of records.PROMPTS: the training side's prompts."""
    scorers: tuple[ScorerVersion, ...]
    edition: int
    """The holdout edition that was set apart before."""
    counts: dict[str, int]
    """considered = governed_out (by reason, `out:<reason>`) + holdout + used; plus figures for explain."""
    content: Digest
    """Over samples and prompts."""


class ProbeReport(Frozen):
    """The champion's own answers to N training prompts, k each."""

    name: str
    answers: Digest
    """Parquet of records.SAMPLES, origin = probe."""
    prompts: int
    samples_per_prompt: int
    answered: int
    scored: int
    failures: int
    """Requests without an answer: abstention, never zero."""
    mean_reward: float | None
    group_coverage: float | None
    """Share of probed prompts whose rewards are mixed: what GRPO can learn from."""
    best_of_k: float | None
    """Mean of the best reward per prompt: the most that GRPO could gain by sharpening."""
    usual_reward: float | None = None
    """Mean over prompts of the reward of the answer that came most often: about what users get, who see no draws at random.
    From prompts whose reference says nothing of the model's answer (reference, logged) where there are enough of them, else from
    all: users correct where the model was wrong, and so name its hardest prompts."""
    usual_error: float | None = None
    """Standard error of `usual_reward`, over prompts: of a few draws the most frequent one is now and then not the model's usual one."""


class TrainingSet(Frozen):
    """Snapshot and probe joined: what a trainer reads, and the facts that the choice of method rests on."""

    name: str
    snapshot: Digest
    """Snapshot.content"""
    probe: Digest | None
    """ProbeReport.answers"""
    pairs: Digest
    """Parquet of records.PAIRS."""
    prompts: Digest
    """Parquet of records.PROMPTS: GRPO's, those with mixed rewards first; without a reference only where some scorer needs none."""
    demonstrations: Digest
    """Parquet of records.DEMONSTRATIONS: what SFT imitates."""
    facts: Facts
    content: Digest


UNMEASURED_NOISE = 0.2
"""Share of single ratings that is taken to be wrong where too few answers have both a rating and a verifiable score. A little careful on
purpose: answers to one prompt tend to be right or wrong together. On the GSM8K traces, with 15 % of the ratings flipped, it weighs
thumbs-up/down pairs 0.53 on average; their true worth is 0.50."""


class Facts(Frozen):
    """Measured facts that the choice rests on. Counts; shares in [0, 1]; None is not measured."""

    pairs: int
    pairs_by_tier: dict[str, int]
    pairs_dropped: dict[str, int]
    """Why candidates for pairs were not used."""
    prompts: int
    prompts_with_reference: int
    corrections: int
    demonstrations: dict[str, int] = Field(default_factory=dict)
    """Answers that count as right, by who says so: correction, reference, or a tier."""
    teachable: int = 0
    """Of these, on prompts that the model itself gets wrong more often than right."""
    samples: int
    group_coverage: float | None
    label_noise: float | None
    """Estimated share of single ratings that are wrong, from agreement with verifiable rewards on the same answers. Where it is None,
    whoever reckons with it takes UNMEASURED_NOISE."""
    champion_reward: float | None
    best_of_k: float | None
    off_policy: float | None
    """Share of the pairs' answers that no version of this line wrote."""
    usable_prompts: int | None = None
    """Prompts that GRPO's answers can be scored on: all where some scorer needs no reference, else those with one."""
    usual_reward: float | None = None
    """Mean reward of the champion's most frequent answer to each probed prompt; what is missing from 1 is the room for training."""
    usual_error: float | None = None
    """Its standard error."""
    policy_distance: float | None = None
    """Of the logged answers from what the probed model says: how much oftener than by chance a logged answer is the least typical of
    all answers to its prompt. 0: the model may have written them; 1: it never answers so."""
    policy_distance_error: float | None = None
    """Its standard error."""


TrainingSet.model_rebuild()
