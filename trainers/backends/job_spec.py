"""The part of a JobSpec that is the same for all trainer backends: command, start model, environment, resources and name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ratchet.contracts.errors import Permanent
from ratchet.contracts.ids import digest, job_name
from ratchet.contracts.jobs.training import Attempt, JobSpec, TrainingPlan
from ratchet.runtime.jobs.job_protocol import SUPERVISOR, RunFile, attempt_environment
from ratchet.trainers.recipes.recipe import Recipe

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Settings of the libraries: no downloads, and no threads of the tokenizer, which would compete with the trainer."""


def check_plan(plan: TrainingPlan, method: str) -> None:
    """Raise Permanent if the plan is for another method than `method`, or if its start model is an adapter."""
    if plan.method != method:
        raise Permanent(f"plan {plan.id[:12]} asks for {plan.method!r}, not {method!r}; use the trainer for that method")
    if plan.start.parent is not None:
        raise Permanent("the start model is an adapter; merge it into its base model and adopt the merged folder")


def job_spec(plan: TrainingPlan, attempt: Attempt, recipe: Recipe, kinds: Iterable[str], environment: Mapping[str, str]) -> JobSpec:
    """Return the job of an attempt at a plan. The same input gives the same specification.

    `kinds` are the fields of the plan with the training data that the job reads: `pairs`, `prompts`, `demonstrations`. `environment`
    holds the variables that only this backend sets.
    """
    data = {str(RunFile[kind.upper()]): getattr(plan, kind) for kind in kinds}
    spec = JobSpec(
        name="",
        plan=plan.id,
        attempt=attempt.number,
        command=SUPERVISOR,
        environment={**OFFLINE, **attempt_environment(attempt, recipe.grace_seconds), **environment},
        inputs={RunFile.MODEL.value: plan.start.files, **data},
        plan_json=plan.model_dump_json(),
        grace_seconds=recipe.grace_seconds,
        nodes=attempt.nodes,
        gpus=attempt.gpus,
        cpus=recipe.cpus,
    )
    return spec.model_copy(update={"name": job_name(plan.id, attempt.number, digest(spec))})
