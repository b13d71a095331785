"""DPO, SFT and GRPO on TRL: turns a plan into a JobSpec.

The specification names the files and the environment of the job. The training itself is in `ratchet.trainers.job`.
The module is pure, does not load torch and does not depend on the executor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from ratchet.contracts.data.datasets import Facts
from ratchet.contracts.errors import ConfigError
from ratchet.contracts.jobs.training import Attempt, JobSpec, TrainingPlan
from ratchet.runtime.jobs.job_protocol import PROCESSES
from ratchet.runtime.threads import threads_of
from ratchet.trainers.backends.job_spec import check_plan, job_spec
from ratchet.trainers.cross_validation import may_have_folds
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.derived import measured
from ratchet.trainers.recipes.dpo import DPORecipe
from ratchet.trainers.recipes.grpo import GRPORecipe
from ratchet.trainers.recipes.nemo_rl import NemoSharding
from ratchet.trainers.recipes.recipe import Recipe
from ratchet.trainers.recipes.sft import SFTRecipe


class _OnTRL:
    """Common base class of the TRL trainers."""

    method: ClassVar[str]
    """Name of the method."""
    kind: ClassVar[type[Recipe]]
    """Class of its recipe."""
    reads: ClassVar[Literal["pairs", "prompts", "demonstrations"]]
    """File of the training set that it reads."""
    spreads: ClassVar[bool] = False
    """Whether one run can use several processes."""

    def recipe(self, changes: Mapping[str, Any], facts: Facts | None = None) -> dict[str, Any]:
        """Return the complete recipe as JSON data. Raises ConfigError for an unknown key or an invalid value."""
        recipe = complete(self.kind, changes)
        if not isinstance(recipe, GRPORecipe) and recipe.nemo != NemoSharding():
            raise ConfigError(
                f'training.{self.method}.nemo has settings of NeMo RL; set training.{self.method}_on = "nemo-rl", or remove them'
            )
        return measured(recipe, facts).model_dump(mode="json")

    def job(self, plan: TrainingPlan, attempt: Attempt) -> JobSpec:
        """Return the job of the plan, with one process per GPU on every node, or one process without GPUs.

        The same input gives the same specification. Raises ConfigError if the recipe does not fit the resources of the attempt.
        Raises Permanent if the plan is for another method or its start model is an adapter.
        """
        check_plan(plan, self.method)
        recipe = complete(self.kind, plan.recipe)
        self._fits(recipe, attempt)
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if attempt.gpus == 0 else {}
        more = {**hidden, **threads_of(recipe.cpus), **PROCESSES.to_env(max(1, attempt.gpus))}
        reads = self._reads(recipe)
        if recipe.steps == "auto" and plan.development is not None:
            reads = (*reads, "development")
        if plan.cross_validation is not None and may_have_folds(recipe, attempt.nodes, attempt.gpus):
            reads = (*reads, "cross_validation")
        return job_spec(plan, attempt, recipe, reads, more)

    def _reads(self, _recipe: Recipe) -> tuple[str, ...]:
        """Fields of the plan with the training data that the job reads."""
        return (self.reads,)

    def _fits(self, recipe: Recipe, attempt: Attempt) -> None:
        if isinstance(recipe, DPORecipe):
            _ = recipe.smoothing  # raises ConfigError if a measured value is required but missing
        processes = max(1, attempt.gpus) * attempt.nodes
        many = processes > 1
        if many and not self.spreads:
            raise ConfigError(
                f"training.gpus = {attempt.gpus} on {attempt.nodes} nodes: {self.method} on TRL uses at most one GPU; "
                "set training.nodes to 1 and training.gpus to 0 or 1"
            )
        if isinstance(recipe, SFTRecipe) and recipe.batch % processes:
            raise ConfigError(
                f"recipe: batch {recipe.batch} is not a multiple of the {processes} GPUs of the run; "
                f"set batch to {-(-recipe.batch // processes) * processes}, or change training.gpus and training.nodes"
            )
        if recipe.lora and recipe.lora.quantize != "none" and many:
            raise ConfigError(
                "recipe: lora.quantize = nf4 trains on at most one GPU; set training.nodes to 1 and training.gpus to 0 or 1, "
                "or quantize to none"
            )
        if isinstance(recipe, GRPORecipe) and recipe.generation == "vllm" and attempt.gpus == 0:
            raise ConfigError("recipe: generation = vllm needs a GPU; set training.gpus = 1, or generation to auto or plain")


class DPO(_OnTRL):
    """DPO trainer on preference pairs. If the recipe has an SFT term, it also rehearses demonstrations of prompts without a pair."""

    method = "dpo"
    kind = DPORecipe
    reads = "pairs"
    spreads = True

    def _reads(self, recipe: Recipe) -> tuple[str, ...]:
        return ("pairs", "demonstrations") if isinstance(recipe, DPORecipe) and recipe.rehearsed else ("pairs",)


class SFT(_OnTRL):
    """SFT trainer on demonstrations, that is, correct answers."""

    method = "sft"
    kind = SFTRecipe
    reads = "demonstrations"
    spreads = True


class GRPO(_OnTRL):
    """GRPO trainer: samples answers to prompts and scores them with the line's scorers for new answers.

    It uses at most one GPU. With several, the answers are sampled by a sharded model, or by one vLLM per GPU that gets gathered weights at
    each step; neither can be checked without GPUs. NeMo RL trains GRPO on several GPUs.
    """

    method = "grpo"
    kind = GRPORecipe
    reads = "prompts"

    def recipe(self, changes: Mapping[str, Any], facts: Facts | None = None) -> dict[str, Any]:
        """Return the complete recipe as JSON data. Raises ConfigError also for settings of NeMo RL, which TRL does not have."""
        found = super().recipe(changes, facts)
        if found["nemo"]["overrides"]:
            raise ConfigError('training.grpo.nemo.overrides are settings of NeMo RL; set training.grpo_on = "nemo-rl", or remove them')
        return found
