"""One line that goes through the product's own engine, in one process: lake, probe, choice, training, gate, and rollout.

The ledger is in memory and the clock is virtual. Jobs run the trainer's entry point in this process, and models answer in it, through the
ports that processes and servers implement in an installation. The registry is left out. A rollout is judged by the product's judge on
simulated requests: users whose satisfaction differs between the versions by the true difference of their accuracy.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.closed_loops.people import CYCLE, START, People
from benchmarks.closed_loops.reviewers import COUNT, reviewed
from benchmarks.recipe_cell import BUILD, Answers, right, running_in
from benchmarks.recipe_worlds import Question
from benchmarks.rollouts import Traffic, World, arm
from ratchet.contracts.data.datasets import RawBatch, Snapshot
from ratchet.contracts.evaluation import Interval
from ratchet.contracts.fakes import FakeRegistry, FakeRouter, FakeWorld, MemoryLedger
from ratchet.contracts.ids import checkpoint_name, digest, rollout_stream
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Checkpoint, JobEvent, JobSpec, JobState, JobStatus, ResumePoint, TrainingPlan
from ratchet.contracts.loop import Loop
from ratchet.contracts.model import model_ref
from ratchet.contracts.moment import Moment
from ratchet.contracts.ports import Teacher
from ratchet.contracts.schema import stamped
from ratchet.contracts.serving import Capabilities, Endpoint, Evidence, ModelVersion
from ratchet.flows.config.load import load_loop
from ratchet.flows.core.asking.parquet_rows import rows_of
from ratchet.flows.core.decide import End
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.rollouts.rollout import candidate_share
from ratchet.flows.engine.asking.dataset_export import set_of_now
from ratchet.flows.engine.asking.review import choose as choose_questions
from ratchet.flows.engine.asking.review import known_questions, take_in
from ratchet.flows.engine.context import TURN_SECONDS, LineContext, process_holder
from ratchet.flows.engine.line import adopt, open_cycle
from ratchet.flows.engine.work import turn
from ratchet.gates.checks import checks
from ratchet.gates.evaluation.evaluator import PairedEvaluator
from ratchet.gates.rollout_judge import EvidenceJudge
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.dialects.decode import BUILT_IN
from ratchet.materializer.dialects.review import ReviewDialect
from ratchet.materializer.ingest import IngestKeys
from ratchet.rewards.judge.records import JudgeRecords
from ratchet.rewards.scorer_set import build_scorer_set
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.jobs.run_folder import read_events
from ratchet.runtime.secrets.keyring import KeyFile, ensure_keyring
from ratchet.runtime.secrets.span_signature import SPAN_KEYS
from ratchet.trainers.backends.trl import DPO, GRPO, SFT
from ratchet.trainers.choose import choose
from ratchet.trainers.code_digest import code_digest
from ratchet.trainers.job.trl import runner
from ratchet.trainers.recipes.completion import KINDS

LOOP = """
[line]
name = "bench"
served_model = "m"
seed = {seed}
start_from = "{start_from}"
[[sources]]
name = "app"
kind = "jsonl"
path = "traces"
[[rewards]]
name = "exact_match"
[[rewards]]
name = "user_feedback"
[holdout]
fraction = {holdout}
similarity = {similarity}
development = {development}
golden = "golden.jsonl"
[snapshot]
references_are_answers = true
[probe]
prompts = 160
samples = 4
max_tokens = 48
[gate]
max_tokens = 48
[approvals]
training = {{mode = "auto"}}
rollout = {{mode = "auto"}}
[rollout]
max_seconds = 60_000
min_seconds = 60
maturity = 0
[training.search]
budget = {budget}
[training.sft]
{small}
[training.dpo]
{small}
[training.grpo]
{small}
max_completion = 48
"""
SMALL = "gradient_checkpointing = false\nmicro_batch = 16\nsave_every = 1000\nmax_grad_norm = 1.0"
"""What describes the machine and the size of the model. Steps and learning rates are the product's own."""
TURN = 600.0
"""Seconds between two turns of a rollout, in which one request arrives per second."""
METHODS: dict[str, Any] = {"sft": SFT(), "dpo": DPO(), "grpo": GRPO()}


class Sides(NamedTuple):
    """How the prompts of a line are divided. The defaults are the product's own, also of rows of results that name none."""

    similarity: float | str = 0.8
    """`holdout.similarity`."""
    holdout: float = 0.2
    """`holdout.fraction`."""
    development: float = 0.15
    """`holdout.development`."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Sides:
        """Return the sides of a row of results."""
        return cls(**{name: row[name] for name in cls._fields if name in row})

    @property
    def changed(self) -> dict[str, float | str]:
        """The settings that are not the product's own, by name."""
        return {name: value for name, value in self._asdict().items() if value != self._field_defaults[name]}


class VirtualClock:
    """A clock that only the benchmark advances."""

    def __init__(self) -> None:
        self.time = START

    def now(self) -> datetime:
        """Return the virtual time."""
        return self.time

    def moment(self) -> Moment:
        """Return the same time as a moment."""
        return Moment(self.now().timestamp())

    def sleep(self, seconds: float) -> None:
        """Advance the time by `seconds`."""
        self.time += timedelta(seconds=seconds)


class Jobs:
    """Implement the `Executor` port: a job runs to its end in this process when it is submitted."""

    restarts = False

    def __init__(self, root: Path, artifacts: FolderArtifacts) -> None:
        self._root, self._artifacts = root, artifacts
        self._ended: dict[str, JobStatus] = {}
        self._events: dict[str, list[JobEvent]] = {}

    def submit(self, spec: JobSpec, incarnation: int) -> None:
        """Run the job, and publish its model if it succeeds."""
        run = self._root / spec.name.replace("/", "-")
        run.mkdir(parents=True, exist_ok=True)
        plan = TrainingPlan.model_validate_json(spec.plan_json)
        (run / "plan.json").write_bytes(stamped(plan))
        for name, key in spec.inputs.items():
            if not (run / name).exists():
                self._artifacts.fetch(key, run / name)
        with running_in(run, {**spec.environment, "RATCHET_ATTEMPT": str(spec.attempt), "RATCHET_INCARNATION": str(incarnation)}):
            runner.train_job(BUILD[plan.method], KINDS[plan.method])
        folder = run / f"i{incarnation}"
        result = json.loads((folder / "result.json").read_bytes())
        if result["outcome"] == Outcome.DONE:
            files = self._artifacts.put_folder(folder / "model")
            checkpoint = Checkpoint(
                plan=plan.id,
                attempt=spec.attempt,
                incarnation=incarnation,
                step=result["step"],
                files=files,
                model=model_ref(folder / "model", files),
                metrics=result["metrics"],
            )
            self._artifacts.bind(checkpoint_name(plan.id, spec.attempt, incarnation), self._artifacts.put(stamped(checkpoint)))
        outcome, why = Outcome(result["outcome"]), str(result["reason"])
        self._ended[spec.name] = JobStatus(state=JobState.ENDED, incarnation=incarnation, step=result["step"], outcome=outcome, reason=why)
        self._events[spec.name] = list(read_events(folder))

    def observe(self, name: str) -> JobStatus:
        """Return the end of a submitted job."""
        return self._ended.get(name, JobStatus(state=JobState.ABSENT))

    def reconcile(self, name: str) -> None:
        """Do nothing: results are stored when a job ends."""

    def events(self, name: str, since: int = 0) -> list[JobEvent]:
        """Return the events of a job."""
        return self._events.get(name, [])[since:]

    def pin(self, spec: JobSpec, resume: ResumePoint) -> None:
        """Do nothing: no job is interrupted."""

    def pinned(self, spec: JobSpec) -> ResumePoint | None:  # noqa: ARG002
        """Return None: no job resumes."""
        return None

    def cancel(self, name: str) -> bool:  # noqa: ARG002
        """Return False: no job is running."""
        return False

    def live(self) -> list[str]:
        """Return no jobs: none is running between two calls."""
        return []


class Models:
    """Implement the `Server` port, and the client of its endpoints, with models in this process."""

    capabilities = Capabilities(sampling=True, seed=True, logprobs=False)

    def __init__(self, root: Path, artifacts: FolderArtifacts) -> None:
        self._root, self._artifacts = root, artifacts
        self._answers: dict[str, Answers] = {}

    def folder(self, version: ModelVersion) -> Path:
        """Return the folder with the files of a version."""
        return self._artifacts.fetch(version.model.files, self._root / version.model.files)

    def ensure(self, version: ModelVersion) -> Endpoint:
        """Load the model and return its endpoint."""
        if version.tag not in self._answers:
            self._answers[version.tag] = Answers(self.folder(version))
        return Endpoint(tag=version.tag, url=f"http://{version.tag}", model=version.tag)

    def client(self, endpoint: Endpoint) -> Answers:
        """Return the model behind an endpoint."""
        return self._answers[endpoint.tag]

    def running(self) -> list[Endpoint]:
        """Return the endpoints of all loaded models."""
        return [Endpoint(tag=tag, url=f"http://{tag}", model=tag) for tag in self._answers]

    def stop(self, tag: str) -> None:
        """Unload a model."""
        self._answers.pop(tag, None)


class SimulatedUse:
    """Implement the `Metrics` port: requests of a rollout, drawn in advance from the true accuracies of both versions."""

    def __init__(self, share: Callable[[datetime], float], people: People) -> None:
        """`share` returns the percentage of the sessions that the candidate got at a time. `people` rate as their trap says."""
        self._share, self._people = share, people
        self._traffic: Traffic | None = None
        self._loss: Callable[[], float] = lambda: 0.0
        self._seed, self._margin, self._begin = 0, 0.05, START

    def prepare(self, seed: int, margin: float, loss: Callable[[], float]) -> None:
        """Draw the requests anew when the next rollout begins. `loss` is the true accuracy of the champion minus that of the candidate."""
        self._seed, self._margin, self._loss, self._traffic = seed, margin, loss, None

    def evidence(self, champion: str, candidate: str, since: datetime, until: datetime) -> Evidence:
        """Return the evidence of the requests between two times."""
        if self._traffic is None:
            world = World(margin=self._margin, loss=self._loss(), requests=70_000, correlation=0.6)
            self._traffic, self._begin = Traffic(np.random.default_rng(self._seed), world), since
            self._people.rate(self._traffic, self._seed)
        first, last = (max(0, int((at - self._begin).total_seconds())) for at in (since, until))
        theirs = self._traffic.place[first:last] < self._share(since) / 100
        sides = [arm(self._traffic, np.flatnonzero(theirs == bool(side)) + first, side) for side in (0, 1)]
        tagged = [one.model_copy(update={"tag": tag}) for one, tag in zip(sides, (champion, candidate), strict=True)]
        return Evidence.model_construct(since=since, until=until, champion=tagged[0], candidate=tagged[1])


class ClosedLine:
    """A line, its people, and the questions that measure the truth."""

    def __init__(
        self,
        folder: Path,
        base: Path,
        golden: Sequence[Question],
        people: People,
        start_from: str,
        budget: float,
        more: str = "",
        teacher: Teacher | None = None,
        sides: Sides = Sides(),  # noqa: B008 -- a named tuple does not change
    ) -> None:
        """`more` are sections of the loop file about a judge or a `teacher`; empty without them. `sides` says how
        prompts are divided."""
        seed = people.seed
        folder.mkdir(parents=True)
        rows = [{"prompt": q.prompt, "reference": q.answer, "slice": q.slice} for q in golden]
        (folder / "golden.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        words = {"seed": seed, "start_from": start_from, "budget": budget, "small": SMALL}
        words |= sides._asdict() | {"similarity": json.dumps(sides.similarity)}
        (folder / "loop.toml").write_text(LOOP.format(**words) + more)
        self.loop: Loop = load_loop(folder / "loop.toml")
        self.seed, self.clock = seed, VirtualClock()
        self.artifacts = FolderArtifacts(folder / "artifacts")
        scorers = build_scorer_set(self.loop.rewards, JudgeRecords(folder / "judgements.db", "bench"))
        ensure_keyring(folder / "user-keys.json", self.clock.now())
        keys = IngestKeys(spans=KeyFile(folder / SPAN_KEYS), users=KeyFile(folder / "user-keys.json"))
        known = {**BUILT_IN, "review": ReviewDialect()}
        self.datasets = LakeDatasets(folder / "lake", self.loop, folder, scorers, self.artifacts, self.clock, keys, known)
        self.models, self.use, world = Models(folder / "models", self.artifacts), SimulatedUse(self._share, people), FakeWorld()
        self.router = FakeRouter(world)
        self.router.counts = lambda _since, _until: {}
        self.context = LineContext(
            loop=self.loop,
            folder=folder,
            ledger=MemoryLedger(),
            clock=self.clock,
            artifacts=self.artifacts,
            sources=(),
            datasets=self.datasets,
            rewards=scorers,
            choose=choose,
            trainers=METHODS,
            code=code_digest(),
            executor=Jobs(folder / "jobs", self.artifacts),
            server=self.models,
            client=self.models.client,
            evaluator=PairedEvaluator(self.artifacts, scorers, self.loop.gate),
            checks=checks(self.loop.gate),
            registry=FakeRegistry(world),
            router=self.router,
            metrics=self.use,
            judge=EvidenceJudge(self.loop.rollout),
            scratch=folder / "scratch",
            progress=lambda *_: None,
            holder=process_holder(),
            heartbeat=False,
            teacher=teacher,
        )
        adopt(self.context, base, "benchmark")

    @property
    def champion(self) -> ModelVersion:
        """The version that answers now."""
        found = self.context.line_view().champion
        assert found is not None
        return found

    def answer(self, requests: Sequence[Question], cycle: int) -> list[str]:
        """Return the champion's answers to the requests, at temperature 1."""
        return self.models.client(self.models.ensure(self.champion)).texts(requests, 1.0, self.seed + cycle)

    def ingest(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write traces with feedback into the lake."""
        body = "".join(json.dumps(record) + "\n" for record in records).encode()
        self.datasets.ingest(RawBatch("app", "jsonl", digest(body.decode()), "benchmark", lambda: io.BytesIO(body)))

    def review(self, number: int, known: Mapping[str, Question]) -> dict[str, float]:
        """Let reviewers answer the questions of a cycle. Return how many they got, the gain that the product expects, how many prompts are
        on the training side, how many of them have a right answer before, and how many are development prompts.

        `known` has all questions by prompt.
        """
        self.clock.time = max(self.clock.time, START + (number + 1) * CYCLE)
        found = set_of_now(self.context)
        chosen = choose_questions(self.context, found.snapshot, COUNT)
        answers, _ = known_questions(self.context, found, reviewed(chosen.questions, known, self.seed, self.clock.now().isoformat()))
        gains = {one.prompt_id: one.expected_gain for one in chosen.questions}
        if answers:
            take_in(self.context, answers, gains, "benchmark", TURN_SECONDS)
        prompts, measure = {row["prompt_id"] for row in self._prompts(found.snapshot)}, self.datasets.sides(found.snapshot).development
        open_ = {one.prompt_id for one in choose_questions(self.context, found.snapshot, len(prompts)).questions}
        sizes = {"prompts": len(prompts), "known": len(prompts - open_), "development": len(measure)}
        return {"asked": len(answers), "expected_gain": round(sum(gains.values()), 4), **sizes}

    def _prompts(self, snapshot: Snapshot) -> list[dict[str, Any]]:
        return rows_of(self.artifacts.get(snapshot.prompts), ("prompt_id",))

    def cycle(self, number: int, test: Sequence[Question], luck: int) -> tuple[CycleView, dict[str, Any]]:
        """Run a whole cycle. Return its rows, and the truth about its candidate: accuracy per test question of both versions.

        `luck` is the seed of the requests of its rollout.
        """
        self.clock.time = max(self.clock.time, START + (number + 1) * CYCLE)
        stream, before = open_cycle(self.context, "new traces"), self.champion
        truth: dict[str, Any] = {}

        def loss() -> float:
            candidate = self.context.cycle_view(stream).candidate
            if candidate is not None and not truth:
                truth["champion"], truth["candidate"] = (right(self.models.folder(version), test) for version in (before, candidate))
            return float(np.mean(truth["champion"]) - np.mean(truth["candidate"])) if truth else 0.0

        self.use.prepare(luck, self.loop.rollout.margin, loss)
        for _ in range(10_000):
            if isinstance(turn(self.context, self.context.cycle_view(stream)), End):
                loss()
                return self.context.cycle_view(stream), truth
            self.clock.sleep(TURN)
        raise RuntimeError(f"{stream} has not ended")

    def _share(self, at: datetime) -> float:
        """Return the percentage of the sessions that the candidate of the open cycle got at a time."""
        stream = self.context.line_view().open_cycle
        rollout = self.context.rollout_view(rollout_stream(stream)) if stream else None
        steps = rollout.steps if rollout else ()
        return next((candidate_share(step.weight, self.loop.rollout) for step in reversed(steps) if step.since <= at), 0.0)


def interval(champion: Sequence[bool], candidate: Sequence[bool], level_z: float = 2.576) -> Interval:
    """Return the paired interval of the difference of two accuracies (normal approximation; by default at 99 %)."""
    differences = np.array(candidate, dtype=float) - np.array(champion, dtype=float)
    mean, error = float(differences.mean()), float(differences.std(ddof=1) / math.sqrt(len(differences)))
    return Interval(estimate=mean, low=mean - level_z * error, high=mean + level_z * error, level=0.99, n=len(differences))
