"""DPO, SFT and GRPO on TRL: turns a plan into a JobSpec.

The specification names the files and the environment of the job. The training itself is in `trainers.job`.
The module is pure, does not load torch and does not depend on the executor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from contracts.data import Facts
from contracts.errors import ConfigError, Permanent
from contracts.ids import digest, job_name
from contracts.training import Attempt, JobSpec, TrainingPlan
from runtime.threads import threads_of
from trainers.recipes import DPORecipe, GRPORecipe, Recipe, SFTRecipe, complete, measured

COMMAND = ("{python}", "-m", "trainers.job.supervisor")


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
        return measured(complete(self.kind, changes), facts).model_dump(mode="json")

    def job(self, plan: TrainingPlan, attempt: Attempt) -> JobSpec:
        """Return the job of the plan, with one process per GPU on every node, or one process without GPUs.

        The same input gives the same specification. Raises ConfigError if the recipe does not fit the resources of the attempt.
        Raises Permanent if the plan is for another method or its start model is an adapter.
        """
        if plan.method != self.method:
            raise Permanent(f"plan {plan.id[:12]} asks for {plan.method!r}, not {self.method!r}; use the trainer for that method")
        if plan.start.parent is not None:
            raise Permanent("the start model is an adapter; merge it into its base model and adopt the merged folder")
        recipe = complete(self.kind, plan.recipe)
        self._fits(recipe, attempt)
        spec = JobSpec(
            name="",
            plan=plan.id,
            attempt=attempt.number,
            command=COMMAND,
            environment=_environment(recipe, attempt),
            inputs={"model": plan.start.files} | {f"{kind}.parquet": getattr(plan, kind) for kind in self._reads(recipe)},
            plan_json=plan.model_dump_json(),
            grace_seconds=recipe.grace_seconds,
            nodes=attempt.nodes,
            gpus=attempt.gpus,
            cpus=recipe.cpus,
        )
        return spec.model_copy(update={"name": job_name(plan.id, attempt.number, digest(spec))})

    def _reads(self, _recipe: Recipe) -> tuple[str, ...]:
        """Files of the training set that the job needs, without their extension."""
        return (self.reads,)

    def _fits(self, recipe: Recipe, attempt: Attempt) -> None:
        if isinstance(recipe, DPORecipe):
            _ = recipe.smoothing  # raises ConfigError if a measured value is required but missing
        many = max(1, attempt.gpus) * attempt.nodes > 1
        if many and not self.spreads:
            raise ConfigError(
                f"training.gpus = {attempt.gpus} on {attempt.nodes} nodes: {self.method} on TRL uses at most one GPU; "
                "set training.nodes to 1 and training.gpus to 0 or 1"
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


class GRPO(_OnTRL):
    """GRPO trainer: samples answers to prompts and scores them with the line's scorers for new answers."""

    method = "grpo"
    kind = GRPORecipe
    reads = "prompts"


def _environment(recipe: Recipe, attempt: Attempt) -> dict[str, str]:
    """Environment of the job: offline mode, the number of threads, and the limits that the supervisor enforces."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if attempt.gpus == 0 else {}
    return hidden | {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **threads_of(recipe.cpus),
        "RATCHET_ATTEMPT": str(attempt.number),
        "RATCHET_TIMEOUT": repr(float(attempt.timeout)),
        "RATCHET_GRACE": str(recipe.grace_seconds),
        "RATCHET_GPUS": str(attempt.gpus),
        "RATCHET_NODES": str(attempt.nodes),
        "RATCHET_PROCESSES": str(max(1, attempt.gpus)),
        "RATCHET_ADJUSTMENT": attempt.adjustment.model_dump_json(),
    }
