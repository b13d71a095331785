"""Recipe of direct preference optimisation."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ratchet.contracts.errors import ConfigError
from ratchet.trainers.recipes.numbers import NotNegative, Positive, Rate
from ratchet.trainers.recipes.recipe import Recipe

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
    such prompts than prompts with pairs. Demonstrations count only in the `sft` term, so without this term none are taken. NeMo RL takes
    none; there, the default is 0."""
    beta: Rate = 0.1
    """Strength of the penalty for the distance from the start model."""
    label_smoothing: Annotated[float, Field(gt=0, lt=0.5)] | Literal["measured"] = "measured"
    """Assumed share of pairs in the wrong order, used only by `robust`. measured: set at planning time to the share of wrong ratings
    (a fifth if it was not measured) times the share of pairs that no verifiable scorer scored."""
    weigh_pairs: bool = True
    """Samples pairs in proportion to their weight, 1 - 2 * P(order is wrong). false: uniformly."""
    folds: Annotated[int, Field(ge=0, le=10)] = 4
    """Folds of the cross-validation that finds the number of steps if `steps = "auto"` and there are too few development prompts. It needs
    one process, and costs as many runs more as are needed to measure 100 prompts: with 4 folds, one run more from 400 clusters of
    near-duplicates on. 0 or 1: the run then trains for three passes."""
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
