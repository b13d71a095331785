"""Consistency checks of a GRPO recipe for NeMo RL: batches, GPUs, epochs and validation.

NeMo RL validates types but not the relations between numbers. An inconsistent configuration fails minutes after the start, or the
run ends after zero steps. So these checks repeat the arithmetic of the release (v0.7.0). Each finding names its remedy.
The module is pure. The names of the configuration keys are in `ratchet.trainers.backends.nemo.config`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ratchet.contracts.errors import ConfigError
from ratchet.trainers.recipes.grpo import GRPORecipe
from ratchet.trainers.recipes.recipe import Lora, Recipe


@dataclass(frozen=True)
class ClusterShape:
    """Number of machines and GPUs of one attempt."""

    nodes: int
    """Number of nodes."""
    gpus: int
    """GPUs per node."""


def check_arithmetic(recipe: GRPORecipe, cluster: ClusterShape, prompts: int | None = None) -> None:
    """Raise ConfigError with all findings if the recipe does not fit the cluster.

    `prompts` is the number of training prompts without the validation share, or None if it is not known yet.
    """
    found = [*_spelling(recipe), *_gpus(recipe, cluster)]
    if not found:
        found = [*_batches(recipe, cluster), *_periods(recipe), *(_prompts(recipe, prompts) if prompts is not None else [])]
    if found:
        raise ConfigError("GRPO on NeMo RL: " + "; ".join(found))


def check_prompts(recipe: GRPORecipe, prompts: int) -> None:
    """Raise ConfigError if `prompts`, the training prompts without the validation share, do not fill one step."""
    if found := _prompts(recipe, prompts):
        raise ConfigError("GRPO on NeMo RL: " + "; ".join(found))


def sampled_at_once(recipe: GRPORecipe) -> int:
    """Return the number of prompts in one generation batch, with the rounding of the release."""
    return int(recipe.prompts_per_step * (recipe.nemo.batch_multiplier if recipe.nemo.dynamic_sampling else 1))


def epochs(recipe: GRPORecipe, prompts: int) -> int:
    """Return the number of epochs that contain all steps, plus one epoch for a resume at the end of an epoch.

    `prompts` is the number of training prompts. The result is an upper limit if dynamic sampling is on.
    """
    per_epoch = max(1, prompts // sampled_at_once(recipe))
    if not recipe.nemo.dynamic_sampling:
        return -(-recipe.last_step // per_epoch) + 1
    cap = recipe.nemo.dynamic_sampling_batches
    if per_epoch > cap:  # every epoch contains a step: the run fails after more than `cap` batches without one
        return recipe.last_step + 1
    return -(-recipe.last_step * (cap + 1) // per_epoch) + 1


def validate_every(recipe: GRPORecipe) -> int:
    """Return the number of steps between validations; 0 means no validation."""
    return recipe.fixed_save_every if recipe.nemo.validate_every is None else recipe.nemo.validate_every


def training_gpus(recipe: Recipe, cluster: ClusterShape) -> int:
    """Return the number of GPUs that hold the trained weights. Only GRPO can have others."""
    if not isinstance(recipe, GRPORecipe) or recipe.nemo.generation == "colocated":
        return cluster.nodes * cluster.gpus
    nemo = recipe.nemo
    if cluster.nodes == 1:
        return cluster.gpus - nemo.generation_gpus
    return (cluster.nodes - nemo.generation_nodes) * cluster.gpus


def data_parallel(recipe: Recipe, cluster: ClusterShape) -> int:
    """Return the data-parallel size: the number of GPU groups that each train on a share of the batch."""
    return training_gpus(recipe, cluster) // recipe.nemo.tensor_parallel


def wrong_adapter(lora: Lora | None) -> list[str]:
    """Return what the release cannot do with an adapter, each with its remedy."""
    found = []
    if lora and lora.alpha != int(lora.alpha):
        found.append(f"lora.alpha {lora.alpha} must be an integer; set lora.alpha = {round(lora.alpha)}")
    if lora and isinstance(lora.targets, str) and lora.targets != "all-linear":
        found.append(f"lora.targets {lora.targets!r} must be 'all-linear' or a list of module names")
    if lora and lora.quantize != "none":
        found.append("lora.quantize is not supported; set lora.quantize = 'none'")
    return found


def _spelling(recipe: GRPORecipe) -> list[str]:
    found = []
    if recipe.loss not in ("dapo", "grpo"):
        found.append(f"loss {recipe.loss!r} is not supported; set loss = 'dapo' or 'grpo'")
    if recipe.scale_rewards == "batch":
        found.append("scale_rewards 'batch' is not supported; set scale_rewards = 'group' or 'none'")
    found += wrong_adapter(recipe.lora)
    if recipe.precision == "float32" and recipe.nemo.packing:
        found.append(
            "precision float32 cannot be packed: the release packs with flash attention, which only has 16-bit kernels; "
            "set nemo.packing = false, or precision = 'bf16'"
        )
    return found


def _gpus(recipe: GRPORecipe, cluster: ClusterShape) -> list[str]:
    nemo = recipe.nemo
    if cluster.gpus < 1:
        return ["GPUs are required; set training.gpus to the number of GPUs per node"]
    if nemo.generation == "dedicated" and cluster.nodes == 1 and not 0 < nemo.generation_gpus < cluster.gpus:
        return [f"dedicated generation on one node needs 0 < nemo.generation_gpus < {cluster.gpus}, found {nemo.generation_gpus}"]
    if nemo.generation == "dedicated" and cluster.nodes > 1 and not 0 < nemo.generation_nodes < cluster.nodes:
        return [f"dedicated generation needs 0 < nemo.generation_nodes < {cluster.nodes} nodes, found {nemo.generation_nodes}"]
    found = []
    train = training_gpus(recipe, cluster)
    if train % nemo.tensor_parallel:
        found.append(f"{train} training GPUs are not a multiple of nemo.tensor_parallel {nemo.tensor_parallel}")
    shared = nemo.generation_gpus if nemo.generation == "dedicated" and cluster.nodes == 1 else cluster.gpus
    if shared % nemo.generation_tensor_parallel:
        found.append(
            f"{shared} generation GPUs per node are not a multiple of nemo.generation_tensor_parallel {nemo.generation_tensor_parallel}"
        )
    return found


def _batches(recipe: GRPORecipe, cluster: ClusterShape) -> list[str]:
    total = recipe.answers
    batch = recipe.nemo.train_batch or total
    ways = data_parallel(recipe, cluster)
    if total % batch:
        return [
            f"prompts_per_step * generations = {total} is not a multiple of nemo.train_batch {batch}; "
            "set nemo.train_batch = 0 (all answers of a step)"
        ]
    if batch % ways:
        per = recipe.generations
        better = next(n for n in range(recipe.prompts_per_step, recipe.prompts_per_step + ways + 1) if n * per % ways == 0)
        remedy = f"set prompts_per_step = {better}" if not recipe.nemo.train_batch else f"set nemo.train_batch to a multiple of {ways}"
        return [f"a batch of {batch} answers cannot be divided into {ways} equal data-parallel shares; {remedy}, or change training.gpus"]
    if not recipe.nemo.packing and batch // ways % recipe.micro_batch:
        return [
            f"a share of {batch // ways} answers is not a multiple of micro_batch {recipe.micro_batch}; "
            "set nemo.packing = true, or set micro_batch to a divisor"
        ]
    return []


def _periods(recipe: GRPORecipe) -> list[str]:
    every, saves = validate_every(recipe), recipe.fixed_save_every
    if every and saves % every:
        return [
            f"save_every {saves} is not a multiple of nemo.validate_every {every}, so some checkpoints would have no validation reward; "
            "set save_every to a multiple"
        ]
    return []


def _prompts(recipe: GRPORecipe, prompts: int) -> list[str]:
    need = sampled_at_once(recipe)
    if prompts < need:
        return [
            f"{prompts} training prompts are fewer than the {need} of one step; incomplete batches are dropped, so no step would run; "
            f"set prompts_per_step to {max(1, prompts)} or less, raise nemo.max_prompt, or collect more prompts"
        ]
    return []
