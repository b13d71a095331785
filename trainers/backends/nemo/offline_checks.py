"""Checks of SFT and DPO recipes for NeMo RL: settings that the release (v0.7.0) cannot honour, and numbers that do not fit together.

Each finding names its remedy. The module is pure.
"""

from __future__ import annotations

from ratchet.contracts.data.datasets import Facts
from ratchet.contracts.errors import ConfigError
from ratchet.trainers.backends.nemo.arithmetic import ClusterShape, data_parallel, wrong_adapter
from ratchet.trainers.length import unmeasured_steps
from ratchet.trainers.recipes.dpo import DPORecipe
from ratchet.trainers.recipes.sft import SFTRecipe

Offline = SFTRecipe | DPORecipe
"""Recipes that train on given answers."""
TERMS = ("sigmoid", "sft")
"""Terms of the DPO loss that the release has."""


def name_of(recipe: Offline) -> str:
    """Return the method of a recipe, as the loop file names it."""
    return "dpo" if isinstance(recipe, DPORecipe) else "sft"


def refuse_unsupported(recipe: Offline, facts: Facts | None = None) -> None:
    """Raise ConfigError with all settings that the release cannot honour. `facts` are those of the training set, for the remedy."""
    found = [*_open_end(recipe, facts), *(_terms(recipe) if isinstance(recipe, DPORecipe) else ()), *wrong_adapter(recipe.lora)]
    if found:
        raise ConfigError(f"{name_of(recipe).upper()} on NeMo RL: " + "; ".join(found))


def check_shares(recipe: Offline, cluster: ClusterShape) -> None:
    """Raise ConfigError if the GPUs of the cluster cannot share the batch of the recipe."""
    found = _shares(recipe, cluster)
    if found:
        raise ConfigError(f"{name_of(recipe).upper()} on NeMo RL: {found}")


def rows_in_memory(recipe: Offline, cluster: ClusterShape) -> int:
    """Return the rows, or pairs, that a GPU has in memory at a time: at most micro_batch, so that they fill its share of a step."""
    share = recipe.batch // data_parallel(recipe, cluster)
    return next(n for n in range(min(recipe.micro_batch, share), 0, -1) if share % n == 0)


def _open_end(recipe: Offline, facts: Facts | None) -> list[str]:
    if recipe.steps != "auto":
        return []
    method, rows = name_of(recipe), 0
    if facts is not None:
        rows = facts.pairs if isinstance(recipe, DPORecipe) else sum(facts.demonstrations.values())
    number = f"{unmeasured_steps(rows, recipe.batch, recipe.last_step)}" if rows else "3 * rows / batch"
    return [
        'steps = "auto" measures the model by its answers to development prompts, which this run does not generate; '
        f"set training.{method}.steps to a number, for three passes to {number}"
    ]


def _terms(recipe: DPORecipe) -> list[str]:
    found = []
    if others := [name for name, weight in recipe.losses.items() if weight > 0 and name not in TERMS]:
        found.append(f"the release has no loss {others[0]!r}; set losses to sigmoid, sft or both")
    if recipe.rehearsed:
        found.append("a step of the release has pairs only, so no demonstrations are rehearsed; set rehearsal = 0")
    if recipe.micro_tokens:
        found.append("the release counts pairs in memory, not tokens; set micro_tokens = 0, and micro_batch to the pairs")
    return found


def _shares(recipe: Offline, cluster: ClusterShape) -> str:
    if cluster.gpus < 1:
        return "GPUs are required; set training.gpus to the number of GPUs per node"
    gpus, split = cluster.nodes * cluster.gpus, recipe.nemo.tensor_parallel
    if gpus % split:
        return f"{gpus} GPUs are not a multiple of nemo.tensor_parallel {split}; set nemo.tensor_parallel to a divisor"
    ways = data_parallel(recipe, cluster)
    if recipe.batch % ways:
        return (
            f"batch {recipe.batch} cannot be divided into {ways} equal data-parallel shares; "
            f"set batch to {-(-recipe.batch // ways) * ways}, or change training.gpus"
        )
    return ""
