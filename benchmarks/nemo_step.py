"""One GRPO step of NeMo RL, as a job of the product runs it: supervisor, preparation, the release's own entry point, checkpoint and export.

`gpu.py` calls it. It needs the image of a NeMo RL release in which Ratchet is installed (docs/nemo_rl.md).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from job_runs import run_job

from ratchet.contracts.ids import digest
from ratchet.contracts.jobs.training import Attempt, JobSpec, Method, TrainingPlan
from ratchet.contracts.loop import RewardSettings
from ratchet.contracts.model import model_ref
from ratchet.rewards.scorer_set import build_scorer_set
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.jobs.job_protocol import NEMO_RL
from ratchet.trainers.backends.nemo.backend import NemoGRPO
from ratchet.trainers.code_digest import code_digest
from ratchet.trainers.job.nemo import release

LIMIT = 1200.0
"""Seconds after which the job is stopped. Loading the model into two engines takes minutes."""
PROMPTS = 32
SECONDS = ("step", "generation", "reward", "weight_transfer", "logprobs", "training", "checkpoint")
SPEED = ("tokens", "generation_tokens", "training_tokens")
FIGURES = (
    *(f"{phase}_seconds" for phase in SECONDS), *(f"{part}_per_second_per_gpu" for part in SPEED), "training_tflops_per_gpu",
    "training_flops_utilization", "generation_mismatch", "answer_tokens", "answers_cut", "loss", "grad_norm", "reward",
)  # fmt: skip


def one_step(model: Path, work: Path, gpus: int, small: bool) -> dict[str, Any]:
    """Train one step on `gpus` GPUs of this machine, and return its figures and the seconds of the whole job.

    `small`: a few short answers. Raises Permanent if there is no release, and RuntimeError if the job fails; the message has its reason.
    """
    found = release.find()
    work.mkdir()
    artifacts = FolderArtifacts(work / "artifacts")
    spec = _job(artifacts, model, work, gpus, small)
    ended = run_job(work, spec, {NEMO_RL.name: str(found.root)}, (found.root,))
    [step] = [event for event in ended.events if event.kind == "progress"]
    figures = {name: step.data[name] for name in FIGURES if name in step.data}
    started = step.at - float(step.data["step_seconds"]) - ended.began
    whole = {"start_seconds": round(started, 1), "job_seconds": round(ended.seconds, 1)}
    return {"release": found.dialect, "gpus": gpus, **figures, **whole}


def _job(artifacts: FolderArtifacts, model: Path, work: Path, gpus: int, small: bool) -> JobSpec:
    import pyarrow as pa
    import pyarrow.parquet as pq

    asked = [json.dumps([{"role": "user", "content": f"question {n}"}]) for n in range(PROMPTS)]
    pq.write_table(pa.table({"prompt": asked, "reference": ["1"] * PROMPTS}), work / "prompts.parquet")
    prompts = artifacts.put_file(work / "prompts.parquet")
    trainer, rewards = NemoGRPO(), [RewardSettings(name="exact_match")]
    size = {"prompts_per_step": 8, "generations": 2 if small else 8, "max_completion": 8 if small else 256}
    nemo = {"max_prompt": 64, "validation_prompts": 1}
    plan = TrainingPlan(
        line="benchmark",
        cycle="cycle/benchmark/0001",
        start=model_ref(model, artifacts.put_folder(model)),
        dataset=digest("benchmark"),
        pairs=prompts,
        prompts=prompts,
        demonstrations=prompts,
        method=Method.GRPO,
        recipe=trainer.recipe({**size, "steps": 1, "save_every": 1, "micro_batch": 4, "warmup_steps": 0, "nemo": nemo}),
        seed=1,
        scorers=build_scorer_set(rewards).versions,
        code=code_digest(),
    )
    return trainer.job(plan, Attempt(number=1, timeout=LIMIT, gpus=gpus))
