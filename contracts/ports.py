"""All ports on one page. Decisions call nothing; everything outside them is reached through these.

Every method that changes something is idempotent by its name: called again after a crash, it finds what the first
call did. Calls block; errors are those of contracts/errors.py (Retryable: try later; Permanent: a person must act).
Fakes: contracts/fakes. One contract suite per port: tests/contract/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from contracts.cycle import Append, Entry, Lease
from contracts.data import (
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
from contracts.evaluation import ChatAnswer, ChatRequest, CheckResult, EvalReport
from contracts.ids import Digest
from contracts.model import ModelRef
from contracts.records import Tier
from contracts.serving import Capabilities, Endpoint, Evidence, ModelVersion, Route, StepJudgement
from contracts.training import Attempt, JobEvent, JobSpec, JobStatus, ResumePoint, StepFigures, TrainingPlan

Progress = Callable[[str, int, int], None]
"""(what, done, total), called now and then during long work."""


class Clock(Protocol):
    """Time as an argument."""

    def now(self) -> datetime:
        """UTC, aware."""

    def sleep(self, seconds: float) -> None: ...


class Ledger(Protocol):
    """The append-only truth: hash-chained streams, compare-and-set, leases."""

    def read(self, stream: str, after: int = 0) -> list[Entry]:
        """Rows with seq > `after`, in order; empty for an unknown stream."""

    def append(self, appends: Sequence[Append], lease: Lease | None, at: datetime) -> list[Entry]:
        """All appends or none, in one transaction. Conflict if a stream has moved on; Fenced if `lease` is no longer the newest."""

    def streams(self, prefix: str) -> list[str]:
        """Names of streams that begin with `prefix`, sorted."""

    def acquire(self, name: str, holder: str, ttl: float, now: datetime) -> Lease | None:
        """The lease with a new epoch, or None while another holder's has not expired."""

    def holder(self, name: str) -> Lease | None:
        """The newest lease of that name, expired or not."""

    def renew(self, lease: Lease, ttl: float, now: datetime) -> Lease:
        """The same epoch for longer; Fenced if somebody else has it."""

    def release(self, lease: Lease) -> None:
        """Ends it now; nothing happens if it is not ours any more."""


class Artifacts(Protocol):
    """Content-addressed files, and names bound once."""

    def put(self, data: bytes) -> Digest: ...

    def put_file(self, path: Path) -> Digest: ...

    def put_folder(self, path: Path) -> Digest:
        """Stores every file below `path`, then a manifest {relative name: digest}; its digest is the folder's."""

    def get(self, digest: Digest) -> bytes:
        """Permanent if absent, or if the stored bytes do not have this digest."""

    def fetch(self, digest: Digest, into: Path) -> Path:
        """Lays a file or a folder down at `into` (verified); `into` must not exist or be equal already. Returns `into`."""

    def bind(self, name: str, digest: Digest) -> Digest:
        """Binds a name once; returns what the name is bound to, which may be an earlier digest."""

    def resolve(self, name: str) -> Digest | None: ...


class TraceSource(Protocol):
    """Where raw batches come from. Decoding is the materializer's business."""

    name: str

    def batches(self) -> Iterator[RawBatch]:
        """All batches that lie there now, oldest first."""

    def done(self, batch: RawBatch) -> None:
        """The ledger knows this batch: a spool may drop it; a folder does nothing."""


class RewardFunction(Protocol):
    """Scores answers. The same object serves labelling, GRPO, the probe and the gate."""

    name: str
    tier: Tier
    needs: frozenset[str]
    """Subset of {prompt, answer, reference, feedback, trace}."""

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """One score in [0, 1] per sample, or None: it abstains (also where its infrastructure fails).

        A sample has the keys named in `needs`: prompt is a list of {role, content}; answer and reference are text;
        feedback is a list of {kind, value, text, rater, time}, the latest per rater.
        """


class Datasets(Protocol):
    """Traces to training sets. Names are effect names; a name done before returns what it returned then."""

    def ingest(self, batch: RawBatch) -> IngestReport:
        """One batch into the lake, exactly once (by digest, and by (source, id) per record)."""

    def cursor(self) -> Cursor: ...

    def edition(self, number: int) -> HoldoutEdition:
        """Freezes edition `number` at its first call. Inconclusive if there is no prompt with a reference to hold out."""

    def freeze(self, name: str, as_of: datetime, edition: HoldoutEdition) -> Snapshot: ...

    def probe(self, name: str, snapshot: Snapshot, client: ModelClient, progress: Progress) -> ProbeReport: ...

    def assemble(self, name: str, snapshot: Snapshot, probe: ProbeReport | None) -> TrainingSet: ...


class Trainer(Protocol):
    """Pure: a plan becomes a job."""

    method: str

    def recipe(self, changes: Mapping[str, Any], facts: Facts | None = None) -> dict[str, Any]:
        """The complete recipe, with what it leaves to measurement filled in from `facts`; without them it is only completed and checked.
        ConfigError for an unknown key, with the nearest known one."""

    def job(self, plan: TrainingPlan, attempt: Attempt) -> JobSpec:
        """The same plan and attempt give the same spec."""


class Executor(Protocol):
    """Runs jobs. Never decides to make another attempt."""

    restarts: bool
    """Whether it starts a preempted job's next incarnation by itself: then an accepted step is pinned at once, not at the next `submit`."""

    def submit(self, spec: JobSpec, incarnation: int) -> None:
        """Starts incarnation `incarnation` (1, 2, …) unless it, or a later one, was started before."""

    def observe(self, name: str) -> JobStatus:
        """Of the newest incarnation that was submitted: one that never starts is pending for a while, then ended as lost."""

    def events(self, name: str, since: int = 0) -> list[JobEvent]:
        """Events from number `since` on, over all incarnations of the attempt."""

    def pin(self, spec: JobSpec, resume: ResumePoint) -> None:
        """Lays down where the next incarnation must resume. A step that is not pinned is never resumed from."""

    def pinned(self, spec: JobSpec) -> ResumePoint | None:
        """What `pin` laid down last."""

    def cancel(self, name: str) -> None:
        """SIGTERM, then SIGKILL after the grace; returns at once."""

    def live(self) -> list[str]:
        """Names of this line's jobs that run or wait to run."""


class Server(Protocol):
    """Runs model servers, which outlive our own process."""

    capabilities: Capabilities

    def ensure(self, version: ModelVersion) -> Endpoint:
        """The endpoint of a server for this version, started if need be and answering when this returns."""

    def running(self) -> list[Endpoint]: ...

    def stop(self, tag: str) -> None: ...


class ModelClient(Protocol):
    """Asks a model over HTTP."""

    def chat(self, requests: Sequence[ChatRequest], progress: Progress | None = None) -> list[ChatAnswer]:
        """One answer per request, in order; a failed request is an answer with `error`, never an exception."""


class Evaluator(Protocol):
    """Champion against candidate on one edition."""

    def evaluate(
        self, edition: HoldoutEdition, champion: tuple[ModelRef, ModelClient], candidate: tuple[ModelRef, ModelClient], progress: Progress
    ) -> EvalReport: ...


class Check(Protocol):
    """One rule of the gate, pure."""

    name: str

    def check(self, report: EvalReport) -> CheckResult: ...


class Registry(Protocol):
    """A copy of what the ledger knows, where people look for models."""

    def register(
        self,
        version: ModelVersion,
        folder: Path,
        tags: Mapping[str, str],
        metrics: Mapping[str, float],
        steps: Sequence[StepFigures] = (),
    ) -> str:
        """Idempotent by version.tag; returns the registry's reference. `steps`: the training's curves, for people to look at."""

    def alias(self, line: str, alias: str, tag: str) -> None:
        """Points `champion` or `candidate` at a version."""

    def aliases(self, line: str) -> dict[str, str]:
        """alias -> version tag, as the registry has it now."""


class Router(Protocol):
    """Splits sessions by weight, and attributes every answer."""

    attribution: bool
    """Without it there is no rollout."""

    def set(self, route: Route) -> None: ...

    def read(self, line: str) -> Route | None: ...

    def url(self) -> str:
        """Base URL that clients use, without /v1."""


class Metrics(Protocol):
    """Live evidence per version."""

    def evidence(self, champion: str, candidate: str, since: datetime, until: datetime) -> Evidence:
        """Traces with since <= time < until and origin = traffic; and their feedback so far."""


class RolloutJudge(Protocol):
    """Judges one rollout step, pure."""

    def judge(self, largest: bool, seconds: float, fresh: Evidence, mature: Evidence) -> StepJudgement:
        """`largest`: this step has the largest weight below 100, where quality is decided. `seconds`: since the step began.

        `fresh` runs up to now: exposure, errors, latency. `mature` ends before now by the feedback's maturity lag: quality.
        """


class Rewards(Protocol):
    """The loop file's scorers, bound to their tiers and weights (rewards/panel.py)."""

    versions: tuple[ScorerVersion, ...]

    def unseen(self) -> bool:
        """Whether some scorer needs no more than prompt, answer and reference."""

    def label_unseen(self, samples: Sequence[Mapping[str, Any]]) -> list[Label]:
        """Labels answers that only prompt, answer and reference are known of."""
