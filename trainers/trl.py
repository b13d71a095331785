"""DPO and GRPO on TRL, seen from outside: a plan becomes a JobSpec, purely.

This module knows which files a job needs and which environment; it loads no torch and refuses to know how training is
done (`trainers.inside`) and where jobs run (executors).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from contracts.errors import ConfigError, Permanent
from contracts.ids import digest, job_name
from contracts.training import JobSpec, TrainingPlan
from trainers.recipes import DPORecipe, GRPORecipe, Recipe, complete

COMMAND = ("{python}", "-m", "trainers.inside.wrapper")


class _OnTRL:
    """What both methods share."""

    method: ClassVar[str]
    kind: ClassVar[type[Recipe]]
    reads: ClassVar[Literal["pairs", "prompts"]]

    def recipe(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The complete recipe as JSON data. ConfigError for an unknown key or an impossible value."""
        return complete(self.kind, changes).model_dump(mode="json")

    def job(self, plan: TrainingPlan, attempt: int, timeout: float, gpus: int) -> JobSpec:
        """The plan's job, same input, same spec. `timeout`: seconds of the whole attempt. One process: at most one GPU."""
        if plan.method != self.method:
            raise Permanent(f"plan {plan.id[:12]} asks for {plan.method!r}, not {self.method!r}; take the trainer of that name")
        if plan.start.parent is not None:
            raise Permanent("the start model is an adapter; merge it into its base and adopt the merged folder")
        if gpus > 1:
            raise ConfigError(f"training.gpus = {gpus}: this trainer is one process and uses at most one GPU; set 0 or 1")
        recipe = complete(self.kind, plan.recipe)
        spec = JobSpec(
            name="",
            plan=plan.id,
            attempt=attempt,
            command=COMMAND,
            environment=_environment(recipe, attempt, timeout, gpus),
            inputs={"model": plan.start.files, f"{self.reads}.parquet": getattr(plan, self.reads)},
            plan_json=plan.model_dump_json(),
            grace_seconds=recipe.grace_seconds,
            gpus=gpus,
            cpus=recipe.cpus,
        )
        return spec.model_copy(update={"name": job_name(plan.id, attempt, digest(spec))})


class DPO(_OnTRL):
    """Preference pairs; with an SFT share unless the recipe says otherwise."""

    method = "dpo"
    kind = DPORecipe
    reads = "pairs"


class GRPO(_OnTRL):
    """The model's own answers to prompts, scored by the line's scorers for unseen answers."""

    method = "grpo"
    kind = GRPORecipe
    reads = "prompts"


def _environment(recipe: Recipe, attempt: int, timeout: float, gpus: int) -> dict[str, str]:
    """Offline, so many threads, and the limits that the wrapper enforces."""
    threads = str(recipe.cpus)
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if gpus == 0 else {}
    return hidden | {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "RATCHET_ATTEMPT": str(attempt),
        "RATCHET_TIMEOUT": repr(float(timeout)),
        "RATCHET_GRACE": str(recipe.grace_seconds),
        "RATCHET_GPUS": str(gpus),
    }
