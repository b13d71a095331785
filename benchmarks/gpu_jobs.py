"""Training jobs of the product on one GPU: time, and peak memory beside the arithmetic of `ratchet plan`.

`gpu.py` calls it. All rows have their full length, as the arithmetic assumes.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click
from job_runs import run_job

from ratchet.contracts.ids import Digest, digest
from ratchet.contracts.jobs.training import Attempt, Method, TrainingPlan
from ratchet.contracts.loop import RewardSettings
from ratchet.contracts.model import ModelRef, count_parameters, model_ref
from ratchet.rewards.scorer_set import build_scorer_set
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.trainers.backends.trl import DPO, GRPO, SFT
from ratchet.trainers.code_digest import code_digest
from ratchet.trainers.memory import memory, model_sizes
from ratchet.trainers.recipes.completion import KINDS, complete

LIMIT = 600.0
"""Seconds after which a job is stopped."""
STEPS = 3
TRAINERS = {Method.SFT: SFT(), Method.DPO: DPO(), Method.GRPO: GRPO()}


class Case(NamedTuple):
    """One job. `length` is the tokens of a row, or of a prompt and of an answer for GRPO."""

    name: str
    method: Method
    length: int
    rows: int
    recipe: Mapping[str, Any]


ADAPTER, KEPT = {"lora": {"rank": 16, "alpha": 32}}, {"gradient_checkpointing": False}
CASES = (
    Case("SFT, all weights", Method.SFT, 1024, 16, {"batch": 16, "micro_batch": 8}),
    Case("SFT, adapter of rank 16", Method.SFT, 1024, 16, {"batch": 16, "micro_batch": 8, **ADAPTER}),
    Case("SFT, adapter, no checkpointing", Method.SFT, 1024, 16, {"batch": 16, "micro_batch": 4, **KEPT, **ADAPTER}),
    Case("DPO, all weights", Method.DPO, 1024, 16, {"batch": 16, "micro_batch": 4, "rehearsal": 0}),
    Case("GRPO, all weights, no engine", Method.GRPO, 128, 4, {"generation": "plain", "micro_batch": 16}),
    Case("GRPO, all weights, vLLM", Method.GRPO, 128, 4, {"generation": "vllm", "micro_batch": 16}),
)


def run_cases(model: Path, work: Path, gpus: int, small: bool, vllm: bool) -> dict[str, Any]:
    """Run each case as a job on `gpus` GPUs (0: on the CPU), and return its figures by its name.

    `small`: short rows. `vllm`: whether vLLM is installed. A case that fails has its reason as `error`.
    """
    artifacts = FolderArtifacts(work / "artifacts")
    start = model_ref(model, artifacts.put_folder(model))
    found: dict[str, Any] = {}
    for case in CASES:
        if case.recipe.get("generation") == "vllm" and not vllm:
            found[case.name] = {"skipped": "vLLM is not installed in this environment"}
            continue
        try:
            found[case.name] = _one(case, start, model, work, gpus, small)
        except Exception as error:  # one failed case must not lose the results of the others
            found[case.name] = {"error": f"{type(error).__name__}: {error}"[-1500:]}
        finally:
            shutil.rmtree(work / "jobs", ignore_errors=True)  # each holds the model twice
            click.echo(f"{case.name}: {json.dumps(found.get(case.name))}", err=True)
    return found


def _one(case: Case, start: ModelRef, model: Path, work: Path, gpus: int, small: bool) -> dict[str, Any]:
    length = min(case.length, 24) if small else case.length
    longest = {"max_completion": length, "prompts_per_step": case.rows} if case.method is Method.GRPO else {"max_length": length}
    recipe = TRAINERS[case.method].recipe({**case.recipe, **longest, "steps": STEPS, "warmup_steps": 0, "save_every": STEPS})
    ended = run_job(work, TRAINERS[case.method].job(_plan(case, start, work, length, recipe), Attempt(number=1, timeout=LIMIT, gpus=gpus)))
    steps = [event for event in ended.events if event.kind == "progress"]
    last = {event.kind: event.at for event in ended.events}
    figures: dict[str, Any] = {
        "step_seconds": [round(float(step.data["step_seconds"]), 2) for step in steps],
        "start_seconds": round(steps[0].at - float(steps[0].data["step_seconds"]) - ended.began, 1),
        "export_seconds": round(ended.began + ended.seconds - last["exporting"], 1),
        "job_seconds": round(ended.seconds, 1),
    }
    sizes = model_sizes(json.loads((model / "config.json").read_bytes()), count_parameters(model))
    expected = memory(complete(KINDS[case.method], recipe), sizes, 1, gpus, on_nemo=False) if sizes else None
    if expected is not None:
        peak = float(steps[-1].data["gpu_peak_gib"])
        figures["expected_gib"] = round(expected.needed("training"), 1)
        figures["expected"] = {item.name: round(item.gib, 1) for item in expected.training}
        figures["peak_gib"] = round(peak, 1)
        figures["expected_over_peak"] = round(expected.needed("training") / peak, 2)
    return figures


def _plan(case: Case, start: ModelRef, work: Path, length: int, recipe: dict[str, Any]) -> TrainingPlan:
    import pyarrow as pa
    import pyarrow.parquet as pq

    chance = random.Random(3)

    def text(words: int) -> str:
        return " ".join(f"w{chance.randrange(100)}" for _ in range(words))

    def stored(name: str, columns: dict[str, list[Any]]) -> Digest:
        pq.write_table(pa.table(columns), work / f"{name}.parquet")
        return FolderArtifacts(work / "artifacts").put_file(work / f"{name}.parquet")

    rows = case.rows * STEPS
    asked_length = length - 2 if case.method is Method.GRPO else length // 2
    asked = [json.dumps([{"role": "user", "content": text(asked_length)}]) for _ in range(rows)]
    chosen, rejected = ([text(length // 2 - 3) for _ in range(rows)] for _ in range(2))
    rewards = [RewardSettings(name="exact_match")]
    return TrainingPlan(
        line="benchmark",
        cycle="cycle/benchmark/0001",
        start=start,
        dataset=digest(case.name),
        pairs=stored("pairs", {"prompt": asked, "chosen": chosen, "rejected": rejected, "weight": [1.0] * rows}),
        prompts=stored("prompts", {"prompt": asked, "reference": [text(1) for _ in range(rows)]}),
        demonstrations=stored("demonstrations", {"prompt": asked, "answer": chosen, "weight": [1.0] * rows}),
        method=case.method,
        recipe=recipe,
        seed=1,
        scorers=build_scorer_set(rewards).versions,
        code=code_digest(),
    )
