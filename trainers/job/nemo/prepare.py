"""Preparation of a run: writes its data files and its configuration, checked against the release in this container."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import ConfigError, Permanent
from ratchet.contracts.jobs.training import LeftOut, TrainingPlan
from ratchet.contracts.model import refuse_custom_code
from ratchet.runtime.jobs.job_protocol import NODES, TIMEOUT, RunFile
from ratchet.trainers.backends.nemo.arithmetic import ClusterShape, check_arithmetic, check_prompts, validate_every
from ratchet.trainers.backends.nemo.config import Places, RunCounts, render_config
from ratchet.trainers.backends.nemo.keys import refuse_unknown
from ratchet.trainers.backends.nemo.overrides import with_overrides
from ratchet.trainers.job.job_folder import Job
from ratchet.trainers.job.left_out import leave_out
from ratchet.trainers.job.model_fit import recipe_problems
from ratchet.trainers.job.nemo import data, release
from ratchet.trainers.job.prompt_length import Length, prompt_length
from ratchet.trainers.length import LEAST
from ratchet.trainers.recipes.grpo import GRPORecipe
from ratchet.trainers.recipes.recipe import Recipe

CHECKPOINTS, JOURNAL = "checkpoints", "rewards.jsonl"
"""Names in the work folder of the run: the folder for checkpoints, and the journal of the reward environment."""


def prepare(job: Job, recipe: GRPORecipe, found: release.Release, work: Path) -> tuple[Path, GRPORecipe, list[data.Row]]:
    """Write the data files and the configuration to `work`.

    Return the path of the configuration, the recipe as it runs, and the development prompts that validation uses. Without enough of them,
    the list is empty, and a recipe with an open end runs all its steps, with its schedule.
    Raises Permanent or ConfigError if the prompts, the recipe, the cluster and the release `found` do not fit together. The message
    names the remedy.
    """
    cluster = ClusterShape(NODES.get(os.environ), job.gpus)
    counts, validated = _data(job, recipe, cluster, work)
    if recipe.steps == "auto" and not validated:
        recipe = recipe.model_copy(update={"steps": recipe.last_step})
    check_arithmetic(recipe, cluster, counts.train)
    left = time_left(job, recipe)
    config = render_config(recipe, cluster, _places(job, found, work), counts, job.plan.seed, found.dialect, job.adjustment.memory, left)
    config = with_overrides(config, recipe.nemo.overrides)
    refuse_unknown(config, found.keys, f"the release at {found.root}")
    return release.write(config, work / "config.yaml"), recipe, validated


def _data(job: Job, recipe: GRPORecipe, cluster: ClusterShape, work: Path) -> tuple[RunCounts, list[data.Row]]:
    rows = _rows(job.run, job.plan)
    check_arithmetic(recipe, cluster, len(rows))  # fails early, before the tokenizer is loaded
    refuse_custom_code(job.run / RunFile.MODEL)  # the release loads models with trust_remote_code
    if problems := recipe_problems(job.run / RunFile.MODEL, recipe, on_nemo=True):
        raise ConfigError(problems[0])
    length = _lengths(job.run / RunFile.MODEL)
    usable, left = data.short(rows, length, recipe.nemo.max_prompt)
    leave_out(job, left)
    validated = _development(job.run, job.plan, recipe, length)
    return data.write(work / "data", *_parts(usable, validated, recipe, job.plan)), validated


def _parts(
    usable: list[data.Row], validated: list[data.Row], recipe: GRPORecipe, plan: TrainingPlan
) -> tuple[list[data.Row], list[data.Row]]:
    """Return the prompts to train on, and those for validation."""
    return (usable, validated) if validated else data.split(usable, recipe.nemo.validation_prompts, plan.seed)


def _rows(run: Path, plan: TrainingPlan) -> list[data.Row]:
    from ratchet.rewards.scorer_set import scores_without_reference

    rows = data.rows(run / RunFile.PROMPTS, scores_without_reference(plan))
    if not rows:
        raise Permanent("the training set has no prompts, so the plan is not valid; plan again")
    return rows


def left_out(run: Path, plan: TrainingPlan, tokenizer: Any, recipe: GRPORecipe) -> list[LeftOut]:
    """Return the counts of the prompts in a run folder that the job leaves out.

    Raises Permanent without a prompt, and ConfigError if those that are left do not fill a step.
    """
    length = prompt_length(tokenizer)
    usable, left = data.short(_rows(run, plan), length, recipe.nemo.max_prompt)
    if usable:
        train, _ = _parts(usable, _development(run, plan, recipe, length), recipe, plan)
        check_prompts(recipe, len(train))
    return [left]


def _development(run: Path, plan: TrainingPlan, recipe: GRPORecipe, length: Length) -> list[data.Row]:
    """Return the development prompts that can be scored and are not too long; none if they are too few, or nothing is validated."""
    from ratchet.rewards.scorer_set import scores_without_reference

    file = run / RunFile.DEVELOPMENT
    if not file.exists() or not validate_every(recipe):
        return []
    known = data.rows(file, scores_without_reference(plan))
    fitting, _ = data.short(known, length, recipe.nemo.max_prompt)
    return fitting if len(fitting) >= LEAST else []


def _places(job: Job, found: release.Release, work: Path) -> Places:
    return Places(
        base=str(found.base),
        model=str(job.run / RunFile.MODEL),
        train=str(work / "data" / "train.jsonl"),
        validation=str(work / "data" / "validation.jsonl"),
        checkpoints=str(work / CHECKPOINTS),
        logs=str(work / "logs"),
        plan=str(job.run / RunFile.PLAN),
        journal=str(work / JOURNAL),
    )


def time_left(job: Job, recipe: Recipe) -> float | None:
    """Return the seconds until the release should save and end: the rest of the attempt's timeout minus the grace period.

    None without a timeout.
    """
    whole = TIMEOUT.get(os.environ)
    if whole == float("inf"):
        return None
    return max(1.0, whole - job.elapsed - recipe.grace_seconds)


def _lengths(model: Path) -> Length:
    """Return a function that counts the tokens of a rendered prompt with the tokenizer of the start model."""
    from transformers import AutoTokenizer

    return prompt_length(AutoTokenizer.from_pretrained(model, trust_remote_code=False))
