"""Preparation of a run of SFT or DPO: its rows as tokens, and its configuration, checked against the release in this container."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import ConfigError, Permanent
from ratchet.contracts.model import refuse_custom_code
from ratchet.runtime.jobs.job_protocol import NODES, RunFile
from ratchet.trainers.backends.nemo.arithmetic import ClusterShape
from ratchet.trainers.backends.nemo.keys import refuse_unknown
from ratchet.trainers.backends.nemo.offline_checks import Offline, check_shares, rows_in_memory
from ratchet.trainers.backends.nemo.offline_config import OfflinePlaces, render_offline
from ratchet.trainers.job.job_folder import Job
from ratchet.trainers.job.left_out import leave_out
from ratchet.trainers.job.model_fit import recipe_problems
from ratchet.trainers.job.nemo import offline_rows, release
from ratchet.trainers.job.nemo.prepare import CHECKPOINTS, time_left
from ratchet.trainers.job.start_tokenizer import load_tokenizer
from ratchet.trainers.recipes.completion import complete


def prepare(job: Job, recipe: Offline, found: release.Release, work: Path) -> tuple[Path, Offline, list[Any]]:
    """Write the rows and the configuration to `work`.

    Return the path of the configuration, the recipe, and no validation prompts.
    Raises Permanent or ConfigError if the rows, the recipe, the cluster and the release `found` do not fit together. The message names the
    remedy.
    """
    cluster, model = ClusterShape(NODES.get(os.environ), job.gpus), job.run / RunFile.MODEL
    check_shares(recipe, cluster)
    recipe = _with_less_memory(job, recipe, cluster)
    refuse_custom_code(model)  # the release loads models with trust_remote_code
    if problems := recipe_problems(model, recipe, on_nemo=True):
        raise ConfigError(problems[0])
    rows = offline_rows.read(job.run, load_tokenizer(model), recipe)
    leave_out(job, rows.left_out)
    places = OfflinePlaces(
        base=str(found.base),
        model=str(model),
        train=str(offline_rows.write(work / "data", rows, recipe, job.plan.seed)),
        checkpoints=str(work / CHECKPOINTS),
        logs=str(work / "logs"),
    )
    config = render_offline(recipe, cluster, places, job.plan.seed, found.dialect, time_left(job, recipe))
    refuse_unknown(config, found.keys, f"the release at {found.root}", found.method)
    return release.write(config, work / "config.yaml"), recipe, []


def _with_less_memory(job: Job, recipe: Offline, cluster: ClusterShape) -> Offline:
    """Return the recipe with fewer rows in memory than ran before, if the adjustment of the attempt asks for it.

    The rows that run may be fewer than `micro_batch`, so that half of `micro_batch` can be no less. Raises Permanent for a single row.
    """
    if job.adjustment.memory >= 1.0:
        return recipe
    rows = int(rows_in_memory(complete(type(recipe), job.plan.recipe), cluster) * job.adjustment.memory)
    if not rows:
        raise Permanent(
            "the memory of a GPU does not suffice for a single row; raise nemo.tensor_parallel or the number of GPUs, or lower max_length"
        )
    return recipe.model_copy(update={"micro_batch": rows})
