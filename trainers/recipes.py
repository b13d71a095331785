"""Training recipes: all settings of a training run, with their meaning, range and default.

A recipe is complete, so that no setting depends on the defaults of a library version. The module is independent of the training
library; `trainers.job` translates the settings.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from contracts.data.datasets import UNMEASURED_NOISE, Facts
from contracts.data.records import Tier
from contracts.errors import ConfigError
from contracts.jobs.training import Adjustment, Method
from contracts.model import Frozen
from trainers.length import LEAST_STEPS, most_steps
from trainers.nemo_recipe import NemoRL
from trainers.save_interval import fixed_interval

Positive = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class Numbers(Frozen):
    """Base class of settings. Rejects NaN and infinite numbers, and booleans in fields that are not boolean."""

    model_config = ConfigDict(allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch(cls, value: Any, info: ValidationInfo) -> Any:
        """Reject booleans in other fields. Pydantic would convert True to 1."""
        if isinstance(value, bool) and cls.model_fields[str(info.field_name)].annotation is not bool:
            raise ValueError(f"must not be a boolean, found {str(value).lower()}")
        return value


class Lora(Numbers):
    """Low-rank adapter that is trained instead of all weights (Hu et al. 2021, arXiv:2106.09685).

    It is merged into the weights of the published model.
    """

    rank: Positive = 16
    """Rank r: inner dimension of the adapter."""
    alpha: Rate = 32.0
    """Scaling: the output of the adapter is multiplied by alpha / rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout probability on the input of the adapter."""
    targets: str | tuple[str, ...] = "all-linear"
    """Names of the modules with an adapter. all-linear: every linear layer except the output head."""
    quantize: Literal["none", "nf4"] = "none"
    """nf4: loads the start model in 4 bits to train its adapter (QLoRA, arXiv:2305.14314). Requires bitsandbytes (extra `qlora`).
    The adapter is merged into the original weights, not into the quantized ones."""

    @field_validator("targets")
    @classmethod
    def _named(cls, targets: str | tuple[str, ...]) -> str | tuple[str, ...]:
        names = [targets] if isinstance(targets, str) else list(targets)
        if not names or not all(name.strip() for name in names):
            raise ValueError(f"must be a list of module names or 'all-linear'; found {targets!r}")
        return targets


Action = Literal["off", "note", "adjust", "stop"]
"""Action of a health rule.

off: the rule is not evaluated. note: one warning. adjust: the attempt ends, and the next attempt resumes from the last good step with
the remedy of the rule, once per rule and plan. stop: the attempt ends, and a further attempt starts from the beginning."""


class Limit(Numbers):
    """Limit of a health rule, and the action beyond it."""

    limit: float
    """Limit in the unit of the rule."""
    patience: Positive
    """Number of consecutive steps beyond the limit before the action is taken."""
    action: Action
    """Action after `patience` steps."""


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
"""Default limits for models with billions of weights. Tiny models need wider limits because their learning rates are larger."""


class Health(Numbers):
    """Limits of the health rules in trainers/health.py. If only a part of a rule is given, the rest keeps its default."""

    not_finite: Action = "adjust"
    """Loss or gradient norm is NaN or infinite; applies immediately. Adjusts: half the learning rate."""
    kl: Limit = LIMITS["kl"]
    """Mean KL divergence to the start model, in nats per token (only GRPO with beta > 0). Adjusts: twice the KL penalty (beta)."""
    grad_norm: Limit = LIMITS["grad_norm"]
    """Gradient norm before clipping. Adjusts: half the learning rate. After one adjustment, it is only noted."""
    chosen_fall: Limit = LIMITS["chosen_fall"]
    """Decrease of the chosen answers' log-probability relative to the start model, in nats per answer (DPO). Adjusts: twice beta."""
    loss_spike: Limit = LIMITS["loss_spike"]
    """Loss above the median of the 20 preceding steps, in robust standard deviations. Adjusts: half the learning rate."""
    reward_falls: Limit = LIMITS["reward_falls"]
    """Decrease of the mean reward of 10 steps from the best such mean (GRPO; rewards are in [0, 1]). The effective limit is at least the
    decrease expected by chance from the variation between steps, which is larger for steps with few prompts.
    Adjusts: half the learning rate."""
    reward_flat: Limit = LIMITS["reward_flat"]
    """Increase of the mean reward of 10 steps over that of the first 10 steps is below the limit (GRPO). Adjusts: twice beta."""
    entropy_collapse: Limit = LIMITS["entropy_collapse"]
    """Token entropy of the answers, as a share of that of the first steps, is below the limit. The default action is `note`, because a
    model that has learnt a unique correct answer shows the same figures. Adjusts: twice beta."""
    length_grows: Limit = LIMITS["length_grows"]
    """Mean tokens per answer, relative to the first steps. The gate rejects candidates with much longer answers. Adjusts: twice beta."""
    generation_slow: Limit = LIMITS["generation_slow"]
    """Time of generation (or of a whole step), relative to the first steps. Changes no setting: resumes from the last good step."""
    memory: Action = "adjust"
    """Out of memory. Adjusts: half the rows in memory and half the GPU memory for generation. With `note` and `off`, the attempt fails."""
    stall: Action = "adjust"
    """No event for too long. Changes no setting: resumes from the last good step. With `note` and `off`, stalls are not detected."""
    stall_seconds: Rate = 1800.0
    """Maximum time in seconds without an event (step or checkpoint). It includes loading the model. Saving has its own limit."""
    stall_times: Rate = 30.0
    """Once the times of three steps are known, the maximum time is also limited to this multiple of the median step time."""
    stall_least_seconds: Rate = 300.0
    """Lower limit, in seconds, of the time derived from `stall_times`."""
    save_seconds: Rate = 7200.0
    """Maximum time, in seconds, to write the first checkpoint or the finished model, or to measure the model. No step is expected then.
    A later checkpoint may take `stall_times` times the longest earlier one, at least `stall_least_seconds` and at most this value."""

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
    """Settings that all training methods share."""

    learning_rate: Rate | Literal["auto"] = "auto"
    """Peak learning rate of AdamW. auto: from the width of the start model (`typical_rate`). Typical values: 5e-7 to 2e-5 for all weights
    of a model with billions of weights, ten times that for LoRA, and 1e-4 to 5e-4 for a tiny model."""
    rate_scale: Rate = 1.0
    """Factor on the peak learning rate. A search over recipes tries several."""
    schedule: Literal["cosine", "linear", "constant", "constant_with_warmup"] = "cosine"
    """Learning rate schedule after the warm-up. With `steps = "auto"`, the rate is constant, and falls to 0 at the end."""
    warmup_steps: int = Field(default=10, ge=0)
    """Number of warm-up steps with a linear increase to the peak."""
    weight_decay: NotNegative = 0.0
    """Decoupled weight decay of AdamW."""
    max_grad_norm: Rate = 1.0
    """Maximum gradient norm; larger gradients are clipped to it."""
    steps: Positive | Literal["auto"] = "auto"
    """Number of optimiser steps of the whole run. auto: the job measures the model on the line's development prompts after steps that
    double each time, ends once the scores no longer rise, and publishes the best model (trainers/length.py). With too
    few development prompts, `folds` applies."""
    most_steps: Positive | Literal["auto"] = "auto"
    """Maximum number of steps with `steps = "auto"`. auto: set at planning time to four passes over the training set, at least 1,000."""
    micro_batch: Positive = 4
    """Rows in memory at a time. Their gradients are accumulated to a full step."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """Number format of the arithmetic. Weights and optimiser state are always float32. auto: bf16 on a GPU, float32 on a CPU."""
    gradient_checkpointing: bool = True
    """Recomputes activations in the backward pass to save memory. Training is about a fifth slower."""
    cpus: Positive = 1
    """Number of arithmetic threads. It influences the order of summation, so an exact resume requires the same number."""
    save_every: Positive | Literal["auto"] = 20
    """Steps between checkpoints, which is the maximum loss if a machine fails. auto: the job computes the interval from the measured times
    of a save and a step and from `interruption_hours` (trainers/save_interval.py). NeMo RL cannot change the interval during an
    incarnation; there, auto is 10 steps at first, and each further incarnation computes it from the measurements of the earlier ones."""
    interruption_hours: Rate = 24.0
    """Expected hours between interruptions (preemptions, lost machines), for save_every = auto. Observed interruptions refine it."""
    keep_checkpoints: Annotated[int, Field(ge=2)] = 3
    """Number of newest checkpoints kept per incarnation. The checkpoint to resume from is kept in addition."""
    grace_seconds: Positive = 110
    """Seconds from SIGTERM to SIGKILL. They must cover one step and one checkpoint. The default fits within the 120 s notice before
    clouds reclaim a spot machine."""
    lora: Lora | None = None
    """Adapter to train. None: all weights are trained."""
    health: Health = Health()
    """Health rules that adjust or stop a failing run."""

    @property
    def rate(self) -> float:
        """The peak learning rate. Raises ConfigError if it is still `auto`, because only a job knows its start model."""
        if self.learning_rate == "auto":
            raise ConfigError('learning_rate = "auto" is set by the job; set it to a number')
        return self.learning_rate

    @property
    def last_step(self) -> int:
        """Maximum number of optimiser steps of the run."""
        if self.steps != "auto":
            return self.steps
        return LEAST_STEPS if self.most_steps == "auto" else self.most_steps


Loss = Literal["sigmoid", "robust", "hinge", "ipo", "apo_zero", "apo_down", "sft"]


def _mixed() -> dict[Loss, float]:
    return {"sigmoid": 1.0, "sft": 1.0}


class DPORecipe(Recipe):
    """Recipe of direct preference optimisation (DPO; Rafailov et al. 2023, arXiv:2305.18290).

    By default it includes an SFT term on the chosen answers and on correct answers to prompts without a pair.
    """

    losses: dict[Loss, NotNegative] = Field(default_factory=_mixed)
    """Loss terms and their weights. sigmoid: DPO. robust: DPO with noisy labels (arXiv:2403.00409); requires weigh_pairs = false.
    sft: negative log-likelihood of the chosen answers and the rehearsed demonstrations. It stabilises training on off-policy answers."""
    rehearsal: NotNegative = 1.0
    """Maximum number of demonstrations per pair that a step takes in addition to its `batch` pairs. 0: no demonstrations.
    They belong to prompts without a pair, whose correct answers the model would otherwise forget. The number is lower if there are fewer
    such prompts than prompts with pairs. Demonstrations count only in the `sft` term, so without this term none are taken."""
    beta: Rate = 0.1
    """Strength of the penalty for the distance from the start model."""
    label_smoothing: Annotated[float, Field(gt=0, lt=0.5)] | Literal["measured"] = "measured"
    """Assumed share of pairs in the wrong order, used only by `robust`. measured: set at planning time to the share of wrong ratings
    (a fifth if it was not measured) times the share of pairs that no verifiable scorer scored."""
    weigh_pairs: bool = True
    """Samples pairs in proportion to their weight, 1 - 2 * P(order is wrong). false: uniformly."""
    folds: Annotated[int, Field(ge=0, le=10)] = 4
    """Folds of the cross-validation that finds the number of steps if `steps = "auto"` and there are too few development prompts. It costs
    as many runs more, and needs one process. 0 or 1: the run then trains for three passes."""
    batch: Positive = 32
    """Pairs per step, a multiple of micro_batch."""
    micro_tokens: int = Field(default=0, ge=0)
    """Tokens in memory at a time, with padding. 0: the tokens of micro_batch pairs of max_length, so that more short pairs fit."""
    max_length: Positive = 1024
    """Maximum tokens of prompt and answer together. Longer rows are truncated; rows whose prompt alone is too long are dropped."""

    @property
    def budget(self) -> int:
        """Token budget of a micro-batch, with padding."""
        return self.micro_tokens or 2 * self.micro_batch * self.max_length

    @property
    def rehearsed(self) -> int:
        """Maximum number of rehearsed demonstrations per step."""
        return math.ceil(self.rehearsal * self.batch) if self.losses.get("sft") else 0

    @property
    def smoothing(self) -> float:
        """Share of pairs in the wrong order that the loss assumes; 0 without `robust`.

        Raises ConfigError if it is still `measured`.
        """
        if not self.losses.get("robust"):
            return 0.0
        if self.label_smoothing == "measured":
            raise ConfigError("DPO recipe: label_smoothing = measured, but this plan has no measured value; set it to a number")
        return self.label_smoothing

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not any(weight > 0 for weight in self.losses.values()):
            raise ValueError("losses: at least one weight must be positive")
        if self.losses.get("robust") and self.weigh_pairs:
            raise ValueError("losses: `robust` and weigh_pairs both correct for wrong ratings; set weigh_pairs = false, or use `sigmoid`")
        if self.batch % self.micro_batch:
            raise ValueError(f"batch {self.batch} is not a multiple of micro_batch {self.micro_batch}")
        return self


class GRPORecipe(Recipe):
    """Recipe of group-relative policy optimisation (GRPO; Shao et al. 2024, arXiv:2402.03300).

    The rewards come from the scorers of the line.
    """

    learning_rate: Rate = 1e-6
    """Peak learning rate of AdamW. Typical values: 5e-7 to 5e-6 for all weights of a model with billions of weights, ten times that for
    LoRA, and 1e-4 to 5e-4 for a tiny model."""
    steps: Positive | Literal["auto"] = "auto"
    """Number of optimiser steps of the whole run. auto: as for SFT and DPO, at most 200 steps unless `most_steps` says more. On NeMo RL,
    the validation of the release measures the run, every `nemo.validate_every` steps, and the rate does not fall at the end. Where nothing
    can be measured, NeMo RL takes all steps, with the schedule."""
    loss: Literal["dapo", "grpo", "dr_grpo", "bnpo"] = "dapo"
    """Averaging of the token losses. dapo: over all tokens of the step (arXiv:2503.14476)."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Scope of the standard deviation by which the advantages are divided. none: they are not divided."""
    beta: NotNegative = 0.04
    """Weight of the KL divergence to the start model. 0: no reference model in memory, and the KL limit is not checked."""
    prompts_per_step: Positive = 8
    """Number of different prompts per step."""
    generations: Annotated[int, Field(ge=2)] = 8
    """Answers per prompt, which form a group."""
    max_completion: Positive = 256
    """Maximum tokens of an answer."""
    temperature: Rate = 1.0
    """Sampling temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Probability mass of nucleus sampling."""
    top_k: int = Field(default=0, ge=0)
    """Number of most probable tokens to sample from. 0: all tokens."""
    clip_low: NotNegative = 0.2
    """Lower clipping range: a token's probability ratio to the sampling model is clipped at 1 - clip_low (PPO, arXiv:1707.06347)."""
    clip_high: NotNegative = 0.2
    """Upper clipping range: the ratio is clipped at 1 + clip_high. DAPO uses 0.28."""
    generation: Literal["auto", "plain", "vllm"] = "auto"
    """Sampling engine of the TRL trainer. plain: the model's own generate method. vllm: vLLM on the same GPU as the training (colocated).
    auto: vllm on a GPU if it is installed, otherwise plain."""
    vllm_memory: Annotated[float, Field(gt=0, lt=1)] = 0.3
    """Share of the GPU's memory for vLLM."""
    generation_batch: int = Field(default=0, ge=0)
    """Answers that TRL samples at a time: a multiple of generations and of micro_batch that divides the step. 0: all answers of a step."""
    nemo: NemoRL = NemoRL()
    """Settings of the NeMo RL trainer."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.answers % self.micro_batch:
            raise ValueError(f"prompts_per_step * generations = {self.answers} is not a multiple of micro_batch {self.micro_batch}")
        if (at_once := self.generation_batch) and at_once not in (fitting := self._batches()):
            raise ValueError(f"generation_batch {at_once} does not fit the step; set it to 0 or to one of {', '.join(map(str, fitting))}")
        return self

    @property
    def answers(self) -> int:
        """Number of answers per step."""
        return self.prompts_per_step * self.generations

    @property
    def sampled_at_once(self) -> int:
        """Number of answers that are sampled at a time."""
        return self.generation_batch or self.answers

    @property
    def last_step(self) -> int:
        """Maximum number of optimiser steps of the run."""
        return GRPO_STEPS if self.steps == self.most_steps == "auto" else super().last_step

    @property
    def fixed_save_every(self) -> int:
        """Steps between checkpoints of an incarnation on NeMo RL; for `auto`, those of the first one."""
        return self.save_every if self.save_every != "auto" else fixed_interval((), (), 1.0, self.validated_every)

    @property
    def validated_every(self) -> int:
        """Steps of which the interval between checkpoints is a multiple, so that every checkpoint has a validation reward."""
        return self.nemo.validate_every or 1

    def at_most(self, answers: int) -> int:
        """Return the largest valid generation_batch of at most `answers`, or the smallest valid one if all are larger."""
        return max((n for n in self._batches() if n <= answers), default=self._batches()[0])

    def _batches(self) -> list[int]:
        """Valid values of generation_batch in ascending order: complete groups and micro-batches that divide the step."""
        least = math.lcm(self.generations, self.micro_batch)
        return [n for n in range(least, self.answers + 1, least) if self.answers % n == 0]


class SFTRecipe(Recipe):
    """Recipe of supervised fine-tuning (SFT) on correct answers.

    These are users' corrections and the line's own answers that were scored as correct (rejection sampling fine-tuning, RFT:
    Yuan et al. 2023, arXiv:2308.01825). The loss covers only the tokens of the answer.
    """

    weigh: bool = True
    """Samples answers in proportion to their weight, 1 - 2 * P(answer is wrong). false: uniformly."""
    folds: Annotated[int, Field(ge=0, le=10)] = 4
    """Folds of the cross-validation that finds the number of steps if `steps = "auto"` and there are too few development prompts. It costs
    as many runs more, and needs one process. 0 or 1: the run then trains for three passes."""
    batch: Positive = 32
    """Answers per step, a multiple of micro_batch."""
    max_length: Positive = 1024
    """Maximum tokens of prompt and answer together. Longer rows are truncated; rows whose prompt alone is too long are dropped."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.batch % self.micro_batch:
            raise ValueError(f"batch {self.batch} is not a multiple of micro_batch {self.micro_batch}")
        return self


R = TypeVar("R", bound=Recipe)


WIDTH, RATE, POWER = 2000, 5e-5, 0.775
"""Rate for all weights of a model of a width, and the power by which it falls with the width: the fit of LoRA Without Regret
(Schulman et al. 2025, thinkingmachines.ai/blog/lora) over SFT of 14 models."""
LORA_FACTOR = 10.0
"""Best rate of an adapter, relative to that of all weights (same source)."""
PREFERENCE_FACTOR = 0.25
"""Rate of DPO, relative to that of SFT: DPO moves the weights further for the same rate, and `losses` mixes it with SFT."""


def typical_rate(recipe: Recipe, width: int) -> float:
    """Return the learning rate of a recipe that does not name it, for a model with hidden states of `width` numbers.

    Examples for SFT: 4e-4 for a width of 128; 2.9e-5 for 4096, or 2.9e-4 with LoRA. How long the rate is applied matters more than its
    exact value, and `steps = "auto"` measures that.
    """
    rate: float = RATE * (WIDTH / width) ** POWER
    return rate * (LORA_FACTOR if recipe.lora else 1.0) * (PREFERENCE_FACTOR if isinstance(recipe, DPORecipe) else 1.0)


def adjusted(recipe: R, adjustment: Adjustment) -> R:
    """Return the recipe with the adjustment of an attempt: learning rate, beta, and the rows and answers in memory.

    The number of steps, the batch size and the data do not change.
    """
    changes: dict[str, Any] = {"learning_rate": recipe.rate * recipe.rate_scale * adjustment.learning_rate, "rate_scale": 1.0}
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


GRPO_STEPS = 200
"""Upper limit of the steps of GRPO: each step samples and scores answers, which takes many times as long as a step of SFT."""


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


def complete(kind: type[R], changes: Mapping[str, Any]) -> R:
    """Return the recipe of `kind` with its defaults and `changes`.

    Raises ConfigError for an unknown key, with the most similar known key, or for an invalid value.
    """
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
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(kind.model_fields))}"
            raise ConfigError(f"{where} recipe: unknown key {key!r}; {hint}")
        if key in nested and isinstance(value, Mapping):
            _known(nested[key], value, f"{where} {key}")


KINDS: dict[Method, type[Recipe]] = {Method.DPO: DPORecipe, Method.GRPO: GRPORecipe, Method.SFT: SFTRecipe}
"""Recipe class of each method."""
