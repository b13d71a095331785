"""The best that training on a line's own requests could have reached: with the truth, or with the product's own evidence.

The truth about all requests tells what everything that was asked is worth. A line trains on a part of them only: held-out and development
prompts, and near-duplicates of golden ones, are left out. The truth about its training prompts tells what better answers could add.

An oracle trains from the base model with several lengths and rates, on the evidence also with DPO at the length and rate that were best for
SFT, and keeps the model that answers most tuning questions right. No product decision is involved.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.recipe_cell import BUILD, right, running_in, true_demonstrations
from benchmarks.recipe_worlds import Question
from ratchet.contracts.data.datasets import Facts, TrainingSet
from ratchet.contracts.data.records import GRPO_PROMPTS, PAIRS
from ratchet.contracts.ids import digest
from ratchet.contracts.jobs.training import Method, TrainingPlan
from ratchet.contracts.model import model_ref
from ratchet.contracts.schema import stamped
from ratchet.materializer.lake.schemas import empty_frame, parquet, read_parquet
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.trainers.backends.trl import DPO, SFT
from ratchet.trainers.code_digest import code_digest
from ratchet.trainers.job.trl import runner
from ratchet.trainers.recipes.completion import KINDS

GRID: tuple[tuple[int, float], ...] = ((60, 1.0), (240, 1.0), (960, 1.0), (480, 3.0))
"""(steps, factor on the product's learning rate)."""
SMALL = {"gradient_checkpointing": False, "micro_batch": 16, "save_every": 100_000}
TRAINERS = {Method.SFT: SFT(), Method.DPO: DPO()}


def on_truth(
    artifacts: FolderArtifacts, base: Path, asked: Sequence[Question], data: TrainingSet, tuning: Sequence[Question], folder: Path
) -> tuple[Path, str]:
    """Return the best model trained on the true answers to all requests so far, and its recipe. `data` lends the form of a plan."""
    distinct = {question.prompt: question for question in asked}.values()
    told = true_demonstrations(artifacts, {f"{i:064d}": question for i, question in enumerate(distinct)})
    return _best(artifacts, base, data.model_copy(update={"demonstrations": told}), (Method.SFT,), tuning, folder)


def form_of_a_plan(artifacts: FolderArtifacts) -> TrainingSet:
    """Return a training set without rows, which lends the form of a plan where no loop was run."""
    pairs = artifacts.put(parquet(empty_frame(PAIRS), PAIRS, ["prompt_id"]))
    prompts = artifacts.put(parquet(empty_frame(GRPO_PROMPTS), GRPO_PROMPTS, ["prompt_id"]))
    facts = Facts.model_construct(demonstrations={}, pairs=0, pairs_by_tier={}, label_noise=None)
    return TrainingSet.model_construct(pairs=pairs, prompts=prompts, demonstrations=pairs, facts=facts, content=digest("truth"))


def training_questions(artifacts: FolderArtifacts, data: TrainingSet, asked: Sequence[Question]) -> list[Question]:
    """Return the questions, of those asked, that are training prompts of a training set."""
    rows = read_parquet(artifacts.get(data.prompts)).iter_rows(named=True)
    prompts = {json.loads(row["prompt"])[-1]["content"] for row in rows}
    return [question for question in asked if question.prompt in prompts]


def on_evidence(
    artifacts: FolderArtifacts, base: Path, data: TrainingSet, tuning: Sequence[Question], folder: Path
) -> tuple[Path, str] | None:
    """Return the best model trained on the product's last training set, and its recipe; None if the set is empty."""
    rows = {
        Method.SFT: len(read_parquet(artifacts.get(data.demonstrations))),
        Method.DPO: len(read_parquet(artifacts.get(data.pairs))),
    }
    methods = tuple(method for method, n in rows.items() if n >= 16)
    return _best(artifacts, base, data, methods, tuning, folder) if methods else None


def _best(
    artifacts: FolderArtifacts, base: Path, data: TrainingSet, methods: Sequence[Method], tuning: Sequence[Question], folder: Path
) -> tuple[Path, str]:
    found: list[tuple[int, Path, str]] = [(sum(right(base, tuning)), base, "not trained")]
    grid = GRID
    for method in methods:
        tried: list[tuple[int, tuple[int, float]]] = []
        for steps, scale in grid:
            run = folder / f"{method.value}-{steps}-{scale:g}"
            trained = _train(artifacts, base, data, method, {**SMALL, "steps": steps, "rate_scale": scale}, run)
            if trained is not None:
                found.append((sum(right(trained, tuning)), trained, f"{method.value}, {steps} steps, rate × {scale:g}"))
                tried.append((found[-1][0], (steps, scale)))
        grid = (max(tried)[1],) if tried else GRID
    _, best, recipe = max(found, key=lambda one: one[0])
    return best, recipe


def _train(artifacts: FolderArtifacts, base: Path, data: TrainingSet, method: Method, changes: Mapping[str, Any], run: Path) -> Path | None:
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir(parents=True)
    plan = TrainingPlan(
        line="bench",
        cycle="oracle",
        start=model_ref(base, "0" * 64),
        dataset=data.content,
        pairs=data.pairs,
        prompts=data.prompts,
        demonstrations=data.demonstrations,
        method=method,
        recipe=TRAINERS[method].recipe(changes, data.facts),
        seed=0,
        scorers=(),
        code=code_digest(),
    )
    (run / "plan.json").write_bytes(stamped(plan))
    (run / "model").symlink_to(base, target_is_directory=True)
    for kind in ("pairs", "prompts", "demonstrations"):
        artifacts.fetch(getattr(plan, kind), run / f"{kind}.parquet")
    job = {"RATCHET_ATTEMPT": "1", "RATCHET_INCARNATION": "1", "RATCHET_GPUS": "0", "RATCHET_ARTIFACTS": str(run.parent / "artifacts")}
    with running_in(run, job):
        runner.train_job(BUILD[method], KINDS[method])
    result = json.loads((run / "i1" / "result.json").read_bytes())
    return run / "i1" / "model" if result["outcome"] == "done" else None
