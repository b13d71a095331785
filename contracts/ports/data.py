"""Ports from traces to training sets: sources, dialects, the quarantine and the datasets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from ratchet.contracts.data.datasets import (
    Cursor,
    HoldoutEdition,
    IngestReport,
    ProbeReport,
    RawBatch,
    Snapshot,
    TrainingSet,
    TrainingSides,
)
from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.contracts.data.quarantine import QuarantineContent, QuarantineCounts, QuarantineEntry, ReplayReport
from ratchet.contracts.data.teaching import Sendable
from ratchet.contracts.ids import Digest
from ratchet.contracts.mirror import MirrorAsk, MirrorPrompts
from ratchet.contracts.ports.progress import Progress
from ratchet.contracts.ports.serving import ModelClient


class ProbedChampion(NamedTuple):
    """What a probe has to know about the champion, from which a training must show an improvement."""

    trained_on: tuple[Digest, ...] | None = ()
    """Artifacts of the rows of all trainings that led to it, with a column `prompt_id`. None: it was trained elsewhere, so its prompts are
    not known."""
    client: ModelClient | None = None
    """Asks the champion. None: it is the start model."""


UNTRAINED = ProbedChampion()
"""A champion that is the start model and was not trained by the line: an adopted model."""


class TraceSource(Protocol):
    """Source of raw batches. The materializer decodes them."""

    name: str
    """Name of the source in the loop file."""

    def batches(self) -> Iterator[RawBatch]:
        """Yield all batches that are available now, oldest first."""

    def done(self, batch: RawBatch) -> None:
        """Notify the source that the ledger contains the batch. A spool may delete it; a folder source does nothing."""


class Dialect(Protocol):
    """Decoder of one kind of record, without side effects."""

    name: str
    """Entry point name of the dialect."""

    def recognises(self, record: Any) -> bool:  # noqa: ARG002 -- implementations read it
        """Return whether the dialect decodes this record, which belongs to a batch in another format.

        `record` is one JSON value: a line of a file, or one OTLP request. A dialect that is not sure returns False. If several dialects
        recognise a record, it is quarantined. The default is False, for a dialect that only the format of a batch names.
        """
        return False

    def decode(self, record: Any, position: str, limits: Limits, into: Decoded) -> None:
        """Append the rows of one record to `into`, or count it as skipped or rejected there. `position` is its place in the batch.

        Required columns of a trace are `id` and `time`; `origin` is traffic and `status` is ok unless given. Feedback needs `kind`,
        `time`, and `trace_id` or `response_id`. A time may be ISO 8601 text or a number in s, ms, us or ns. `messages` and `tools` are
        JSON values in the form of contracts/conversation.py or of an API, `answer` is text or an assistant message. Without `consent`,
        the content of a trace is dropped, unless `limits.assume_consent` is set; the dialect must itself drop content whose use the
        record refuses. It states a refusal, also for an earlier trace, in `into.consents`, with `subject` (trace, response, session or
        user), `id`, `given` and `time`. Raises `Rejected` for an invalid record. Any other exception, and any
        invalid row, quarantines the whole record.
        """
        ...


class Quarantine(Protocol):
    """Records that were not admitted: what is open, and the replay through today's decoder."""

    def entries(self) -> list[QuarantineEntry]:
        """Return all entries, oldest first, also those that are resolved."""

    def content(self, identity: str) -> QuarantineContent | None:
        """Return the masked bytes of an entry; None if none are kept, or if they have expired."""

    def counts(self, since: float) -> QuarantineCounts:
        """Return what the ingests since a time, in seconds since the epoch, have read and quarantined."""
        ...

    def replay(self, identities: Collection[str], dry_run: bool = False) -> ReplayReport:
        """Read open entries again, by their ids, and store what is accepted now, exactly once. Nothing is written in a dry run."""
        ...


class Datasets(Protocol):
    """Pipeline from traces to training sets.

    `name` arguments are effect names (see `ratchet.contracts.ids.effect_name`). A call with a name that was completed before returns the
    earlier result.
    """

    @property
    def quarantine(self) -> Quarantine:
        """The quarantined records of the line."""
        ...

    def ingest(self, batch: RawBatch) -> IngestReport:
        """Write one batch to the lake exactly once. Batches are identified by digest, records by (source, id)."""

    def ingest_each(self, batches: Iterable[RawBatch]) -> Iterator[IngestReport]:
        """Write batches to the lake as `ingest` does, in their order, and yield the report of each when it is written.

        Some batches are read ahead, and decoded while those before are written. A report is the same as that of `ingest`.
        """
        ...

    def prepare(self) -> None:
        """Do the part of the next `edition` and `freeze` that depends on nothing but the ingested records. Their results stay the same.

        It may take longer than an ingest. An interrupted call loses little: the next one goes on.
        """

    def cursor(self) -> Cursor:
        """Return the current state of the lake."""
        ...

    def edition(self, number: int) -> HoldoutEdition:
        """Return holdout edition `number`, which the first call freezes, without prompts whose consent was withdrawn since.

        Raises `Inconclusive` if no holdout prompt has a reference.
        """

    def freeze(self, name: str, as_of: datetime, edition: HoldoutEdition) -> Snapshot:
        """Freeze the samples and prompts that were ingested up to `as_of` and have consent at the time of the call, without the holdout."""
        ...

    def sides(self, snapshot: Snapshot) -> TrainingSides:
        """Return which of the snapshot's prompts the line never trains on, and its clusters of near-duplicates. Stores nothing."""
        ...

    def sendable(self, snapshot: Snapshot) -> Sendable:
        """Return the prompts of the snapshot that may be sent to the line's teacher, with the consent at the time of the call.

        No held-out, golden or development prompt is among them, and none with tools. Stores nothing.
        """
        ...

    def probe(
        self, name: str, snapshot: Snapshot, client: ModelClient, progress: Progress, champion: ProbedChampion = UNTRAINED
    ) -> ProbeReport:
        """Let the start model behind `client` answer training prompts of the snapshot that still have consent, and score the answers.

        Prompts that the champion was not trained on come first. If the champion is not the start model, it answers the same prompts.
        """
        ...

    def mirror_prompts(self, rollout: str, versions: tuple[str, ...], window: tuple[datetime, datetime], asks: MirrorAsk) -> MirrorPrompts:
        """Return prompts of users that both versions of a rollout may be asked again, with the consent at the time of the call.

        Only requests in the window [since, until) count that the router has signed as answered by one of `versions` (tags). Without
        `versions`, the line's router attributes nothing, and all traffic that its senders report counts. The choice does not depend on
        the answers. Stores nothing but the rollout's secret key for hashes of people.
        """

    def forget_mirror(self) -> None:
        """Delete the secret key of the last rollout with mirrored prompts, so that no row about them can be joined to a person."""

    def assemble(self, name: str, snapshot: Snapshot, probe: ProbeReport | None) -> TrainingSet:
        """Build the training set from the snapshot and, if available, the probe, without data whose consent was withdrawn since."""
        ...
