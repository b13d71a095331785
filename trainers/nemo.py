"""GRPO on NVIDIA NeMo RL, seen from outside: a plan becomes a JobSpec, purely.

The recipe is GRPO's own with the section `nemo`; the job runs in the release's container image, on the head of a Ray
cluster that the executor sets up. It loads no ray and no torch, and refuses a recipe whose numbers do not add up before
any machine is asked for. Nothing here has run on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from contracts.data import Facts
from contracts.errors import Permanent
from contracts.ids import digest, job_name
from contracts.training import Attempt, JobSpec, TrainingPlan
from trainers.choose import usable_prompts
from trainers.nemo_arithmetic import Cluster, check, check_prompts
from trainers.nemo_config import Counts, Places, render
from trainers.nemo_keys import PINNED, refuse_unknown, shipped
from trainers.recipes import GRPORecipe, adjusted, complete

COMMAND = ("{python}", "-m", "trainers.inside.wrapper")
BACKEND = "nemo-rl"
"""Value of RATCHET_BACKEND, which the wrapper and the image's choice go by."""
ANYWHERE = Places(base="/base", model="/m", train="/t", validation="/v", checkpoints="/c", logs="/l", plan="/p", journal="/j")


class NemoGRPO:
    """The model's own answers to prompts, scored by the line's scorers for unseen answers, on one or many nodes with GPUs."""

    method: ClassVar[str] = "grpo"

    def recipe(self, changes: Mapping[str, Any], facts: Facts | None = None) -> dict[str, Any]:
        """The complete recipe as JSON data. ConfigError for an unknown key, an impossible value, or fewer prompts than a step takes."""
        recipe = complete(GRPORecipe, changes)
        _ = recipe.fixed_save_every  # the release saves after fixed numbers of steps: auto is refused when it is planned
        if facts is not None:
            prompts = usable_prompts(facts)
            check_prompts(recipe, prompts - min(recipe.nemo.validation_prompts, prompts // 10))
        return recipe.model_dump(mode="json")

    def job(self, plan: TrainingPlan, attempt: Attempt) -> JobSpec:
        """The plan's job, same input, same spec. ConfigError where recipe and cluster do not fit; the message names the remedy."""
        if plan.method != self.method:
            raise Permanent(f"plan {plan.id[:12]} asks for {plan.method!r}, not {self.method!r}; take the trainer of that name")
        if plan.start.parent is not None:
            raise Permanent("the start model is an adapter; merge it into its base and adopt the merged folder")
        recipe = complete(GRPORecipe, plan.recipe)
        cluster = Cluster(attempt.nodes, attempt.gpus)
        as_run = adjusted(recipe, attempt.adjustment)
        check(as_run, cluster)
        config = render(as_run, cluster, ANYWHERE, Counts(train=1, validation=1), plan.seed)
        refuse_unknown(config, shipped(PINNED), f"NeMo RL {PINNED}")
        spec = JobSpec(
            name="",
            plan=plan.id,
            attempt=attempt.number,
            command=COMMAND,
            environment=_environment(recipe, attempt),
            inputs={"model": plan.start.files, "prompts.parquet": plan.prompts},
            plan_json=plan.model_dump_json(),
            grace_seconds=recipe.grace_seconds,
            nodes=attempt.nodes,
            gpus=attempt.gpus,
            cpus=recipe.cpus,
        )
        return spec.model_copy(update={"name": job_name(plan.id, attempt.number, digest(spec))})


def _environment(recipe: GRPORecipe, attempt: Attempt) -> dict[str, str]:
    """Offline, and the limits that the wrapper enforces. Ray hands it on to its workers."""
    return {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "RATCHET_BACKEND": BACKEND,
        "RATCHET_ATTEMPT": str(attempt.number),
        "RATCHET_TIMEOUT": repr(float(attempt.timeout)),
        "RATCHET_GRACE": str(recipe.grace_seconds),
        "RATCHET_NODES": str(attempt.nodes),
        "RATCHET_GPUS": str(attempt.gpus),
        "RATCHET_ADJUSTMENT": attempt.adjustment.model_dump_json(),
    }
