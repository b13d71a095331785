"""Ports: the interfaces through which the decision logic accesses everything external.

Every method with side effects is idempotent by name: a repeated call after a crash finds the result of the first call. Calls are
blocking. They raise the errors of contracts/errors.py (`Retryable`: try again later; `Permanent`: an operator must act).
Fakes are in contracts/fakes. The contract tests of the ports are in tests/contract/.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from contracts.cycle import Append, Entry, Head, Lease
from contracts.data.beliefs import JudgeBelief
from contracts.data.datasets import (
    Cursor,
    Facts,
    HoldoutEdition,
    IngestReport,
    Label,
    ProbeReport,
    RawBatch,
    ScorerVersion,
    Snapshot,
    TrainingSet,
)
from contracts.data.decoding import Decoded, Limits
from contracts.data.quarantine import QuarantineContent, QuarantineCounts, QuarantineEntry, ReplayReport
from contracts.data.records import Tier
from contracts.evaluation import ChatAnswer, ChatRequest, CheckResult, EarlierAnswers, EvalReport
from contracts.ids import Digest
from contracts.jobs.training import Attempt, JobEvent, JobSpec, JobStatus, ResumePoint, StepFigures, TrainingPlan
from contracts.mirror import MirrorAsk, Mirrored, MirrorOutcome, MirrorPrompt, MirrorPrompts
from contracts.model import ModelRef
from contracts.serving import Capabilities, Endpoint, Evidence, ModelVersion, Route, StepJudgement, Stratum

Progress = Callable[[str, int, int], None]
"""Callback (activity, items done, items in total) that long operations call from time to time."""


class Clock(Protocol):
    """Source of time, replaceable in tests and simulations."""

    def now(self) -> datetime:
        """Return the current time as a timezone-aware UTC value."""

    def sleep(self, seconds: float) -> None:
        """Block for the given number of seconds."""
        ...


class Ledger(Protocol):
    """Append-only store of record: hash-chained streams with compare-and-set, and leases."""

    def read(self, stream: str, after: int = 0) -> list[Entry]:
        """Return the rows with a sequence number above `after`, in order. Returns an empty list for an unknown stream.

        Raises `NewerRelease` if a newer release wrote one of these rows.
        """

    def append(self, appends: Sequence[Append], lease: Lease | None, at: datetime) -> list[Entry]:
        """Write all appends in one transaction. Returns the new entries.

        `at` is the timestamp of the entries. `lease` is None for streams that need no lease. Raises `Conflict` if a stream has newer
        rows than expected, `Fenced` if `lease` is no longer the newest, and `NewerRelease` if a newer release wrote the last row of
        a stream. In these cases nothing is written.
        """

    def streams(self, prefix: str) -> list[str]:
        """Return the sorted names of all streams that start with `prefix`."""

    def lengths(self, streams: Collection[str]) -> dict[str, int]:
        """Return the number of rows of each of these streams that exists. The service asks this often, so it must be cheap."""

    def heads(self) -> list[Head]:
        """Return the last row of every stream, sorted by stream, from one consistent view."""

    def acquire(self, name: str, holder: str, ttl: float, now: datetime) -> Lease | None:
        """Acquire a lease with a new epoch for `ttl` seconds. Returns None while the lease of another holder has not ended.

        A lease that ends more than two `ttl` after `now` was granted before the clock was set back, and has ended too.
        """

    def holder(self, name: str) -> Lease | None:
        """Return the newest lease of that name, including an expired one. None if there is no lease."""

    def renew(self, lease: Lease, ttl: float, now: datetime) -> Lease:
        """Extend the lease to `now` plus `ttl` seconds and keep its epoch. Raises `Fenced` if another holder has acquired it."""

    def release(self, lease: Lease) -> None:
        """End the lease immediately. Does nothing if the lease is no longer the newest."""


class Artifacts(Protocol):
    """Store of content-addressed files and folders, and of names that are bound once."""

    def put(self, data: bytes) -> Digest:
        """Store `data` and return its digest."""
        ...

    def put_file(self, path: Path) -> Digest:
        """Store a file and return the digest of its content."""
        ...

    def put_folder(self, path: Path, follow_links: bool = False) -> Digest:
        """Store every file below `path` and a manifest {"files": {relative name: digest}}. Returns the digest of the manifest.

        With `follow_links`, a symbolic link counts as the file that it points to; otherwise it raises `Permanent`. Only a folder that the
        operator names may contain links.
        """

    def get(self, digest: Digest) -> bytes:
        """Return the content. Raises `Permanent` if it is missing or does not match its digest."""

    def fetch(self, digest: Digest, into: Path) -> Path:
        """Copy a file or a folder to `into`, verify its content and return `into`.

        Existing files are accepted only if their content is equal. Otherwise raises `Permanent`.
        """

    def bind(self, name: str, digest: Digest) -> Digest:
        """Bind a name once. Returns the digest that the name is bound to, which is the digest of the first call."""

    def resolve(self, name: str) -> Digest | None:
        """Return the digest that `name` is bound to, or None."""
        ...


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


class RewardFunction(Protocol):
    """Scorer of answers. Labelling, GRPO, the probe and the gate use the same implementation."""

    name: str
    """Entry point name of the scorer."""
    tier: Tier
    """Default tier of the scorer."""
    needs: frozenset[str]
    """Sample keys that the scorer reads: a subset of {prompt, answer, reference, feedback, trace}."""

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Return one score in [0, 1] per sample, in order. None is an abstention, also used for infrastructure failures.

        A sample has at least the keys in `needs`. `prompt` is a list of messages. `answer` is text, or the JSON of a message
        that calls tools (contracts/conversation.py). `reference` is text. `feedback`
        is a list of {kind, value, text, rater, time} with the latest item per rater and kind. `trace` has latency_ms, input_tokens,
        output_tokens and model, each of which may be None. Only logged answers have `feedback` and `trace`.

        A scorer with an attribute `alone = False` counts only where another scorer of its tier gives a score. One with `in_jobs = False` is
        not used in training jobs.
        """


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

    `name` arguments are effect names (see `contracts.ids.effect_name`). A call with a name that was completed before returns the earlier
    result.
    """

    @property
    def quarantine(self) -> Quarantine:
        """The quarantined records of the line."""
        ...

    def ingest(self, batch: RawBatch) -> IngestReport:
        """Write one batch to the lake exactly once. Batches are identified by digest, records by (source, id)."""

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

    def probe(self, name: str, snapshot: Snapshot, client: ModelClient, progress: Progress) -> ProbeReport:
        """Let the model behind `client` answer training prompts of the snapshot that still have consent, and score the answers."""
        ...

    def mirror_prompts(self, rollout: str, versions: tuple[str, str], window: tuple[datetime, datetime], asks: MirrorAsk) -> MirrorPrompts:
        """Return prompts of users that both versions of a rollout may be asked again, with the consent at the time of the call.

        Only requests in the window [since, until) count that the router has signed as answered by one of `versions` (tags). The choice does
        not depend on their answers. Stores nothing but the rollout's secret key for hashes of people.
        """

    def forget_mirror(self) -> None:
        """Delete the secret key of the last rollout with mirrored prompts, so that no row about them can be joined to a person."""

    def assemble(self, name: str, snapshot: Snapshot, probe: ProbeReport | None) -> TrainingSet:
        """Build the training set from the snapshot and, if available, the probe, without data whose consent was withdrawn since."""
        ...


class Trainer(Protocol):
    """Converts training plans to jobs, without side effects."""

    method: str
    """Name of the training method."""

    def recipe(self, changes: Mapping[str, Any], facts: Facts | None = None) -> dict[str, Any]:
        """Return the complete, validated recipe with the overrides in `changes`.

        Settings that depend on measurements are derived from `facts`, if given. Raises `ConfigError` for an unknown key; the message
        suggests the nearest known key.
        """

    def job(self, plan: TrainingPlan, attempt: Attempt) -> JobSpec:
        """Return the job of an attempt. The result depends only on the arguments."""


class Executor(Protocol):
    """Runs jobs. New attempts are decided elsewhere.

    `observe`, `events`, `pinned` and `live` only read: they change no file, record, process or object of a cluster, and need no lease.
    Everything that becomes due while a job runs, or after it has ended, is done by `reconcile`.
    """

    restarts: bool
    """Whether the executor restarts a preempted job without a new `submit`. If true, an accepted checkpoint is pinned immediately.
    Otherwise it is pinned before the next `submit`."""

    def submit(self, spec: JobSpec, incarnation: int) -> None:
        """Start incarnation `incarnation` (counted from 1). Does nothing if this or a later incarnation was started before."""

    def observe(self, name: str) -> JobStatus:
        """Return the status of the newest submitted incarnation.

        An incarnation that does not start is pending until a timeout, and then ends as lost. A job that has ended is reported as ended
        at once. It has no outcome until `reconcile` has stored its result, and the reported usage is the recorded one.
        """

    def reconcile(self, name: str) -> None:
        """Do what is due for a job: stop it at its limits, kill it after its grace period, record its usage, collect its output.

        After the end of the job, store its result, and delete the objects that it leaves behind. The caller holds the line's lease, and
        calls this for a running job before it observes the job, and for every name that `live` returns. The ledger need not know the
        name. Does nothing for an unknown job. A repeated call, also after a crash in the middle, continues where the last one stopped;
        a call after the result is stored never changes it. Raises Retryable if the result cannot be collected yet.
        """

    def events(self, name: str, since: int = 0) -> list[JobEvent]:
        """Return the events of all incarnations of the attempt, in order, without the first `since` ones."""

    def pin(self, spec: JobSpec, resume: ResumePoint) -> None:
        """Set the checkpoint from which the next incarnation resumes. Checkpoints that are not pinned are never used."""

    def pinned(self, spec: JobSpec) -> ResumePoint | None:
        """Return the resume point that `pin` set last, or None."""

    def cancel(self, name: str) -> bool:
        """Send SIGTERM and return immediately; `reconcile` sends SIGKILL after the grace period.

        Return whether this call stops the job. False: an earlier call did so, or the job does not run.
        """

    def live(self) -> list[str]:
        """Return the names of this line's jobs for which `reconcile` has work.

        These jobs are pending or running, or they have ended and their result is not stored yet or their objects still exist.
        """


class Server(Protocol):
    """Manages model servers. The servers keep running when the service process ends."""

    capabilities: Capabilities
    """Features that the servers support."""

    def ensure(self, version: ModelVersion) -> Endpoint:
        """Return the endpoint of a server for this version. Starts the server if necessary and waits until it is ready."""

    def running(self) -> list[Endpoint]:
        """Return the endpoints of all running servers."""
        ...

    def stop(self, tag: str) -> None:
        """Stop the server of the version with this tag, if one is running."""
        ...


class ModelClient(Protocol):
    """Sends chat requests to a model over HTTP."""

    def chat(self, requests: Sequence[ChatRequest], progress: Progress | None = None) -> list[ChatAnswer]:
        """Return one answer per request, in order. A failed request returns an answer with `error` and raises no exception."""


class Evaluator(Protocol):
    """Compares a candidate with the champion on one holdout edition."""

    def evaluate(
        self,
        edition: HoldoutEdition,
        champion: tuple[ModelRef, ModelClient],
        candidate: tuple[ModelRef, ModelClient],
        progress: Progress,
        level: float,
        earlier: Sequence[EarlierAnswers] = (),
    ) -> EvalReport:
        """Let both models answer the edition's prompts and return the comparison.

        `level` is the confidence level of the two-sided intervals; each end has half of its error. An evaluation with several looks at the
        comparison has this error over all of them, and may stop before it has asked all prompts. A repeated call stops at the same look.
        `earlier` has one element per earlier champion; the report compares the candidate with their stored answers to the golden set.
        Raises `Inconclusive` if there are no prompts.
        """
        ...

    def mirror(
        self, prompts: Sequence[MirrorPrompt], champion: ModelClient, candidate: ModelClient, progress: Progress
    ) -> list[MirrorOutcome]:
        """Let both models answer prompts again. Return the outcomes in order. Raises `Retryable` if a server refuses connections."""


class Check(Protocol):
    """One rule of the gate, without side effects."""

    name: str
    """Name of the check in verdicts and messages."""

    def check(self, report: EvalReport) -> CheckResult:
        """Return the result of this check for an evaluation report."""
        ...


class Registry(Protocol):
    """Model registry: a derived copy of the ledger's versions for users of model registries."""

    def register(
        self,
        version: ModelVersion,
        folder: Path,
        tags: Mapping[str, str],
        metrics: Mapping[str, float],
        steps: Sequence[StepFigures] = (),
    ) -> str:
        """Register a version, idempotent by `version.tag`, and return the registry's reference to it.

        `folder` is the model folder, which is registered by reference. `steps` are the training curves.
        """

    def alias(self, line: str, alias: str, tag: str) -> None:
        """Set the alias (`champion` or `candidate`) of a line to the version with this tag."""

    def aliases(self, line: str) -> dict[str, str]:
        """Return alias -> version tag, as currently stored in the registry."""


class Router(Protocol):
    """Distributes sessions over model versions by weight, and attributes every answer to its version."""

    attribution: bool
    """Whether answers are attributed to versions. A rollout requires attribution."""

    def set(self, route: Route) -> None:
        """Replace the route of the line in `route`."""
        ...

    def read(self, line: str) -> Route | None:
        """Return the current route of a line. None if there is none, or if it is damaged: `set` then replaces it."""
        ...

    def forwarded(self, line: str, since: datetime, until: datetime) -> Mapping[str, int]:
        """Return version tag -> number of requests of a line that the router sent to this version in since <= time < until.

        A request counts when it is sent, with any outcome and independently of its trace. A version without requests may be absent. A
        rollout compares these numbers with the traces, to distinguish a version without traffic from one whose traces are lost. The
        result may be lower than the true number by the requests of a few seconds, never higher. Raises Retryable if there are no counts.
        """

    def in_flight(self, line: str) -> Mapping[str, int]:
        """Return version tag -> number of requests of a line that the router has sent and whose answers are not complete.

        The numbers belong to the route that was set last: a version that this route excludes, and that has no request in flight, gets no
        further request. Its model server can then be stopped. Raises Retryable if the numbers are not known, or not yet.
        """

    def url(self) -> str:
        """Return the base URL for clients, without /v1."""
        ...

    def stop(self) -> None:
        """Stop the processes of the router on this machine, if there are any."""
        ...


class Metrics(Protocol):
    """Measurements of live traffic per model version."""

    def evidence(self, champion: str, candidate: str, since: datetime, until: datetime) -> Evidence:
        """Return the evidence for two version tags.

        It covers traces with origin = traffic and since <= time < until, and the feedback on them so far. The evidence names the tags and
        the window that were asked for.
        """


class RolloutJudge(Protocol):
    """Judges one rollout step, without side effects."""

    def judge(self, largest: bool, seconds: float, strata: Sequence[Stratum], mirrored: Mirrored | None = None) -> StepJudgement:
        """Decide whether the rollout advances, waits or rolls back.

        `largest` is true for the step with the largest weight below 100, which decides quality. `seconds` is the time since the step
        began. `strata` is the evidence of the steps so far, in their order; the last one is the current step. `mirrored` is the evidence
        of the mirrored prompts; None if the rollout asks none.
        """


class Rewards(Protocol):
    """Scorer set of a loop file, with tiers and weights (rewards/scorer_set.py)."""

    versions: tuple[ScorerVersion, ...]
    """Identity, tier and weight of each scorer."""

    def unseen(self) -> bool:
        """Return whether some scorer needs at most prompt, answer and reference."""

    def trainable(self) -> bool:
        """Return whether some scorer of new answers runs in a training job. Judges do not."""
        ...

    def label_unseen(self, samples: Sequence[Mapping[str, Any]]) -> list[Label]:
        """Label new answers, for which only prompt, answer and reference are known."""
        ...

    def beliefs(self) -> tuple[JudgeBelief, ...]:
        """Return for each judge whether it is believed, as measured last. A judge that was never measured is absent."""
        ...

    def prefer(self, samples: Sequence[Mapping[str, Any]], others: Sequence[str]) -> list[float | None]:
        """Let the judges compare each new answer with another answer to the same prompt: 1 better, 0 worse, 0.5 a tie, None no verdict."""
