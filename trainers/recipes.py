"""Recipes as data: every number that a training run depends on, with its meaning and a default.

A recipe is complete: no default is left to the version of the library that runs it. This module knows what may be set
and in which range; it refuses to know the library, which `trainers.inside` translates to.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from contracts.errors import ConfigError
from contracts.model import Frozen
from contracts.training import Adjustment, Method
from trainers.nemo_recipe import NemoRL

Positive = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class Lora(Frozen):
    """A low-rank adapter instead of all weights (Hu et al. 2021, arXiv:2106.09685); merged into the weights when published."""

    rank: Positive = 16
    """r: inner dimension of the adapter."""
    alpha: Rate = 32.0
    """The adapter's output is scaled by alpha / rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """On the adapter's input."""
    targets: str | tuple[str, ...] = "all-linear"
    """Names of the modules that get an adapter; all-linear: every linear layer but the output head."""
    quantize: Literal["none", "nf4"] = "none"
    """nf4: the start model is held in four bits while its adapter trains (QLoRA, arXiv:2305.14314; needs a GPU and bitsandbytes);
    the adapter is merged into the weights as they were stored, not into the four bits."""


class Health(Frozen):
    """Limits beyond which a run is stopped, because it is going wrong. NaN or infinite loss and gradients always stop it."""

    max_grad_norm_seen: Rate = 1000.0
    """Gradient norm before clipping, exceeded `patience` steps in a row."""
    max_kl: Rate = 20.0
    """Mean KL to the start model, nats per token, exceeded `patience` steps in a row (GRPO with beta > 0 measures it)."""
    max_chosen_drop: Rate = 100.0
    """Fall of the chosen answers' log-probability below the start model's, nats per answer, exceeded `patience` steps in a row (DPO)."""
    patience: Positive = 3
    """Steps in a row beyond a limit before it counts."""
    stall_seconds: Rate = 1800.0
    """No event (a step, a checkpoint) for so long: stopped. Loading the model counts."""


class Recipe(Frozen):
    """What DPO and GRPO share."""

    learning_rate: Rate = 1e-6
    """Peak of AdamW's learning rate. All weights of a model of billions: 5e-7 to 5e-6; LoRA ten times that; a tiny model 1e-4 to 5e-4."""
    schedule: Literal["cosine", "linear", "constant", "constant_with_warmup"] = "cosine"
    """How the learning rate goes after the warm-up."""
    warmup_steps: int = Field(default=10, ge=0)
    """Steps of linear rise to the peak."""
    weight_decay: NotNegative = 0.0
    """AdamW's decoupled weight decay."""
    max_grad_norm: Rate = 1.0
    """Gradients are clipped to this norm."""
    steps: Positive = 200
    """Optimiser steps of the whole run."""
    micro_batch: Positive = 4
    """Rows in memory at once; gradients of several are added up to a whole step."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """Arithmetic; weights and optimiser are float32 always. auto: bf16 on a GPU, float32 on a CPU."""
    gradient_checkpointing: bool = True
    """Computes activations twice to save memory: about a fifth slower."""
    cpus: Positive = 1
    """Threads for arithmetic. Part of the recipe because sums depend on it: resume is exact only with the same number."""
    save_every: Positive = 20
    """Steps between checkpoints: what a lost machine costs at most."""
    keep_checkpoints: Annotated[int, Field(ge=2)] = 3
    """Newest checkpoints of an incarnation that are kept; the one to resume from is kept besides."""
    grace_seconds: Positive = 120
    """From SIGTERM to SIGKILL: must cover one step and one checkpoint."""
    lora: Lora | None = None
    """Train an adapter; none: all weights."""
    health: Health = Health()
    """When to stop a run that is going wrong."""


Loss = Literal["sigmoid", "robust", "hinge", "ipo", "apo_zero", "apo_down", "sft"]


def _mixed() -> dict[Loss, float]:
    return {"sigmoid": 1.0, "sft": 1.0}


class DPORecipe(Recipe):
    """Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290) with a share of SFT on the chosen answers."""

    losses: dict[Loss, NotNegative] = Field(default_factory=_mixed)
    """Loss terms and their weights. sigmoid: DPO; robust: DPO with noisy labels (arXiv:2403.00409), needs label_smoothing;
    sft: likelihood of the chosen answer, which holds the model on its feet where the answers are not its own."""
    beta: Rate = 0.1
    """Strength of the pull to the start model."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = 0.0
    """Assumed share of pairs in the wrong order; used by `robust` only."""
    weigh_pairs: bool = True
    """Draws pairs in proportion to their weight (1 - 2 * probability that the order is wrong); false: all alike."""
    batch: Positive = 32
    """Pairs per step; a multiple of micro_batch."""
    micro_tokens: int = Field(default=0, ge=0)
    """Tokens in memory at once, padding included; 0: as many as micro_batch pairs of max_length, so that short pairs are many."""
    max_length: Positive = 1024
    """Tokens of prompt and answer; what is longer is cut at the end, and dropped where the prompt alone is."""

    @property
    def budget(self) -> int:
        """Tokens in memory at once."""
        return self.micro_tokens or 2 * self.micro_batch * self.max_length

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not any(weight > 0 for weight in self.losses.values()):
            raise ValueError("losses: at least one weight must be positive")
        if "robust" in self.losses and self.label_smoothing == 0:
            raise ValueError("losses: `robust` with label_smoothing = 0 is `sigmoid`; set label_smoothing to the estimated label noise")
        if self.batch % self.micro_batch:
            raise ValueError(f"batch {self.batch} is not a multiple of micro_batch {self.micro_batch}")
        return self


class GRPORecipe(Recipe):
    """Group-relative policy optimisation (Shao et al. 2024, arXiv:2402.03300) with the line's own scorers as the reward."""

    loss: Literal["dapo", "grpo", "dr_grpo", "bnpo"] = "dapo"
    """How token losses are averaged. dapo: over all tokens of the step (arXiv:2503.14476)."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """What the advantages' spread is divided by."""
    beta: NotNegative = 0.04
    """Weight of the KL to the start model; 0: no reference in memory, and the KL limit is not watched."""
    prompts_per_step: Positive = 8
    """Different prompts in a step."""
    generations: Annotated[int, Field(ge=2)] = 8
    """Answers per prompt: a group."""
    max_completion: Positive = 256
    """Tokens of an answer."""
    temperature: Rate = 1.0
    """Of sampling."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Nucleus of sampling."""
    top_k: int = Field(default=0, ge=0)
    """Tokens that sampling may choose from; 0: all."""
    clip_low: NotNegative = 0.2
    """A token's probability ratio to the sampling model counts down to 1 - clip_low (PPO's clipping, arXiv:1707.06347)."""
    clip_high: NotNegative = 0.2
    """And up to 1 + clip_high; DAPO's clip-higher is 0.28."""
    nemo: NemoRL = NemoRL()
    """What only the trainer on a cluster knows."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        total = self.prompts_per_step * self.generations
        if total % self.micro_batch:
            raise ValueError(f"prompts_per_step * generations = {total} is not a multiple of micro_batch {self.micro_batch}")
        return self


class SFTRecipe(Recipe):
    """Supervised fine-tuning on answers that count as right: users' corrections, and the line's own answers that were judged
    right (rejection sampling fine-tuning, RFT: Yuan et al. 2023, arXiv:2308.01825). The loss is on the answer alone."""

    focus: Annotated[float, Field(ge=0, le=1)] = 0.9
    """Draws what the start model cannot yet do more often: an answer's weight is taken times 1 - focus * (share of the model's
    own answers to that prompt that are right, 0.5 where none was judged). 0: all alike."""
    weigh: bool = True
    """Draws answers in proportion to their weight (1 - 2 * probability that one is wrong); false: all alike."""
    batch: Positive = 32
    """Answers per step; a multiple of micro_batch."""
    max_length: Positive = 1024
    """Tokens of prompt and answer; what is longer is cut at the end, and dropped where the prompt alone is."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.batch % self.micro_batch:
            raise ValueError(f"batch {self.batch} is not a multiple of micro_batch {self.micro_batch}")
        return self


R = TypeVar("R", bound=Recipe)


def adjusted(recipe: R, adjustment: Adjustment) -> R:
    """The recipe as an attempt runs it. Steps, batch and data stay: only what the watch may change does."""
    changes: dict[str, Any] = {"learning_rate": recipe.learning_rate * adjustment.learning_rate}
    rows = max(1, int(recipe.micro_batch * adjustment.memory))
    changes["micro_batch"] = next(n for n in range(rows, 0, -1) if recipe.micro_batch % n == 0)
    if isinstance(recipe, DPORecipe | GRPORecipe):
        changes["beta"] = recipe.beta * adjustment.kl
    if isinstance(recipe, DPORecipe):
        changes["micro_tokens"] = recipe.micro_tokens and max(1, int(recipe.micro_tokens * adjustment.memory))  # 0 stays 0
    return recipe.model_copy(update=changes)


def complete(kind: type[R], changes: Mapping[str, Any]) -> R:
    """`kind`'s defaults with `changes`. ConfigError for an unknown key (with the nearest known one) or an impossible value."""
    _known(kind, changes, kind.__name__.removesuffix("Recipe"))
    try:
        return kind.model_validate(dict(changes))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the recipe"
        raise ConfigError(f"{kind.__name__.removesuffix('Recipe')} recipe: {where}: {first['msg']}; see trainers/recipes.py") from error


def _known(kind: type[Frozen], changes: Mapping[str, Any], where: str) -> None:
    nested: dict[str, type[Frozen]] = {"lora": Lora, "health": Health, "nemo": NemoRL}
    for key, value in changes.items():
        if key not in kind.model_fields:
            near = difflib.get_close_matches(key, kind.model_fields, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(kind.model_fields))}"
            raise ConfigError(f"{where} recipe: unknown key {key!r}; {hint}")
        if key in nested and isinstance(value, Mapping):
            _known(nested[key], value, f"{where} {key}")


KINDS: dict[Method, type[Recipe]] = {Method.DPO: DPORecipe, Method.GRPO: GRPORecipe, Method.SFT: SFTRecipe}
