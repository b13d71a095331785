"""One cell of the recipe benchmark: from a base model and noisy traffic to a trained model and its true accuracy.

The cell uses the product's own code. It writes the traffic into a lake, freezes a snapshot, probes the model, chooses a method, runs the
trainer process's entry point, and compares the models in the gate. The trained model is then tested on questions that no earlier step has
used. Only serving is left out: models answer in this process, through the same port that the HTTP client implements.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.closed_loops.tasks import EVERY, SECTIONS
from benchmarks.recipe_grid import Cell
from benchmarks.recipe_worlds import Question, World, build_world
from ratchet.contracts.data.datasets import RawBatch, TrainingSet
from ratchet.contracts.data.records import DEMONSTRATIONS
from ratchet.contracts.evaluation import ChatAnswer, ChatRequest, verdict_of
from ratchet.contracts.ids import digest, digest_file
from ratchet.contracts.jobs.training import Choice, Method, TrainingPlan
from ratchet.contracts.loop import Loop
from ratchet.contracts.model import ModelRef, model_ref
from ratchet.contracts.moment import Moment
from ratchet.contracts.schema import stamped
from ratchet.flows.config.load import load_loop
from ratchet.gates.checks import checks
from ratchet.gates.evaluation.evaluator import PairedEvaluator
from ratchet.local.serve.generate import GenerationRow, Model
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.ingest import IngestKeys
from ratchet.materializer.lake.schemas import frame_of, parquet, read_parquet
from ratchet.rewards.scorer_set import ScorerSet, build_scorer_set
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.jobs.job_protocol import RunFile
from ratchet.runtime.secrets.keyring import KeyFile, ensure_keyring
from ratchet.runtime.secrets.span_signature import SPAN_KEYS
from ratchet.trainers.backends.trl import DPO, GRPO, SFT
from ratchet.trainers.choose import choose
from ratchet.trainers.code_digest import code_digest
from ratchet.trainers.job import tiny_model
from ratchet.trainers.job.trl import dpo, grpo, runner, sft
from ratchet.trainers.recipes.completion import KINDS

USERS, TIMES, CORRECTED, REVIEWED = 200, 4, 0.15, 0.1
"""The traffic: the number of users, how often each question is asked, the share of wrong answers that the user corrects, and the share
of conversations that a reviewer labels. Every answer gets a thumb rating."""
TRAINERS = {Method.DPO: DPO(), Method.GRPO: GRPO(), Method.SFT: SFT()}
BUILD = {Method.DPO: dpo.build, Method.GRPO: grpo.build, Method.SFT: sft.build}
START = datetime(2026, 1, 5, tzinfo=UTC)
ORACLE_RATES = (2e-4, 5e-4, 1e-3)
UNDECIDED = "cannot be ruled out in"
"""The phrase in the gate's `slices` reason that comes before the slices in which a loss cannot be excluded."""


class Answers:
    """Implement the `ModelClient` port with a model in this process."""

    def __init__(self, folder: Path) -> None:
        self.model = Model(folder, 1)

    def chat(self, requests: Sequence[ChatRequest], progress: Any = None) -> list[ChatAnswer]:  # noqa: ARG002
        """Answer all requests, in batches of 250 prompts of similar length."""
        rows = [GenerationRow(self.model.encode([dict(m) for m in r.messages]), r.temperature, r.seed or 0, r.max_tokens) for r in requests]
        found: list[ChatAnswer | None] = [None] * len(rows)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i].prompt))
        for at in range(0, len(order), 250):
            part = order[at : at + 250]
            for i, made in zip(part, self.model.generate([rows[i] for i in part]), strict=True):
                found[i] = ChatAnswer(text=made.text, finish_reason=made.finish_reason, latency_ms=1.0)
        return [answer for answer in found if answer is not None]

    def texts(self, questions: Sequence[Question], temperature: float = 0.0, seed: int = 0) -> list[str]:
        """Return the text of one answer per question, in the order of the questions."""
        requests = [
            ChatRequest(messages=({"role": "user", "content": q.prompt},), temperature=temperature, max_tokens=48, seed=seed * 100_003 + i)
            for i, q in enumerate(questions)
        ]
        return [answer.text or "" for answer in self.chat(requests)]


def right(folder: Path, questions: Sequence[Question]) -> list[bool]:
    """Return for each question whether the greedy answer is the right one."""
    return [text.strip() == q.answer for q, text in zip(questions, Answers(folder).texts(questions), strict=True)]


def base(cell: Cell, folder: Path) -> Path:
    """Return the folder of the cell's base model, which is trained and tested on first use.

    The folder holds `model`, `base.json` (the test results of the base model) and later `oracle.json` (those of the oracle).
    """
    place = folder / "bases" / cell.base
    if (place / "done").exists():
        return place
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    world = build_world(EVERY[cell.task], cell.quality, cell.seed, cell.tests)
    pretrained(world, EVERY[cell.task].base_steps[cell.quality], cell.seed, place / "model")
    (place / "base.json").write_text(json.dumps(right(place / "model", world.test)))
    (place / "done").touch()
    return place


def pretrained(world: World, steps: int, seed: int, out: Path) -> Path:
    """Train a base model on what the world has learnt before, and return its folder."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = tiny_model.build_tokenizer(world.corpus, 768, 256)
    model = tiny_model.build_model(tokenizer, 128, 3, 256)
    rows = [tiny_model.encode(tokenizer, q.prompt, q.answer, 256) for q in world.learnt]
    tiny_model.pretrain(model, rows, tokenizer.pad_token_id, seed, steps, 64, 3e-3)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def traffic(world: World, model: Path, flips: float, seed: int) -> list[dict[str, Any]]:
    """Return one trace record with feedback per question asked, in the format of the JSONL source.

    `flips` is the share of ratings that are wrong.
    """
    asked = world.asked * TIMES
    random.Random(f"traffic-{seed}").shuffle(asked)
    records = []
    for i, (question, text) in enumerate(zip(asked, Answers(model).texts(asked, 1.0, seed), strict=True)):
        luck = random.Random(f"people-{seed}-{i}")
        fine, corrected, reviewed, honest = text == question.answer, luck.random(), luck.random(), luck.random()
        at = START + timedelta(seconds=30 * i)
        records.append(
            {
                "id": f"t{i}",
                "timestamp": at.isoformat(),
                "user_id": f"user-{luck.randrange(USERS)}",
                "messages": [{"role": "user", "content": question.prompt}],
                "response": text,
                "model": "m",
                "model_version": "v-base",
                "consent": True,
                "slice": question.slice,
                "feedback": float(fine == (honest >= flips)),
                "correction": question.answer if not fine and corrected < CORRECTED else None,
                "reference": question.answer if reviewed < REVIEWED else None,
            }
        )
    return records


class Clock:
    """A clock that stands still at an instant after all traffic."""

    def now(self) -> datetime:
        """Return the fixed time, 30 days after the first trace."""
        return START + timedelta(days=30)

    def moment(self) -> Moment:
        """Return the same time as a moment."""
        return Moment(self.now().timestamp())

    def sleep(self, seconds: float) -> None:
        """Return at once, because the clock never advances."""


class Bench:
    """The parts of an installation that one cell needs: loop file, lake, artifacts and scorers."""

    def __init__(self, cell: Cell, folder: Path) -> None:
        self.cell, self.folder = cell, folder
        folder.mkdir(parents=True)
        self.world = build_world(EVERY[cell.task], cell.quality, cell.seed, cell.tests, cell.asked)
        golden = [{"prompt": q.prompt, "reference": q.answer, "slice": q.slice} for q in self.world.golden]
        (folder / "golden.jsonl").write_text("".join(json.dumps(row) + "\n" for row in golden))
        (folder / "loop.toml").write_text(cell.loop() + SECTIONS.get(cell.task, ""))
        self.loop: Loop = load_loop(folder / "loop.toml")
        self.artifacts = FolderArtifacts(folder / "artifacts")
        self.scorer_set: ScorerSet = build_scorer_set(self.loop.rewards)
        ensure_keyring(folder / "user-keys.json", Clock().now())
        keys = IngestKeys(spans=KeyFile(folder / SPAN_KEYS), users=KeyFile(folder / "user-keys.json"))
        self.datasets = LakeDatasets(folder / "lake", self.loop, folder, self.scorer_set, self.artifacts, Clock(), keys)

    def dataset(self, model: Path, records: Sequence[dict[str, Any]]) -> tuple[TrainingSet, Any]:
        """Ingest the records and assemble the training data; returns the training set and the holdout edition."""
        body = "".join(json.dumps(record) + "\n" for record in records).encode()
        self.datasets.ingest(RawBatch("app", "jsonl", digest(body.decode()), "bench", lambda: io.BytesIO(body)))
        edition = self.datasets.edition(1)
        snapshot = self.datasets.freeze("snapshot", Clock().now(), edition)
        probe = self.datasets.probe("probe", snapshot, Answers(model), lambda *_: None)
        return self.datasets.assemble("set", snapshot, probe), edition

    def plan(self, data: TrainingSet, start: ModelRef, method: Method, recipe: dict[str, Any], seed: int) -> TrainingPlan:
        """Return the training plan for this data, start model, method and recipe."""
        return TrainingPlan(
            line="bench",
            cycle=self.cell.name,
            start=start,
            dataset=data.content,
            pairs=data.pairs,
            prompts=data.prompts,
            demonstrations=data.demonstrations,
            method=method,
            recipe=recipe,
            seed=seed,
            scorers=self.scorer_set.versions,
            scorer_options={reward.name: reward.options for reward in self.loop.rewards},
            code=code_digest(),
            development=data.development,
            answer_tokens=self.loop.gate.max_tokens if data.development or data.cross_validation else None,
            cross_validation=data.cross_validation,
        )

    def train(self, plan: TrainingPlan, model: Path, name: str) -> Path | None:
        """Run the trainer's entry point in this process.

        Returns the folder of the trained model, or None if the job did not end with the outcome `done`, for example because its health
        watch stopped it.
        """
        run = self.folder / name
        run.mkdir()
        (run / "plan.json").write_bytes(stamped(plan))
        (run / "model").symlink_to(model, target_is_directory=True)
        for kind in ("pairs", "prompts", "demonstrations"):
            self.artifacts.fetch(getattr(plan, kind), run / f"{kind}.parquet")
        if plan.development:
            self.artifacts.fetch(plan.development, run / RunFile.DEVELOPMENT)
        if plan.cross_validation:
            self.artifacts.fetch(plan.cross_validation, run / RunFile.CROSS_VALIDATION)
        job = {"RATCHET_ATTEMPT": "1", "RATCHET_INCARNATION": "1", "RATCHET_GPUS": "0", "RATCHET_ARTIFACTS": str(run.parent / "artifacts")}
        with running_in(run, job):
            runner.train_job(BUILD[plan.method], KINDS[plan.method])
        result = json.loads((run / "i1" / "result.json").read_bytes())
        return run / "i1" / "model" if result["outcome"] == "done" else None

    def gate(self, edition: Any, start: ModelRef, model: Path, trained: Path) -> Any:
        """Return the gate's verdict on the trained model against the start model."""
        evaluator = PairedEvaluator(self.artifacts, self.scorer_set, self.loop.gate)
        ref = model_ref(trained, "0" * 64)
        report = evaluator.evaluate(edition, (start, Answers(model)), (ref, Answers(trained)), lambda *_: None, self.loop.gate.level)
        return verdict_of(tuple(check.check(report) for check in checks(self.loop.gate)), digest("report"))


class Traffic(NamedTuple):
    """A base model, one cycle of traffic on it, and what the product makes of it. Several recipes can be trained on the same."""

    place: Path
    """Folder of the base model and its results."""
    bench: Bench
    data: TrainingSet
    edition: Any
    before: list[bool]
    """Whether the base model answers each test question right."""

    @property
    def model(self) -> Path:
        """Folder of the base model's weights."""
        return self.place / "model"

    @property
    def start(self) -> ModelRef:
        """Reference to the base model."""
        return model_ref(self.model, "0" * 64)

    def trained(self, method: Method, changes: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Train with a recipe and return a row: the accuracy on the test questions before and after, steps and compute time."""
        cell, bench, began = self.bench.cell, self.bench, time.process_time()
        recipe = TRAINERS[method].recipe(changes, self.data.facts)
        model = bench.train(bench.plan(self.data, self.start, method, recipe, cell.chance), self.model, name)
        result = json.loads((bench.folder / name / "i1" / "result.json").read_bytes())
        before = fmean(self.before)
        return {
            "task": cell.task,
            "seed": cell.seed,
            "base": before,
            "accuracy": fmean(right(model, bench.world.test)) if model else before,
            "outcome": result["outcome"],
            "reason": result["reason"],
            "trained": result["step"],
            "published": int(result["metrics"].get("published_step", result["step"])),
            "metrics": result["metrics"],
            "development": self.data.development_prompts,
            "cpu_seconds": round(time.process_time() - began, 1),
            "code": measured_code()[:12],
        }


def one_cycle(cell: Cell, folder: Path, name: str) -> Traffic:
    """Build the base model of a cell, let its users ask, and assemble the training data in a new folder `cells/name`."""
    place, here = base(cell, folder), folder / "cells" / name
    shutil.rmtree(here, ignore_errors=True)
    bench = Bench(cell, here)
    data, edition = bench.dataset(place / "model", traffic(bench.world, place / "model", cell.flips, cell.chance))
    return Traffic(place, bench, data, edition, json.loads((place / "base.json").read_bytes()))


@contextmanager
def running_in(run: Path, job: Mapping[str, str]) -> Any:
    """Run the block in a run folder, with the environment variables of a job."""
    before, environment = Path.cwd(), dict(os.environ)
    os.environ.update(job)
    os.chdir(run)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environment)


def true_demonstrations(artifacts: FolderArtifacts, asked: Mapping[str, Question]) -> str:
    """Store the true answers to some questions, by the id of their prompt, as demonstrations. Return the key of the artifact."""
    rows = [
        {
            "prompt_id": key,
            "prompt": json.dumps([{"role": "user", "content": question.prompt}]),
            "answer": question.answer,
            "source": "truth",
            "weight": 1.0,
            "slice": question.slice,
            "tools": None,
        }
        for key, question in asked.items()
    ]
    return artifacts.put(parquet(frame_of(rows, DEMONSTRATIONS), DEMONSTRATIONS, ["prompt_id"]))


def oracle(bench: Bench, data: TrainingSet, place: Path, start: ModelRef) -> list[bool]:
    """Train SFT on the true answers to the snapshot's own prompts and return the test results of the best model.

    The learning rate is chosen on the tuning questions. Raises RuntimeError if no run finishes.
    """
    answers = {q.prompt: q.answer for q in bench.world.asked}
    snapshot = json.loads(bench.artifacts.get(bench.artifacts.resolve("snapshot") or ""))
    prompts = read_parquet(bench.artifacts.get(snapshot["prompts"])).to_dicts()
    asked = ((row["prompt_id"], json.loads(row["prompt"])[0]["content"], row["slice"]) for row in prompts)
    told = true_demonstrations(bench.artifacts, {key: Question(text, answers[text], name) for key, text, name in asked})
    best: tuple[int, Path] | None = None
    for rate in ORACLE_RATES:
        recipe = TRAINERS[Method.SFT].recipe({**bench.cell.recipe(Method.SFT), "learning_rate": rate})
        plan = bench.plan(data.model_copy(update={"demonstrations": told}), start, Method.SFT, recipe, bench.cell.seed)
        trained = bench.train(plan, place / "model", f"oracle-{rate:g}")
        score = sum(right(trained, bench.world.tuning)) if trained else -1
        if trained and (best is None or score > best[0]):
            best = score, trained
    if best is None:
        raise RuntimeError("the oracle never finished a run")
    return right(best[1], bench.world.test)


def run(cell: Cell, folder: Path) -> dict[str, Any]:
    """Run one cell and return its row of results.

    All files of the cell are deleted afterwards. The base model and the oracle's results stay, because other cells use them.
    """
    began = time.monotonic()
    cycle = one_cycle(cell, folder, cell.name)
    (place, bench, data, edition, before), start = cycle, cycle.start
    choice: Choice = choose(data.facts, bench.loop.training, bench.scorer_set.unseen())
    # Where the choice is not to train, DPO runs anyway: the row then shows the effect that training would have had.
    method = choice.method if choice.method is not Method.NONE else Method.DPO
    plan = bench.plan(data, start, method, TRAINERS[method].recipe(cell.recipe(method)), cell.chance)
    trained = bench.train(plan, place / "model", "run")
    known = place / "oracle.json"
    if not known.exists():
        known.write_text(json.dumps(oracle(bench, data, place, start)))
    best = json.loads(known.read_bytes())
    after = right(trained, bench.world.test) if trained else before
    verdict = bench.gate(edition, start, place / "model", trained) if trained else None
    slices = _by_slice(bench.world.test, before, after)
    judged = next((check.reason for check in verdict.checks if check.check == "slices"), "") if verdict else ""
    told, _, open_ = judged.partition(UNDECIDED)
    row = {
        "cell": cell.name,
        "task": cell.task,
        "quality": cell.quality,
        "flips": cell.flips,
        "seed": cell.seed,
        "draw": cell.draw,
        "methods": list(cell.methods),
        "rehearsal": cell.rehearsal,
        "chosen": choice.method.value,
        "trained": trained is not None,
        "gate": verdict.result.value if verdict else "fail",
        "named": _named(slices, told),
        "undecided": _named(slices, open_),
        "base": _mean(before),
        "gain": _mean(after) - _mean(before),
        "lower": _lower(before, after),
        "oracle_gain": _mean(best) - _mean(before),
        "slices": slices,
        "facts": data.facts.model_dump(mode="json"),
        "code": measured_code()[:12],
        "seconds": round(time.monotonic() - began, 1),
    }
    shutil.rmtree(bench.folder)
    return row | {"worst_slice": min(row["slices"].values())}


def _named(slices: Iterable[str], words: str) -> list[str]:
    return [name for name in slices if f"slice:{name} " in words]


def measured_code() -> str:
    """Return the digest of all code that determines a row: the packages that a cell uses, and the benchmark itself."""
    here = Path(__file__).resolve().parent
    rooms = [
        path
        for room in ("contracts", "runtime", "gates", "materializer", "rewards", "trainers")
        for path in (here.parent / room).rglob("*.py")
    ]
    return digest([[path.relative_to(here.parent).as_posix(), digest_file(path)] for path in sorted([*rooms, *here.glob("recipe*.py")])])


def _mean(values: Sequence[bool]) -> float:
    return sum(values) / len(values)


def _lower(before: Sequence[bool], after: Sequence[bool]) -> float:
    """Return the lower end of the paired 95 % interval of the gain (normal approximation)."""
    differences = np.array(after, dtype=float) - np.array(before, dtype=float)
    return float(differences.mean() - 1.96 * differences.std(ddof=1) / np.sqrt(len(differences)))


def _by_slice(test: Sequence[Question], before: Sequence[bool], after: Sequence[bool]) -> dict[str, float]:
    names = sorted({q.slice for q in test})
    chosen = {name: [i for i, q in enumerate(test) if q.slice == name] for name in names}
    return {name: _mean([after[i] for i in at]) - _mean([before[i] for i in at]) for name, at in chosen.items()}
