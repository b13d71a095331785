"""Settings that the recipes of all methods share."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import Field, field_validator

from ratchet.contracts.errors import ConfigError
from ratchet.trainers.length import LEAST_STEPS
from ratchet.trainers.recipes.health_limits import Health
from ratchet.trainers.recipes.nemo_rl import NemoSharding
from ratchet.trainers.recipes.numbers import NotNegative, Numbers, Positive, Rate
from ratchet.trainers.save_interval import fixed_interval


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
    nemo: NemoSharding = NemoSharding()
    """Settings of the NeMo RL trainer."""

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

    @property
    def validated_every(self) -> int:
        """Steps of which the interval between checkpoints of an incarnation on NeMo RL is a multiple."""
        return 1

    @property
    def fixed_save_every(self) -> int:
        """Steps between checkpoints of an incarnation on NeMo RL; for `auto`, those of the first one."""
        return self.save_every if self.save_every != "auto" else fixed_interval((), (), 1.0, self.validated_every)


R = TypeVar("R", bound=Recipe)
