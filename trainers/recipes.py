"""Recipes as data: every number that a training run depends on, with its meaning and a default.

A recipe is complete: no default is left to the version of the library that runs it. This module knows what may be set
and in which range; it refuses to know the library, which `trainers.inside` translates to.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from contracts.data import UNMEASURED_NOISE, Facts
from contracts.errors import ConfigError
from contracts.model import Frozen
from contracts.records import Tier
from contracts.training import Adjustment, Method
from trainers.nemo_recipe import NemoRL

Positive = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class Numbers(Frozen):
    """Settings whose numbers are numbers: an infinite rate or a limit of NaN would be taken, and would mean nothing."""

    model_config = ConfigDict(allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: Any, info: ValidationInfo) -> Any:
        """True would be taken as 1."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError(f"is no switch, found {str(value).lower()}")
        return value


class Lora(Numbers):
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
    """nf4: the start model is held in four bits while its adapter trains (QLoRA, arXiv:2305.14314; needs bitsandbytes: the extra `qlora`);
    the adapter is merged into the weights as they were stored, not into the four bits."""

    @field_validator("targets")
    @classmethod
    def _named(cls, targets: str | tuple[str, ...]) -> str | tuple[str, ...]:
        names = [targets] if isinstance(targets, str) else list(targets)
        if not names or not all(name.strip() for name in names):
            raise ValueError(f"must name modules, or be 'all-linear'; found {targets!r}")
        return targets


Action = Literal["off", "note", "adjust", "stop"]
"""off: not watched. note: a warning, once. adjust: the attempt ends, and another one goes on from the last good step with what the
rule changes, once per rule and plan. stop: the attempt ends, and another one, if there is one, starts afresh."""


class Limit(Numbers):
    """When a rule counts as broken, and what then."""

    limit: float
    """In the rule's own unit."""
    patience: Positive
    """Steps in a row beyond the limit before it counts."""
    action: Action


LIMITS = {
    "kl": Limit(limit=0.5, patience=5, action="adjust"),
    "grad_norm": Limit(limit=10.0, patience=10, action="adjust"),
    "chosen_fall": Limit(limit=100.0, patience=5, action="adjust"),
    "loss_spike": Limit(limit=8.0, patience=3, action="adjust"),
    "reward_falls": Limit(limit=0.1, patience=5, action="adjust"),
    "reward_flat": Limit(limit=0.005, patience=50, action="note"),
    "entropy_collapse": Limit(limit=0.1, patience=10, action="note"),
    "length_grows": Limit(limit=3.0, patience=10, action="adjust"),
    "generation_slow": Limit(limit=3.0, patience=20, action="note"),
}
"""Defaults, for models of billions of weights. Tiny models with their large learning rates need wider ones."""


class Health(Numbers):
    """Limits beyond which a run is going wrong (rules: trainers/health.py). Part of a rule may be given: the rest is its default."""

    not_finite: Action = "adjust"
    """Loss or gradient norm is NaN or infinite, at once. Adjusts: half the learning rate."""
    kl: Limit = LIMITS["kl"]
    """Mean KL to the start model, nats per token (GRPO with beta > 0 measures it). Adjusts: twice the pull to the start model."""
    grad_norm: Limit = LIMITS["grad_norm"]
    """Gradient norm before clipping. Adjusts: half the learning rate; after that it is only noted."""
    chosen_fall: Limit = LIMITS["chosen_fall"]
    """Fall of the chosen answers' log-probability below the start model's, nats per answer (DPO). Adjusts: twice the pull."""
    loss_spike: Limit = LIMITS["loss_spike"]
    """Loss above the median of the 20 steps before, in robust spreads. Adjusts: half the learning rate."""
    reward_falls: Limit = LIMITS["reward_falls"]
    """Fall of the mean reward of 10 steps from the best such mean (GRPO; rewards are in [0, 1]). Never less than what the spread of the
    run's own steps brings by chance: steps of few prompts need a deeper fall. Adjusts: half the learning rate."""
    reward_flat: Limit = LIMITS["reward_flat"]
    """Rise of the mean reward of 10 steps over that of the first 10, below the limit (GRPO). Adjusts: twice the pull."""
    entropy_collapse: Limit = LIMITS["entropy_collapse"]
    """Entropy of the answers' tokens, as a share of that of the first steps, below the limit. A model that has learnt the one right
    answer looks the same, so it is noted. Adjusts: twice the pull."""
    length_grows: Limit = LIMITS["length_grows"]
    """Mean tokens of an answer, in lengths of the first steps: the gate would refuse such a candidate. Adjusts: twice the pull."""
    generation_slow: Limit = LIMITS["generation_slow"]
    """Seconds of generation (or of a whole step), in times of the first steps. Adjusts nothing: goes on from the last good step."""
    memory: Action = "adjust"
    """The job ran out of memory. Adjusts: half the rows in memory, half the share of a GPU for generation. `note` and `off`: fails."""
    stall: Action = "adjust"
    """No event for too long. Adjusts nothing: goes on from the last good step. `note` and `off`: not watched."""
    stall_seconds: Rate = 1800.0
    """No event (a step, a checkpoint) for so long is a stall. Loading the model counts; saving has its own limit."""
    stall_times: Rate = 30.0
    """And so is no event for so many times the median step, once three steps are known, …"""
    stall_least_seconds: Rate = 300.0
    """… but never for less than this."""
    save_seconds: Rate = 7200.0
    """The first checkpoint and the finished model may take so long to write without a sign; until they are written no step is waited for.
    Once a checkpoint was written, a later one may take `stall_times` as long, at least `stall_least_seconds`, never more than this."""

    @model_validator(mode="before")
    @classmethod
    def _filled(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {
            name: {**LIMITS[name].model_dump(), **value} if name in LIMITS and isinstance(value, Mapping) else value
            for name, value in given.items()
        }


class Recipe(Numbers):
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
    save_every: Positive | Literal["auto"] = 20
    """Steps between checkpoints: what a lost machine costs at most. auto: the job measures what a save costs and what a step takes, and
    weighs it against `interruption_hours` (trainers/cadence.py)."""
    interruption_hours: Rate = 24.0
    """save_every = auto: hours between two interruptions (preemptions, lost machines), as expected; those that come are counted in."""
    keep_checkpoints: Annotated[int, Field(ge=2)] = 3
    """Newest checkpoints of an incarnation that are kept; the one to resume from is kept besides."""
    grace_seconds: Positive = 110
    """From SIGTERM to SIGKILL: must cover one step and one checkpoint, within the 120 s of notice that clouds give before they take a spot
    machine."""
    lora: Lora | None = None
    """Train an adapter; none: all weights."""
    health: Health = Health()
    """When to stop a run that is going wrong."""

    @property
    def fixed_save_every(self) -> int:
        """Steps between checkpoints where what trains can only take a number. ConfigError for auto."""
        if self.save_every == "auto":
            raise ConfigError("recipe: save_every = auto, but this trainer saves after fixed numbers of steps; set save_every to a number")
        return self.save_every


Loss = Literal["sigmoid", "robust", "hinge", "ipo", "apo_zero", "apo_down", "sft"]


def _mixed() -> dict[Loss, float]:
    return {"sigmoid": 1.0, "sft": 1.0}


class DPORecipe(Recipe):
    """Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290) with a share of SFT on the chosen answers, and on right
    answers to prompts of which there is no pair."""

    losses: dict[Loss, NotNegative] = Field(default_factory=_mixed)
    """Loss terms and their weights. sigmoid: DPO; robust: DPO with noisy labels (arXiv:2403.00409), with weigh_pairs = false only;
    sft: likelihood of the chosen answer, which holds the model on its feet where the answers are not its own; and of what is rehearsed."""
    rehearsal: NotNegative = 1.0
    """Where a prompt has no pair, nothing was rejected: what the model does right there is forgotten unless it is rehearsed. Beside its
    pairs, a step takes at most so many demonstrations per pair of `batch` of such prompts, fewer where these prompts are fewer than those
    with pairs. They count in the sft term alone, so without it none are taken; 0: none."""
    beta: Rate = 0.1
    """Strength of the pull to the start model."""
    label_smoothing: Annotated[float, Field(gt=0, lt=0.5)] | Literal["measured"] = "measured"
    """Assumed share of pairs in the wrong order; used by `robust` only. measured: filled in when the plan is made, with the measured
    share of wrong ratings (a fifth where it is not measured) of those pairs that no verifiable scorer judged."""
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

    @property
    def rehearsed(self) -> int:
        """Demonstrations of a step, at most."""
        return math.ceil(self.rehearsal * self.batch) if self.losses.get("sft") else 0

    @property
    def smoothing(self) -> float:
        """Share of pairs in the wrong order that the loss reckons with; 0 without `robust`. ConfigError where it was never filled in."""
        if not self.losses.get("robust"):
            return 0.0
        if self.label_smoothing == "measured":
            raise ConfigError("DPO recipe: label_smoothing = measured, but nothing was measured for this plan; set it to a number")
        return self.label_smoothing

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not any(weight > 0 for weight in self.losses.values()):
            raise ValueError("losses: at least one weight must be positive")
        if self.losses.get("robust") and self.weigh_pairs:
            raise ValueError("losses: `robust` and weigh_pairs both correct for wrong ratings; set weigh_pairs = false, or take `sigmoid`")
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
    generation: Literal["auto", "plain", "vllm"] = "auto"
    """Who samples answers where TRL trains: plain is the model's own generate; vllm lives on the job's GPU beside the training (colocated).
    auto: vllm on a GPU where it is installed."""
    vllm_memory: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Share of the GPU's memory that vllm takes."""
    generation_batch: int = Field(default=0, ge=0)
    """Answers that TRL samples at once, a multiple of generations and of micro_batch that divides the step's; 0: all of a step's."""
    nemo: NemoRL = NemoRL()
    """What only the trainer on a cluster knows."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.answers % self.micro_batch:
            raise ValueError(f"prompts_per_step * generations = {self.answers} is not a multiple of micro_batch {self.micro_batch}")
        if (at_once := self.generation_batch) and at_once not in (fitting := self._batches()):
            raise ValueError(f"generation_batch {at_once} does not fit the step; 0, or one of {', '.join(map(str, fitting))} does")
        return self

    @property
    def answers(self) -> int:
        """Of a step."""
        return self.prompts_per_step * self.generations

    @property
    def sampled_at_once(self) -> int:
        """Answers."""
        return self.generation_batch or self.answers

    def at_most(self, answers: int) -> int:
        """The largest generation_batch of so many answers; the smallest there is where none is so small."""
        return max((n for n in self._batches() if n <= answers), default=self._batches()[0])

    def _batches(self) -> list[int]:
        """Whole groups and whole micro-batches, as many as go into a step, rising."""
        least = math.lcm(self.generations, self.micro_batch)
        return [n for n in range(least, self.answers + 1, least) if self.answers % n == 0]


class SFTRecipe(Recipe):
    """Supervised fine-tuning on answers that count as right: users' corrections, and the line's own answers that were judged
    right (rejection sampling fine-tuning, RFT: Yuan et al. 2023, arXiv:2308.01825). The loss is on the answer alone."""

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
    if isinstance(recipe, DPORecipe) and adjustment.memory != 1.0:  # the budget itself: halved even where micro_batch is 1 already
        changes["micro_tokens"] = max(1, int(recipe.budget * adjustment.memory))
    less = recipe.model_copy(update=changes)
    if isinstance(less, GRPORecipe) and adjustment.memory != 1.0:  # answers are sampled for many micro-batches at once
        at_once = less.at_most(int(less.sampled_at_once * adjustment.memory))
        return less.model_copy(update={"generation_batch": at_once, "vllm_memory": less.vllm_memory * adjustment.memory})
    return less


MOST_SMOOTHING = 0.45
"""The robust loss divides by 1 - 2 * smoothing; beyond this it would be noise times ten and more."""
LEAST_SMOOTHING = 0.01
"""And so few pairs are always held to be in the wrong order."""


def measured(recipe: R, facts: Facts | None) -> R:
    """The recipe with what it leaves to measurement filled in; as it is where `facts` are not given or nothing is left to them."""
    if facts is None or not isinstance(recipe, DPORecipe) or recipe.label_smoothing != "measured" or not recipe.losses.get("robust"):
        return recipe
    noise = UNMEASURED_NOISE if facts.label_noise is None else facts.label_noise
    proven = min(1.0, facts.pairs_by_tier.get(Tier.VERIFIABLE, 0) / facts.pairs) if facts.pairs else 0.0
    return recipe.model_copy(update={"label_smoothing": min(max(noise * (1 - proven), LEAST_SMOOTHING), MOST_SMOOTHING)})


def complete(kind: type[R], changes: Mapping[str, Any]) -> R:
    """`kind`'s defaults with `changes`. ConfigError for an unknown key (with the nearest known one) or an impossible value."""
    _known(kind, changes, kind.__name__.removesuffix("Recipe"))
    try:
        return kind.model_validate(dict(changes))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the recipe"
        raise ConfigError(
            f"{kind.__name__.removesuffix('Recipe')} recipe: {where}: {first['msg'].removeprefix('Value error, ')}; see trainers/recipes.py"
        ) from error


def _known(kind: type[Frozen], changes: Mapping[str, Any], where: str) -> None:
    nested: dict[str, type[Frozen]] = {"lora": Lora, "health": Health, "nemo": NemoRL, **dict.fromkeys(LIMITS, Limit)}
    for key, value in changes.items():
        if key not in kind.model_fields:
            near = difflib.get_close_matches(key, kind.model_fields, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(kind.model_fields))}"
            raise ConfigError(f"{where} recipe: unknown key {key!r}; {hint}")
        if key in nested and isinstance(value, Mapping):
            _known(nested[key], value, f"{where} {key}")


KINDS: dict[Method, type[Recipe]] = {Method.DPO: DPORecipe, Method.GRPO: GRPORecipe, Method.SFT: SFTRecipe}
