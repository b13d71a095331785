"""Memory of a training on GPUs, computed from the sizes of the model and the recipe: weights, optimiser, activations, generation.

The arithmetic follows what the trainers keep: weights, gradients and the two moments of AdamW in float32, sharded over the GPUs that train
(ZeRO, Rajbhandari et al. 2020, arXiv:1910.02054, section 3), activations in 16 bits (Korthikanti et al. 2022, arXiv:2205.05198, section 4),
and logits in float32. Buffers of libraries and fragmentation are a fixed allowance. No figure was measured on a GPU.
The module is pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ratchet.contracts.model import Frozen
from ratchet.trainers.backends.nemo.arithmetic import ClusterShape, data_parallel, training_gpus
from ratchet.trainers.backends.nemo.offline_checks import rows_in_memory
from ratchet.trainers.recipes.dpo import DPORecipe
from ratchet.trainers.recipes.grpo import GRPORecipe
from ratchet.trainers.recipes.recipe import Recipe
from ratchet.trainers.recipes.sft import SFTRecipe

GIB = 2**30
STATE_BYTES = 16
"""Bytes of a trained weight: the weight, its gradient and two moments, in float32."""
FROZEN_BYTES = 2
"""Bytes of a weight that is not trained, in 16 bits."""
ALLOWANCE = 4.0
"""GiB per GPU for the CUDA context, NCCL, and what libraries and fragmentation take."""
LAYER_FACTOR = 34
"""Bytes of one layer's activations per token and hidden unit, without the scores of attention (arXiv:2205.05198, equation 2)."""
LOGIT_BYTES = 10
"""Bytes of a logit: in 16 bits, in float32, and its gradient."""


ONE_ANSWER = "keys and values of one answer"
Phase = Literal["training", "generation"]
PHASES: tuple[Phase, ...] = ("training", "generation")


class ModelSizes(Frozen):
    """Sizes of a decoder-only transformer."""

    parameters: int
    layers: int
    hidden: int
    vocabulary: int
    cached: int
    """Key and value elements that a token keeps per layer."""


class MemoryItem(Frozen):
    """One use of memory."""

    name: str
    gib: float
    """GiB per GPU."""


class MemoryEstimate(Frozen):
    """Estimated memory of one GPU of a training."""

    training: tuple[MemoryItem, ...]
    """Uses of memory during an update."""
    generation: tuple[MemoryItem, ...] = ()
    """Uses of memory while answers are generated, with one answer at a time; empty without a generation engine."""
    generation_share: float = 1.0
    """Share of the GPU's memory that the engine may take."""

    def needed(self, phase: Phase) -> float:
        """Return the GiB that a phase needs."""
        return sum(one.gib for one in (self.training if phase == "training" else self.generation))

    def too_large(self, gib: float) -> list[Phase]:
        """Return the phases that do not fit on a GPU of `gib` GiB."""
        room = {"training": gib, "generation": gib * self.generation_share}
        return [phase for phase in PHASES if self.needed(phase) > room[phase]]

    def answers_at_once(self, gib: float) -> int:
        """Return the number of answers of full length that an engine on a GPU of `gib` GiB generates at once; 0 without an engine."""
        if not self.generation:
            return 0
        one = next(item.gib for item in self.generation if item.name == ONE_ANSWER)
        return max(0, int((gib * self.generation_share - self.needed("generation")) / one) + 1)


def model_sizes(config: Mapping[str, Any], parameters: int) -> ModelSizes | None:
    """Return the sizes of a model. `config` is its config.json, and `parameters` its number of parameters.

    Returns None if `config` lacks a size. A model with several parts has the sizes of its language model in `text_config`.
    """
    inner = config.get("text_config")
    text = inner if isinstance(inner, Mapping) else config
    try:
        layers, hidden, vocabulary = (int(text[name]) for name in ("num_hidden_layers", "hidden_size", "vocab_size"))
        heads = int(text["num_attention_heads"])
        kv_heads = int(text.get("num_key_value_heads") or heads)
        head = int(text.get("head_dim") or hidden // heads)
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    if min(layers, hidden, vocabulary, parameters) <= 0:
        return None
    return ModelSizes(parameters=parameters, layers=layers, hidden=hidden, vocabulary=vocabulary, cached=2 * kv_heads * head)


def memory(recipe: Recipe, sizes: ModelSizes, nodes: int, gpus: int, on_nemo: bool) -> MemoryEstimate | None:
    """Return the memory of one GPU for a training of `recipe` on `nodes` machines of `gpus` GPUs. None without GPUs.

    `on_nemo` states whether NeMo RL trains; TRL then generates, if at all, with a vLLM engine in the training process.
    """
    if not gpus:
        return None
    holding = training_gpus(recipe, ClusterShape(nodes, gpus)) if on_nemo else nodes * gpus
    split = recipe.nemo.tensor_parallel if on_nemo else 1
    tokens = _tokens(recipe, ClusterShape(nodes, gpus) if on_nemo else None)
    return MemoryEstimate(
        training=(
            *_weights(recipe, sizes, holding),
            *_activations(recipe, sizes, tokens, split),
            MemoryItem(name="allowance", gib=ALLOWANCE),
        ),
        generation=_generation(recipe, sizes, on_nemo),
        generation_share=recipe.nemo.generation_memory if isinstance(recipe, GRPORecipe) else 1.0,
    )


def _tokens(recipe: Recipe, nemo: ClusterShape | None) -> int:
    """Return the tokens of one micro-batch on one GPU, with every row at its full length. `nemo`: the cluster on which NeMo RL trains."""
    if isinstance(recipe, GRPORecipe):
        prompt = recipe.max_completion if nemo is None else recipe.nemo.max_prompt
        return recipe.micro_batch * (prompt + recipe.max_completion)
    if isinstance(recipe, SFTRecipe | DPORecipe) and nemo is not None and recipe.batch % data_parallel(recipe, nemo) == 0:
        return rows_in_memory(recipe, nemo) * (2 if isinstance(recipe, DPORecipe) else 1) * recipe.max_length
    if isinstance(recipe, DPORecipe):
        return recipe.budget
    return recipe.micro_batch * int(getattr(recipe, "max_length", 0))


def _weights(recipe: Recipe, sizes: ModelSizes, holding: int) -> tuple[MemoryItem, ...]:
    largest = sizes.parameters / sizes.layers * 4 * 2 / GIB  # two layers are gathered at a time
    if recipe.lora is not None:
        trained = 2 * recipe.lora.rank * sizes.hidden * 7 * sizes.layers  # seven linear maps of a layer; an upper bound for narrow ones
        return (
            MemoryItem(name="frozen weights", gib=sizes.parameters * FROZEN_BYTES / holding / GIB),
            MemoryItem(name="adapter and its optimiser", gib=trained * STATE_BYTES / holding / GIB),
            MemoryItem(name="gathered layers", gib=largest if holding > 1 else 0.0),
        )
    return (
        MemoryItem(name="weights, gradients and optimiser", gib=sizes.parameters * STATE_BYTES / holding / GIB),
        MemoryItem(name="gathered layers", gib=largest if holding > 1 else 0.0),
    )


def _activations(recipe: Recipe, sizes: ModelSizes, tokens: int, split: int) -> tuple[MemoryItem, ...]:
    layer = LAYER_FACTOR * tokens * sizes.hidden / split
    kept = 2 * tokens * sizes.hidden * sizes.layers / split + layer if recipe.gradient_checkpointing else layer * sizes.layers
    return (
        MemoryItem(name="activations", gib=kept / GIB),
        MemoryItem(name="logits", gib=LOGIT_BYTES * tokens * sizes.vocabulary / split / GIB),
    )


def _generation(recipe: Recipe, sizes: ModelSizes, on_nemo: bool) -> tuple[MemoryItem, ...]:
    if not isinstance(recipe, GRPORecipe) or not on_nemo:
        return ()
    split = recipe.nemo.generation_tensor_parallel
    cache = 2 * (recipe.nemo.max_prompt + recipe.max_completion) * sizes.cached * sizes.layers / split
    return (
        MemoryItem(name="weights of the engine", gib=sizes.parameters * FROZEN_BYTES / split / GIB),
        MemoryItem(name=ONE_ANSWER, gib=cache / GIB),
        MemoryItem(name="allowance", gib=ALLOWANCE),
    )
