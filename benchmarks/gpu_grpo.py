"""GRPO on one GPU, sampled by the model itself and by vLLM: two sections of `gpu.py`."""

from __future__ import annotations

import importlib.util
from typing import Any

from gpu_setting import Setting, fresh, now, peak


def grpo(setting: Setting) -> dict[str, Any]:
    """Measure the answer tokens per second of the library's GRPO trainer. A job uses it unchanged, so there is no baseline."""
    return sampled(setting, "grpo", {})


def vllm(setting: Setting) -> dict[str, Any]:
    """Measure GRPO with vLLM on the training GPU, with the arguments that a job uses, beside generation with the model itself."""
    if not setting.gpu or importlib.util.find_spec("vllm") is None:
        return {"skipped": "needs a GPU and vllm in this environment"}
    from ratchet.trainers.job.trl.grpo import sampling
    from ratchet.trainers.recipes.completion import complete
    from ratchet.trainers.recipes.grpo import GRPORecipe

    recipe = complete(GRPORecipe, {"generation": "vllm", "max_completion": 256})
    engine = sampling(recipe, 1, 64)
    engine.pop("steps_per_generation")
    plain_engine, with_vllm = sampled(setting, "plain", {}), sampled(setting, "vllm", engine)
    faster = round(with_vllm["answer_tokens_per_s"] / plain_engine["answer_tokens_per_s"], 2)
    return {"plain": plain_engine, "vllm": with_vllm, "vllm_over_plain": faster}


def sampled(setting: Setting, name: str, engine: dict[str, Any]) -> dict[str, Any]:
    """Train three steps of GRPO and return the figures. `engine` has the library's arguments for the sampling engine."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    fresh()
    answers = 8 if not setting.gpu else 64
    longest = 8 if not setting.gpu else 256
    given = setting.arguments(3, name, per_device_train_batch_size=answers)
    config = GRPOConfig(**given, **engine, num_generations=8, max_completion_length=longest, beta=0.04)
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": "x"}]}] * 3 * (answers // 8))
    counted: list[int] = []
    marks: list[float] = []

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        counted.append(sum(map(len, completion_ids)))
        marks.append(now())
        return [float(ids[0] % 2) for ids in completion_ids]

    tokenizer = AutoTokenizer.from_pretrained(setting.model, padding_side="left")
    trainer = GRPOTrainer(model=str(setting.model), reward_funcs=reward, args=config, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    return {"answer_tokens_per_s": round(sum(counted[1:]) / (now() - marks[0]), 1), "steps": len(counted), "peak_gib": peak()}
