"""Settings that a recipe does not name: from the width of the model, from measured facts, and from the adjustment of an attempt."""

from __future__ import annotations

from typing import Any

from ratchet.contracts.data.datasets import UNMEASURED_NOISE, Facts
from ratchet.contracts.data.records import Tier
from ratchet.contracts.jobs.training import Adjustment
from ratchet.trainers.length import most_steps
from ratchet.trainers.recipes.dpo import DPORecipe
from ratchet.trainers.recipes.grpo import GRPO_STEPS, GRPORecipe
from ratchet.trainers.recipes.recipe import R, Recipe
from ratchet.trainers.recipes.sft import SFTRecipe

WIDTH, RATE, POWER = 2000, 5e-5, 0.775
"""Rate for all weights of a model of a width, and the power by which it falls with the width: the fit of LoRA Without Regret
(Schulman et al. 2025, thinkingmachines.ai/blog/lora) over SFT of 14 models."""
LORA_FACTOR = 10.0
"""Best rate of an adapter, relative to that of all weights (same source)."""
PREFERENCE_FACTOR = 0.25
"""Rate of DPO, relative to that of SFT: DPO moves the weights further for the same rate, and `losses` mixes it with SFT."""

GRPO_FACTOR = 0.1
"""Rate of GRPO, relative to that of SFT. For a width of 4096 the result is 2.9e-6, or 2.9e-5 with LoRA, which are common rates of such
models; `benchmarks/grpo_rates.py` measures it on tiny ones. The KL penalty and the health rules limit a rate that is too high."""
_METHOD_FACTORS: dict[type[Recipe], float] = {SFTRecipe: 1.0, DPORecipe: PREFERENCE_FACTOR, GRPORecipe: GRPO_FACTOR}


def typical_rate(recipe: Recipe, width: int) -> float:
    """Return the learning rate of a recipe that does not name it, for a model with hidden states of `width` numbers.

    Examples for SFT: 4e-4 for a width of 128; 2.9e-5 for 4096, or 2.9e-4 with LoRA. How long the rate is applied matters more than its
    exact value, and `steps = "auto"` measures that.
    """
    rate: float = RATE * (WIDTH / width) ** POWER
    return rate * (LORA_FACTOR if recipe.lora else 1.0) * _METHOD_FACTORS[type(recipe)]


def adjusted(recipe: R, adjustment: Adjustment) -> R:
    """Return the recipe with the adjustment of an attempt: learning rate, beta, and the rows and answers in memory.

    The number of steps, the batch size and the data do not change. A learning rate that the job chooses stays `auto`, with another factor.
    """
    scale = recipe.rate_scale * adjustment.learning_rate
    auto = recipe.learning_rate == "auto"
    changes: dict[str, Any] = {"rate_scale": scale} if auto else {"learning_rate": recipe.rate * scale, "rate_scale": 1.0}
    rows = max(1, int(recipe.micro_batch * adjustment.memory))
    changes["micro_batch"] = next(n for n in range(rows, 0, -1) if recipe.micro_batch % n == 0)
    if isinstance(recipe, DPORecipe | GRPORecipe):
        changes["beta"] = recipe.beta * adjustment.kl
    if isinstance(recipe, DPORecipe) and adjustment.memory != 1.0:  # the budget shrinks even if micro_batch is already 1
        changes["micro_tokens"] = max(1, int(recipe.budget * adjustment.memory))
    less = recipe.model_copy(update=changes)
    if isinstance(less, GRPORecipe) and adjustment.memory != 1.0:  # answers are sampled for several micro-batches at a time
        at_once = less.at_most(int(less.sampled_at_once * adjustment.memory))
        return less.model_copy(update={"generation_batch": at_once, "vllm_memory": less.vllm_memory * adjustment.memory})
    return less


def _most_steps(recipe: Recipe, facts: Facts) -> int:
    """Upper limit of the steps of a recipe that does not name them, from the rows that it trains on."""
    if isinstance(recipe, DPORecipe):
        return most_steps(facts.pairs, recipe.batch)
    return most_steps(sum(facts.demonstrations.values()), recipe.batch) if isinstance(recipe, SFTRecipe) else GRPO_STEPS


MOST_SMOOTHING = 0.45
"""Upper limit of the label smoothing. The robust loss divides by 1 - 2 * smoothing, so higher values amplify noise by more than ten."""
LEAST_SMOOTHING = 0.01
"""Lower limit of the label smoothing."""


def measured(recipe: R, facts: Facts | None) -> R:
    """Return the recipe with its measured settings filled in from `facts`; unchanged if there are none or no facts are given."""
    if facts is not None and recipe.steps == recipe.most_steps == "auto":
        recipe = recipe.model_copy(update={"most_steps": _most_steps(recipe, facts)})
    if facts is None or not isinstance(recipe, DPORecipe) or recipe.label_smoothing != "measured" or not recipe.losses.get("robust"):
        return recipe
    noise = UNMEASURED_NOISE if facts.label_noise is None else facts.label_noise
    proven = min(1.0, facts.pairs_by_tier.get(Tier.VERIFIABLE, 0) / facts.pairs) if facts.pairs else 0.0
    return recipe.model_copy(update={"label_smoothing": min(max(noise * (1 - proven), LEAST_SMOOTHING), MOST_SMOOTHING)})
