"""Batches that the machines of a line divide, where the loop file names none. Pure."""

from __future__ import annotations

import math
from typing import Any

from ratchet.contracts.jobs.training import Method
from ratchet.contracts.loop import TrainingSettings
from ratchet.trainers.backends.nemo.arithmetic import ClusterShape, data_parallel
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.dpo import DPORecipe
from ratchet.trainers.recipes.grpo import GRPORecipe
from ratchet.trainers.recipes.sft import SFTRecipe


def divisible(settings: TrainingSettings) -> TrainingSettings:
    """Return the settings with a batch that `nodes` x `gpus` divide, for each built-in method whose default they do not divide.

    The batch is the smallest multiple of the ranks that is not below the default. For SFT, and for DPO on NeMo RL, it is `batch`; for
    GRPO on NeMo RL it is the number of answers of a step, reached by `prompts_per_step`. DPO and GRPO on TRL have no such condition. A
    value that the loop file sets stays, and the trainer refuses it if it does not fit. Raises ConfigError for an invalid recipe.
    """
    of_grpo = settings.grpo | _of_grpo(settings)
    given = {method.value: settings.recipe(method) | _of_rows(settings, method) for method in (Method.DPO, Method.SFT)}
    return settings.model_copy(update={**given, "grpo": of_grpo})


def _of_rows(settings: TrainingSettings, method: Method) -> dict[str, Any]:
    """Return the batch of SFT or DPO if it must be another than the default."""
    on_nemo = settings.on_nemo(method)
    divided = on_nemo or (method is Method.SFT and settings.built_in(method))
    if not divided or "batch" in settings.recipe(method):
        return {}
    given = settings.recipe(method)
    recipe: SFTRecipe | DPORecipe = complete(SFTRecipe, given) if method is Method.SFT else complete(DPORecipe, given)
    ranks = settings.nodes * max(1, settings.gpus) // (recipe.nemo.tensor_parallel if on_nemo else 1)
    if ranks < 1:  # the trainer names the remedy
        return {}
    return {"batch": _multiple(recipe.batch, math.lcm(ranks, recipe.micro_batch))} if recipe.batch % ranks else {}


def _of_grpo(settings: TrainingSettings) -> dict[str, Any]:
    if not settings.on_nemo(Method.GRPO) or "prompts_per_step" in settings.grpo:
        return {}
    recipe = complete(GRPORecipe, settings.grpo)
    ranks = data_parallel(recipe, ClusterShape(settings.nodes, settings.gpus))
    if ranks < 1:  # the trainer names the remedy
        return {}
    unit = recipe.nemo.train_batch or ranks * (1 if recipe.nemo.packing else recipe.micro_batch)
    if recipe.answers % unit == 0:
        return {}
    step = math.lcm(unit, recipe.micro_batch, recipe.generations)
    return {"prompts_per_step": _multiple(recipe.answers, step) // recipe.generations}


def _multiple(least: int, of: int) -> int:
    """Return the smallest multiple of `of` that is at least `least`."""
    return -(-least // of) * of
