"""Renders a GRPO recipe as a NeMo RL configuration: the changes to the base file of the release, as data.

This module defines the names of the release's configuration keys. It reads no file and imports nothing from the release.
It supports two dialects: 0.7 (`policy.dtensor_cfg`) and 0.8 (`policy.automodel_cfg`). The 0.8 dialect follows the recorded key
changes and has not been tested with a 0.8 base file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ratchet.trainers.backends.nemo.arithmetic import ClusterShape, epochs, validate_every
from ratchet.trainers.backends.nemo.sections import Dialect, checkpointing, engine, optimisation
from ratchet.trainers.recipes.grpo import GRPORecipe

ENVIRONMENT = "ratchet"
"""Name of Ratchet's reward environment in the registry of the release."""
PROCESSOR = "ratchet_prompts"
"""Name of Ratchet's data processor in the registry of the release."""
DATASET = "ratchet.trainers.job.nemo.dataset.Prompts"
"""Import path of Ratchet's dataset class."""
METRIC = "val:accuracy"
"""The release's name for the mean validation reward."""
LOSSES = {"dapo": True, "grpo": False}
"""Loss in the recipe -> `token_level_loss` of the release, which has no other way of averaging."""


@dataclass(frozen=True)
class Places:
    """Paths that are visible on every node of the job."""

    base: str
    """Base file of the release, examples/configs/grpo_math_1B.yaml."""
    model: str
    """Folder of the start model."""
    train: str
    """JSONL file with the training prompts."""
    validation: str
    """JSONL file with the validation prompts."""
    checkpoints: str
    """Folder in which the release saves its checkpoints."""
    logs: str
    """Folder for the logs of the release."""
    plan: str
    """The plan.json, from which the reward environment rebuilds its scorers."""
    journal: str
    """JSONL file of the reward environment, with one line per batch."""


@dataclass(frozen=True)
class RunCounts:
    """Number of available prompts per file."""

    train: int
    """Training prompts."""
    validation: int
    """Validation prompts."""


def render_config(
    recipe: GRPORecipe,
    cluster: ClusterShape,
    places: Places,
    counts: RunCounts,
    seed: int,
    dialect: Dialect = "0.7",
    memory: float = 1.0,
    save_by: float | None = None,
) -> dict[str, Any]:
    """Return the NeMo RL configuration as data; it inherits from `places.base`.

    The recipe must have passed `check_arithmetic` of `trainers/backends/nemo/arithmetic.py`. `memory` is the attempt's factor on the
    generation engine's share of GPU memory. `save_by` is the training time, in seconds, after which the release saves a checkpoint and
    ends the run.
    """
    judged = bool(counts.validation and validate_every(recipe))
    return {
        "defaults": places.base,
        "grpo": _grpo(recipe, counts, seed),
        "loss_fn": _loss(recipe),
        "policy": _policy(recipe, cluster, places, dialect, memory),
        "data": _data(recipe, places, counts),
        "env": {ENVIRONMENT: _environment(recipe, places, counts)},
        "checkpointing": checkpointing(recipe, places.checkpoints, METRIC if judged else None, dialect, save_by),
        "logger": {"log_dir": places.logs, "num_val_samples_to_print": 0, "monitor_gpus": False},
        "cluster": {"gpus_per_node": cluster.gpus, "num_nodes": cluster.nodes},
    }


def _environment(recipe: GRPORecipe, places: Places, counts: RunCounts) -> dict[str, Any]:
    validated = {"validation": places.validation} if counts.validation and validate_every(recipe) else {}
    return {"plan": places.plan, "journal": places.journal, **validated}


def _grpo(recipe: GRPORecipe, counts: RunCounts, seed: int) -> dict[str, Any]:
    nemo = recipe.nemo
    every = validate_every(recipe) if counts.validation else 0
    at_once = max(1, min(counts.validation, 256))
    return {
        "num_prompts_per_step": recipe.prompts_per_step,
        "num_generations_per_prompt": recipe.generations,
        "max_rollout_turns": 1,
        "max_num_epochs": epochs(recipe, counts.train),
        "max_num_steps": recipe.last_step,
        "normalize_rewards": recipe.scale_rewards == "group",
        "use_leave_one_out_baseline": nemo.leave_one_out,
        "val_period": every,
        "val_at_start": every > 0,
        "val_at_end": every > 0,
        "val_batch_size": at_once,
        "max_val_samples": -(-counts.validation // at_once) * at_once,
        "overlong_filtering": nemo.overlong_filtering,
        "use_dynamic_sampling": nemo.dynamic_sampling,
        "dynamic_sampling_max_gen_batches": nemo.dynamic_sampling_batches,
        "batch_multiplier": nemo.batch_multiplier if nemo.dynamic_sampling else 1,
        "seed": seed % 2**31,
        **({"skip_reference_policy_logprobs_calculation": True} if recipe.beta == 0 else {}),
    }


def _loss(recipe: GRPORecipe) -> dict[str, Any]:
    return {
        "reference_policy_kl_penalty": recipe.beta,
        "reference_policy_kl_type": recipe.nemo.kl_type,
        "ratio_clip_min": recipe.clip_low,
        "ratio_clip_max": recipe.clip_high,
        "token_level_loss": LOSSES.get(recipe.loss, True),
    }


def _policy(recipe: GRPORecipe, cluster: ClusterShape, places: Places, dialect: Dialect, memory: float) -> dict[str, Any]:
    nemo = recipe.nemo
    return {
        "model_name": places.model,
        "train_global_batch_size": nemo.train_batch or recipe.answers,
        "train_micro_batch_size": recipe.micro_batch,
        "max_total_sequence_length": nemo.max_prompt + recipe.max_completion,
        "sequence_packing": {"enabled": nemo.packing},
        **optimisation(recipe),
        "generation": _generation(recipe, cluster, memory),
        **engine(recipe, dialect),
    }


def _generation(recipe: GRPORecipe, cluster: ClusterShape, memory: float) -> dict[str, Any]:
    nemo = recipe.nemo
    own: dict[str, int | None] = {"gpus_per_node": None, "num_nodes": None}
    if nemo.generation == "dedicated":
        single = cluster.nodes == 1
        own = {"gpus_per_node": nemo.generation_gpus if single else cluster.gpus, "num_nodes": 1 if single else nemo.generation_nodes}
    return {
        "backend": "vllm",
        "max_new_tokens": recipe.max_completion,
        "temperature": recipe.temperature,
        "top_p": recipe.top_p,
        "top_k": recipe.top_k or None,
        "colocated": {"enabled": nemo.generation == "colocated", "resources": own},
        "vllm_cfg": {
            "async_engine": False,  # the reward environment needs complete groups
            "tensor_parallel_size": nemo.generation_tensor_parallel,
            "gpu_memory_utilization": round(min(nemo.generation_memory * memory, 0.95), 4),
        },
    }


def _data(recipe: GRPORecipe, places: Places, counts: RunCounts) -> dict[str, Any]:
    return {
        "_override_": True,
        "max_input_seq_length": recipe.nemo.max_prompt,
        "shuffle": True,
        "num_workers": 1,
        "use_multiple_dataloader": False,
        "train": {"data_path": places.train},
        "validation": {"data_path": places.validation} if counts.validation and validate_every(recipe) else None,
        "default": {
            "dataset_name": DATASET,
            "processor": PROCESSOR,
            "env_name": ENVIRONMENT,
            "prompt_file": None,
            "system_prompt_file": None,
        },
    }
