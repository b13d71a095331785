"""Recipe of supervised fine-tuning."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from ratchet.trainers.recipes.numbers import Positive
from ratchet.trainers.recipes.recipe import Recipe


class SFTRecipe(Recipe):
    """Recipe of supervised fine-tuning (SFT) on correct answers.

    These are users' corrections and the line's own answers that were scored as correct (rejection sampling fine-tuning, RFT:
    Yuan et al. 2023, arXiv:2308.01825). The loss covers only the tokens of the answer.
    """

    weigh: bool = True
    """Samples answers in proportion to their weight, 1 - 2 * P(answer is wrong). false: uniformly."""
    folds: Annotated[int, Field(ge=0, le=10)] = 4
    """Folds of the cross-validation that finds the number of steps if `steps = "auto"` and there are too few development prompts. It needs
    one process, and costs as many runs more as are needed to measure 100 prompts: with 4 folds, one run more from 400 clusters of
    near-duplicates on. If there are enough answers of teachers, one run more decides which of them are left out (docs/trainers.md). 0 or
    1: the run trains for three passes, and on all answers of teachers."""
    batch: Positive = 32
    """Answers per step, a multiple of micro_batch. If a loop file does not set it and the processes of the run do not divide 32: the next
    multiple that they divide (trainers/batches.py)."""
    max_length: Positive = 1024
    """Maximum tokens of prompt and answer together. Longer rows are truncated; rows whose prompt alone is too long are dropped."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.batch % self.micro_batch:
            raise ValueError(f"batch {self.batch} is not a multiple of micro_batch {self.micro_batch}")
        return self
