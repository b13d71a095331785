"""GRPO on NVIDIA NeMo RL: turns a plan into a JobSpec.

The recipe is the GRPO recipe with its section `nemo`. The job runs in the container image of the NeMo RL release, on the head of
a Ray cluster that the executor sets up. An inconsistent recipe is rejected before any machine is requested.
The module is pure and does not load ray or torch. The trainer has not been run on GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ratchet.contracts.data.datasets import Facts
from ratchet.contracts.jobs.training import Attempt, JobSpec, TrainingPlan
from ratchet.runtime.jobs.job_protocol import BACKEND, TrainerBackend
from ratchet.trainers.backends.job_spec import check_plan, job_spec
from ratchet.trainers.backends.nemo.arithmetic import ClusterShape, check_arithmetic, check_prompts
from ratchet.trainers.backends.nemo.config import Places, RunCounts, render_config
from ratchet.trainers.backends.nemo.keys import PINNED, refuse_unknown, shipped
from ratchet.trainers.backends.nemo.overrides import refuse_overrides, unproven, with_overrides
from ratchet.trainers.choose import usable_prompts
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.derived import adjusted, measured
from ratchet.trainers.recipes.grpo import GRPORecipe

ANYWHERE = Places(base="/base", model="/m", train="/t", validation="/v", checkpoints="/c", logs="/l", plan="/p", journal="/j")
"""Placeholder paths to check the keys of a configuration at planning time."""


class NemoGRPO:
    """GRPO trainer on NeMo RL for one or several GPU nodes.

    The model samples answers to the prompts, and the line's scorers for new answers give the rewards.
    """

    method: ClassVar[str] = "grpo"

    def recipe(self, changes: Mapping[str, Any], facts: Facts | None = None) -> dict[str, Any]:
        """Return the complete recipe as JSON data.

        Raises ConfigError for an unknown key, an invalid value, or fewer prompts than one step needs.
        """
        recipe = measured(complete(GRPORecipe, changes), facts)
        if facts is not None:
            prompts = usable_prompts(facts)
            check_prompts(recipe, prompts - min(recipe.nemo.validation_prompts, prompts // 10))
        return recipe.model_dump(mode="json")

    def job(self, plan: TrainingPlan, attempt: Attempt) -> JobSpec:
        """Return the job of the plan. The same input gives the same specification.

        Raises ConfigError if the recipe does not fit the cluster; the message names the remedy. Raises Permanent if the plan is for
        another method or its start model is an adapter.
        """
        check_plan(plan, self.method)
        recipe = complete(GRPORecipe, plan.recipe)
        cluster = ClusterShape(attempt.nodes, attempt.gpus)
        as_run = adjusted(recipe, attempt.adjustment)
        check_arithmetic(as_run, cluster)
        config = render_config(as_run, cluster, ANYWHERE, RunCounts(train=1, validation=1), plan.seed)
        refuse_overrides(recipe.nemo.overrides, config)
        config = with_overrides(config, recipe.nemo.overrides)
        refuse_unknown(config, shipped(PINNED), f"NeMo RL {PINNED}")
        reads = ("prompts",) if plan.development is None else ("prompts", "development")
        return job_spec(plan, attempt, recipe, reads, BACKEND.to_env(TrainerBackend.NEMO_RL))  # Ray passes it on to its workers

    def cautions(self, plan: TrainingPlan) -> tuple[str, ...]:
        """Return what was never proven of a plan, for the people who approve it."""
        found = unproven(complete(GRPORecipe, plan.recipe).nemo.overrides)
        return (found,) if found else ()
