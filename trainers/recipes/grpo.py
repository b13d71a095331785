"""Recipe of group-relative policy optimisation."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ratchet.trainers.recipes.nemo_rl import NemoRL
from ratchet.trainers.recipes.numbers import NotNegative, Positive, Rate
from ratchet.trainers.recipes.recipe import Recipe

GRPO_STEPS = 200
"""Upper limit of the steps of GRPO: each step samples and scores answers, which takes many times as long as a step of SFT."""


class GRPORecipe(Recipe):
    """Recipe of group-relative policy optimisation (GRPO; Shao et al. 2024, arXiv:2402.03300).

    The rewards come from the scorers of the line.
    """

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
    """Number of different prompts per step. If a loop file does not set it, and NeMo RL's ranks do not divide the answers of a step: the
    next number with which they do (trainers/batches.py)."""
    prompt_order: Literal["uniform", "signal"] = "uniform"
    """Order of the prompts of the TRL trainer. uniform: repeated random permutations. signal: prompts with mixed rewards in the probe first
    and more often, prompts whose groups had no signal less often. It raises the share of groups with signal, but not the accuracy on
    unseen questions in the benchmark (docs/trainers.md)."""
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
