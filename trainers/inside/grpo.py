"""The GRPO trainer process: the model's own answers to prompts, scored by the very scorers that label traces.

The scorers are rebuilt from the plan, which names their code; other code here is refused. An abstention stays one: the
library leaves such an answer out of its group's mean and gives it no advantage. Where all abstain, the run fails.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import random
from typing import Any

from contracts.errors import Permanent
from trainers.inside.job import Job
from trainers.inside.scored import comparable, scored
from trainers.inside.training import ABSTAINED, lora, main
from trainers.recipes import GRPORecipe


def rows(job: Job) -> list[dict[str, Any]]:
    """Prompts as conversations with their references; those without one are left out where no scorer works without."""
    import pyarrow.parquet as pq

    from rewards.panel import planned_panel

    table = pq.read_table(job.run / "prompts.parquet", columns=["prompt", "reference"])
    found = [{"prompt": json.loads(row["prompt"]), "reference": row["reference"]} for row in table.to_pylist()]
    return found if planned_panel(job.plan).without_reference() else [row for row in found if row["reference"] is not None]


def order(prompts: int, n: int, seed: int) -> list[int]:
    """`n` indices of prompts: all of them in a random order, then again in another, and so on."""
    chance = random.Random(seed)
    drawn: list[int] = []
    while len(drawn) < n:
        drawn += chance.sample(range(prompts), prompts)
    return drawn[:n]


def reward_function(job: Job) -> Any:
    """The library's kind of reward function around the plan's panel."""
    from rewards.panel import planned_panel

    panel = planned_panel(job.plan)

    def reward(prompts: Any, completions: Any, reference: Any, log_metric: Any = None, **_: Any) -> list[float | None]:
        samples = [
            {"prompt": prompt, "answer": completion[0]["content"], "reference": right}
            for prompt, completion, right in zip(prompts, completions, reference, strict=True)
        ]
        groups = [json.dumps(prompt) for prompt in prompts]
        rewards = scored(lambda answers: comparable(groups, panel.label_unseen(answers)), samples)
        if log_metric is not None:
            log_metric(ABSTAINED, sum(score is None for score in rewards) / len(rewards))
        return rewards

    return reward


def sampling(recipe: GRPORecipe, gpus: int) -> dict[str, Any]:
    """Arguments that say who samples. Permanent where vllm is wanted and not installed. vllm was never run here, for want of a GPU."""
    at_once = {"steps_per_generation": recipe.sampled_at_once // recipe.micro_batch}
    installed = importlib.util.find_spec("vllm") is not None
    if recipe.generation == "vllm" and not installed:
        raise Permanent("recipe: generation = vllm, but vllm is not installed where the job runs; install it, or set generation to plain")
    if recipe.generation == "plain" or gpus == 0 or not installed:
        return at_once
    return {**at_once, "use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": recipe.vllm_memory}


def build(job: Job, shared: dict[str, Any]) -> Any:
    """TRL's GRPOTrainer over one epoch that lasts the whole run, so that resume meets the same order."""
    reward = reward_function(job)  # refuses foreign code before the library is loaded
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    logging.getLogger("trl.trainer.grpo_trainer").setLevel(logging.ERROR)  # its warning of an abstention holds the user's own words
    recipe = job.recipe(GRPORecipe)
    prompts = rows(job)
    if not prompts:
        raise Permanent("the training set holds no prompts; this plan should not have been made")
    chosen = order(len(prompts), recipe.steps * recipe.prompts_per_step, job.plan.seed)
    config = GRPOConfig(
        **shared,
        **sampling(recipe, job.gpus),
        gradient_accumulation_steps=recipe.answers // recipe.micro_batch,
        num_generations=recipe.generations,
        max_completion_length=recipe.max_completion,
        temperature=recipe.temperature,
        top_p=recipe.top_p,
        top_k=recipe.top_k,
        beta=recipe.beta,
        epsilon=recipe.clip_low,
        epsilon_high=recipe.clip_high,
        loss_type=recipe.loss,
        scale_rewards=recipe.scale_rewards,
        shuffle_dataset=False,
    )
    return GRPOTrainer(
        model=str(job.run / "model"),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(prompts).select(chosen),
        processing_class=AutoTokenizer.from_pretrained(job.run / "model", padding_side="left"),
        peft_config=lora(recipe),
    )


if __name__ == "__main__":
    main(build, GRPORecipe)
