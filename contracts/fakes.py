"""A shipped fake for every port that reaches outside: in memory, deterministic, idempotent by name like the real ones.

`Faults` is called before and after each outside effect and may raise; `Counter` remembers how often each named effect
really happened, so that a test can see that nothing is done twice. Tests and the simulation build worlds from these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from contracts.chain import GENESIS, seal
from contracts.cycle import Append, Entry, Lease
from contracts.data import Cursor, Facts, HoldoutEdition, IngestReport, ProbeReport, RawBatch, ScorerVersion, Snapshot, TrainingSet
from contracts.errors import Conflict, Fenced, Permanent
from contracts.evaluation import ChatAnswer, ChatRequest, CheckResult, Comparison, EvalReport, Interval, Result
from contracts.exits import Outcome
from contracts.ids import Digest, canonical, digest, job_name
from contracts.model import ModelRef
from contracts.ports import ModelClient, Progress
from contracts.serving import Arm, Capabilities, Endpoint, Evidence, ModelVersion, Route, StepJudgement, StepResult
from contracts.training import Attempt, Checkpoint, JobEvent, JobSpec, JobState, JobStatus, Proposal, ResumePoint, StepFigures, TrainingPlan

Faults = Callable[[str], None]


def no_faults(_where: str) -> None:
    """Nothing goes wrong."""


class FakeClock:
    """Time that passes only when somebody sleeps."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self.time = start

    def now(self) -> datetime:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


class MemoryLedger:
    """The ledger's law in a dictionary."""

    def __init__(self, faults: Faults = no_faults) -> None:
        self.rows: dict[str, list[Entry]] = {}
        self.leases: dict[str, Lease] = {}
        self.faults = faults

    def read(self, stream: str, after: int = 0) -> list[Entry]:
        return self.rows.get(stream, [])[after:]

    def streams(self, prefix: str) -> list[str]:
        return sorted(stream for stream in self.rows if stream.startswith(prefix))

    def append(self, appends: Sequence[Append], lease: Lease | None, at: datetime) -> list[Entry]:
        self.faults("before append")
        if lease is not None and (lease.name not in self.leases or self.leases[lease.name].epoch != lease.epoch):
            raise Fenced(f"the lease {lease.name!r} (epoch {lease.epoch}) has passed to another process")
        lengths = {append.stream: len(self.rows.get(append.stream, [])) for append in appends}
        for append in appends:
            if lengths[append.stream] != append.after:
                raise Conflict(f"{append.stream} has moved on")
            lengths[append.stream] += len(append.rows)
        written = []
        for append in appends:
            rows = self.rows.setdefault(append.stream, [])
            for row in append.rows:
                previous = rows[-1].hash if rows else GENESIS
                rows.append(seal(append.stream, len(rows) + 1, row, at, lease.epoch if lease else 0, previous))
                written.append(rows[-1])
        self.faults("after append")
        return written

    def acquire(self, name: str, holder: str, ttl: float, now: datetime) -> Lease | None:
        current = self.leases.get(name)
        if current and current.holder != holder and current.expires > now:
            return None
        epoch = current.epoch + 1 if current else 1
        self.leases[name] = Lease(name=name, holder=holder, epoch=epoch, expires=now + timedelta(seconds=ttl))
        return self.leases[name]

    def holder(self, name: str) -> Lease | None:
        return self.leases.get(name)

    def renew(self, lease: Lease, ttl: float, now: datetime) -> Lease:
        if lease.name not in self.leases or self.leases[lease.name].epoch != lease.epoch:
            raise Fenced(f"the lease {lease.name!r} has passed to another process")
        self.leases[lease.name] = lease.model_copy(update={"expires": now + timedelta(seconds=ttl)})
        return self.leases[lease.name]

    def release(self, lease: Lease) -> None:
        if lease.name in self.leases and self.leases[lease.name].epoch == lease.epoch:
            self.leases[lease.name] = lease.model_copy(update={"expires": datetime.fromtimestamp(0, UTC)})


class MemoryArtifacts:
    """Content by digest, names bound once."""

    def __init__(self) -> None:
        self.content: dict[Digest, bytes] = {}
        self.names: dict[str, Digest] = {}

    def put(self, data: bytes) -> Digest:
        self.content[digest(data)] = data
        return digest(data)

    def put_file(self, path: Path) -> Digest:
        return self.put(path.read_bytes())

    def put_folder(self, path: Path) -> Digest:
        files = sorted(file for file in path.rglob("*") if file.is_file())
        return self.put(canonical({"files": {file.relative_to(path).as_posix(): self.put_file(file) for file in files}}))

    def get(self, digest: Digest) -> bytes:
        if digest not in self.content:
            raise Permanent(f"artifact {digest[:12]} is absent")
        return self.content[digest]

    def fetch(self, digest: Digest, into: Path) -> Path:
        return into / digest

    def bind(self, name: str, digest: Digest) -> Digest:
        return self.names.setdefault(name, digest)

    def resolve(self, name: str) -> Digest | None:
        return self.names.get(name)


@dataclass
class World:
    """What the fakes share: the outside, its faults, and how often each named effect happened."""

    faults: Faults = no_faults
    effects: Counter[str] = field(default_factory=Counter)
    artifacts: MemoryArtifacts = field(default_factory=MemoryArtifacts)

    def once(self, name: str, make: Callable[[], bytes]) -> bytes:
        """An effect that is idempotent by its name: it happens at most once, whatever the faults."""
        bound = self.artifacts.resolve(name)
        if bound is None:
            self.faults(f"before {name}")
            self.effects[name] += 1
            bound = self.artifacts.bind(name, self.artifacts.put(make()))
            self.faults(f"after {name}")
        return self.artifacts.get(bound)


def fake_model(name: str) -> ModelRef:
    """A model that is only its digests."""
    return ModelRef(
        weights=digest(name), tokenizer=digest("t"), chat_template=digest("c"), generation_config=digest("g"), files=digest(name)
    )


class FakeSource:
    """Batches from memory."""

    def __init__(self, name: str, batches: Sequence[RawBatch] = ()) -> None:
        self.name = name
        self.held = list(batches)
        self.finished: list[Digest] = []

    def batches(self) -> Iterator[RawBatch]:
        return iter(list(self.held))

    def done(self, batch: RawBatch) -> None:
        self.finished.append(batch.digest)


class FakeDatasets:
    """Datasets whose figures are given."""

    def __init__(self, world: World, facts: Facts) -> None:
        self.world = world
        self.facts = facts
        self.reports: dict[Digest, IngestReport] = {}
        self.traces = 0

    def ingest(self, batch: RawBatch) -> IngestReport:
        report = self.reports.get(batch.digest, IngestReport())
        self.world.once(f"ingest/{batch.digest}", lambda: canonical(report))
        return report

    def cursor(self) -> Cursor:
        return Cursor(traces=self.traces, feedback=0, newest=None)

    def edition(self, number: int) -> HoldoutEdition:
        edition = HoldoutEdition(
            line="fake", number=number, prompts=digest(f"edition {number}"), size=100, golden=None, normaliser=1, fraction=0.2
        )
        return HoldoutEdition.model_validate_json(self.world.once(f"edition/{number}", lambda: canonical(edition)))

    def freeze(self, name: str, as_of: datetime, edition: HoldoutEdition) -> Snapshot:
        made = Snapshot(
            name=name,
            as_of=as_of,
            lake={},
            samples=digest("samples"),
            prompts=digest("prompts"),
            scorers=(),
            edition=edition.number,
            counts={"used": self.facts.samples},
            content=digest(name),
        )
        return Snapshot.model_validate_json(self.world.once(name, lambda: canonical(made)))

    def probe(self, name: str, snapshot: Snapshot, client: ModelClient, progress: Progress) -> ProbeReport:  # noqa: ARG002
        made = ProbeReport(
            name=name,
            answers=digest("answers"),
            prompts=10,
            samples_per_prompt=4,
            answered=40,
            scored=40,
            failures=0,
            mean_reward=self.facts.champion_reward,
            group_coverage=self.facts.group_coverage,
            best_of_k=self.facts.best_of_k,
        )
        return ProbeReport.model_validate_json(self.world.once(name, lambda: canonical(made)))

    def assemble(self, name: str, snapshot: Snapshot, probe: ProbeReport | None) -> TrainingSet:
        made = TrainingSet(
            name=name,
            snapshot=snapshot.content,
            probe=probe.answers if probe else None,
            pairs=digest("pairs"),
            prompts=digest("prompts"),
            demonstrations=digest("demonstrations"),
            facts=self.facts,
            content=digest([name, "set"]),
        )
        return TrainingSet.model_validate_json(self.world.once(name, lambda: canonical(made)))


class FakeTrainer:
    """A plan's job, without a program."""

    def __init__(self, method: str) -> None:
        self.method = method

    def recipe(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        return {"steps": 10, **changes}

    def job(self, plan: TrainingPlan, attempt: Attempt) -> JobSpec:
        return JobSpec(
            name=job_name(plan.id, attempt.number, digest([self.method, attempt.model_dump(mode="json")])),
            plan=plan.id,
            attempt=attempt.number,
            command=("true",),
            environment={},
            inputs={},
            plan_json=canonical(plan).decode(),
            grace_seconds=1,
        )


class FakeExecutor:
    """Jobs that end as told: `script` gives each incarnation's outcome, and each observation moves a job on by one step."""

    propose: Callable[[int, int], Proposal | None] = staticmethod(lambda _attempt, _incarnation: None)
    """What a failed incarnation asks the next attempt to change."""

    def __init__(self, world: World, script: Callable[[int, int], Outcome], steps: int = 3) -> None:
        self.world = world
        self.script = script
        self.steps = steps
        self.specs: dict[str, JobSpec] = {}
        self.started: dict[str, int] = {}
        self.step: dict[str, int] = {}
        self.pinned: dict[str, ResumePoint] = {}
        self.log: dict[str, list[JobEvent]] = {}
        self.cancelled: set[str] = set()

    def submit(self, spec: JobSpec, incarnation: int) -> None:
        if self.started.get(spec.name, 0) >= incarnation:
            return
        self.world.faults(f"before submit {spec.name}/{incarnation}")
        self.world.effects[f"submit/{spec.name}/{incarnation}"] += 1
        self.specs[spec.name] = spec
        self.started[spec.name] = incarnation
        resume = self.pinned.get(spec.name)
        self.step[spec.name] = resume.step if resume else 0
        self.world.faults(f"after submit {spec.name}/{incarnation}")

    def observe(self, name: str) -> JobStatus:
        if name not in self.started:
            return JobStatus(state=JobState.ABSENT)
        incarnation, spec = self.started[name], self.specs[name]
        outcome = Outcome.LOST if name in self.cancelled else self.script(spec.attempt, incarnation)
        stop = self.steps if outcome is Outcome.DONE else max(1, self.steps - 1)
        if self.step[name] < stop:
            self.step[name] += 1
            self._save(spec, incarnation)
            return JobStatus(state=JobState.RUNNING, incarnation=incarnation, step=self.step[name], total=self.steps)
        if outcome is Outcome.DONE:
            self._publish(spec, incarnation)
        asks = self.propose(spec.attempt, incarnation) if outcome is Outcome.FAILED else None
        said = f"scripted {outcome}"
        return JobStatus(state=JobState.ENDED, incarnation=incarnation, step=self.step[name], outcome=outcome, reason=said, proposal=asks)

    def _save(self, spec: JobSpec, incarnation: int) -> None:
        step = self.step[spec.name]
        data = {"path": f"a{spec.attempt}/i{incarnation}/step_{step}", "manifest": digest([spec.name, incarnation, step])}
        event = JobEvent(at=0.0, incarnation=incarnation, kind="checkpoint", step=step, data=data)
        self.log.setdefault(spec.name, []).append(event)

    def _publish(self, spec: JobSpec, incarnation: int) -> None:
        model = fake_model(f"trained {spec.plan}")
        checkpoint = Checkpoint(
            plan=spec.plan,
            attempt=spec.attempt,
            incarnation=incarnation,
            step=self.steps,
            files=model.files,
            model=model,
            metrics={"loss": 0.1},
        )
        self.world.once(f"checkpoint/{spec.plan}/a{spec.attempt}", lambda: canonical(checkpoint))

    def events(self, name: str, since: int = 0) -> list[JobEvent]:
        return self.log.get(name, [])[since:]

    def pin(self, spec: JobSpec, resume: ResumePoint) -> None:
        self.pinned[spec.name] = resume

    def cancel(self, name: str) -> None:
        self.cancelled.add(name)


class FakeServer:
    """Endpoints that answer nothing by themselves."""

    capabilities = Capabilities(sampling=True, seed=False, logprobs=False)

    def __init__(self, world: World) -> None:
        self.world = world
        self.up: dict[str, Endpoint] = {}

    def ensure(self, version: ModelVersion) -> Endpoint:
        if version.tag not in self.up:
            self.world.faults(f"before serve {version.tag}")
            self.up[version.tag] = Endpoint(tag=version.tag, url=f"http://{version.tag}", model=version.tag)
            self.world.faults(f"after serve {version.tag}")
        return self.up[version.tag]

    def running(self) -> list[Endpoint]:
        return list(self.up.values())

    def stop(self, tag: str) -> None:
        self.up.pop(tag, None)


class FakeClient:
    """Answers by a function of the request."""

    def __init__(self, answer: Callable[[ChatRequest], str | None] = lambda _request: "") -> None:
        self.answer = answer

    def chat(self, requests: Sequence[ChatRequest], progress: Progress | None = None) -> list[ChatAnswer]:  # noqa: ARG002
        texts = [self.answer(request) for request in requests]
        return [ChatAnswer(text=text, error=None if text is not None else "scripted failure") for text in texts]


class FakeEvaluator:
    """A report with a given difference."""

    def __init__(self, world: World, difference: float) -> None:
        self.world = world
        self.difference = difference

    def evaluate(
        self,
        edition: HoldoutEdition,
        champion: tuple[ModelRef, ModelClient],
        candidate: tuple[ModelRef, ModelClient],
        progress: Progress,  # noqa: ARG002
    ) -> EvalReport:
        self.world.faults("before evaluate")
        interval = Interval(estimate=self.difference, low=self.difference - 0.05, high=self.difference + 0.05, level=0.95, n=100)
        overall = Comparison(name="overall", n=100, champion=0.5, candidate=0.5 + self.difference, difference=interval)
        return EvalReport(
            edition=edition.number,
            champion=champion[0].id,
            candidate=candidate[0].id,
            asked=100,
            answered_by_both=100,
            failures={},
            comparisons=(overall,),
            answers=digest("answers"),
        )


class FakeCheck:
    """Passes where the overall interval lies above zero, fails where it lies below."""

    name = "better"

    def check(self, report: EvalReport) -> CheckResult:
        difference = report.comparisons[0].difference
        result = Result.PASS if difference.low > 0 else Result.FAIL if difference.high < 0 else Result.INCONCLUSIVE
        return CheckResult(check=self.name, result=result, reason=f"{difference.low:+.2f} to {difference.high:+.2f}")


class FakeRegistry:
    """Versions and aliases in dictionaries."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.versions: dict[str, dict[str, str]] = {}
        self.pointers: dict[tuple[str, str], str] = {}

    def register(
        self, version: ModelVersion, folder: Path, tags: Mapping[str, str], metrics: Mapping[str, float], steps: Sequence[StepFigures] = ()
    ) -> str:
        del folder, metrics, steps  # it keeps names and tags
        if version.tag not in self.versions:
            self.world.faults(f"before register {version.tag}")
            self.world.effects[f"register/{version.tag}"] += 1
            self.versions[version.tag] = dict(tags)
            self.world.faults(f"after register {version.tag}")
        return f"fake:{version.tag}"

    def alias(self, line: str, alias: str, tag: str) -> None:
        self.pointers[line, alias] = tag

    def aliases(self, line: str) -> dict[str, str]:
        return {alias: tag for (of, alias), tag in self.pointers.items() if of == line}


class FakeRouter:
    """Remembers every route that was ever set, for invariants over what served."""

    attribution = True

    def __init__(self, world: World) -> None:
        self.world = world
        self.routes: dict[str, Route] = {}
        self.history: list[Route] = []
        self.watch: Callable[[Route], None] = lambda _route: None

    def set(self, route: Route) -> None:
        self.world.faults(f"before route {route.annotation}")
        self.watch(route)
        self.routes[route.line] = route
        self.history.append(route)
        self.world.faults(f"after route {route.annotation}")

    def read(self, line: str) -> Route | None:
        return self.routes.get(line)

    def url(self) -> str:
        return "http://router"


class FakeMetrics:
    """Evidence by a function of (champion, candidate, since, until)."""

    def __init__(self, arms: Callable[[datetime, datetime], tuple[int, int]]) -> None:
        self.arms = arms

    def evidence(self, champion: str, candidate: str, since: datetime, until: datetime) -> Evidence:
        counts = self.arms(since, until)
        sides = [
            Arm(tag=tag, requests=n, errors=0, latency_p50_ms=1.0, latency_p95_ms=2.0, rated=())
            for tag, n in zip((champion, candidate), counts, strict=True)
        ]
        return Evidence(since=since, until=until, champion=sides[0], candidate=sides[1])


class FakeJudge:
    """Advances after enough requests, or rolls back at a scripted step."""

    def __init__(self, enough: int = 10, roll_back_when_largest: bool = False) -> None:
        self.enough = enough
        self.bad = roll_back_when_largest

    def judge(self, largest: bool, seconds: float, fresh: Evidence, mature: Evidence) -> StepJudgement:  # noqa: ARG002
        n = fresh.candidate.requests
        result = StepResult.WAIT if n < self.enough else StepResult.ROLL_BACK if largest and self.bad else StepResult.ADVANCE
        return StepJudgement(result=result, reasons=(f"{n} requests",), requests=n + fresh.champion.requests, candidate_requests=n)


class FakeRewards:
    """Scorers that are only names."""

    versions: tuple[ScorerVersion, ...] = ()

    def unseen(self) -> bool:
        return True

    def score_unseen(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        return [1.0 if sample.get("answer") == sample.get("reference") else 0.0 for sample in samples]
