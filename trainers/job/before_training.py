"""Counts the rows that a training job will leave out, before it runs, and compares its tokens with those of a server.

    python -m ratchet.trainers.job.before_training        in a run folder, with the environment of the job

It uses the functions of the job, and prints a `BeforeTraining` as JSON. The service runs it in a process of its own, because Transformers
needs much memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from ratchet.contracts.errors import ConfigError, RatchetError
from ratchet.contracts.jobs.exit_codes import PERMANENT
from ratchet.contracts.jobs.training import BeforeTraining, Method, TrainingPlan
from ratchet.contracts.schema import parse
from ratchet.runtime.jobs.job_protocol import BACKEND, RunFile, TrainerBackend
from ratchet.trainers.job.model_fit import refuse_misfit
from ratchet.trainers.job.nemo import prepare
from ratchet.trainers.job.start_tokenizer import hide_torch, load_tokenizer
from ratchet.trainers.job.trl import dpo, grpo, sft
from ratchet.trainers.job.trl.as_served import served_warnings
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.dpo import DPORecipe
from ratchet.trainers.recipes.grpo import GRPORecipe
from ratchet.trainers.recipes.sft import SFTRecipe


def before_training(run: Path, plan: TrainingPlan, environment: Mapping[str, str]) -> BeforeTraining:
    """Return the counts of the rows in a run folder that the job of `plan` leaves out, and in what it does not train as served.

    Raises ConfigError if the model cannot be trained with the recipe, and Permanent if the folder has no rows for the method, or an
    invalid one.
    """
    tokenizer = load_tokenizer(run / RunFile.MODEL)
    on_nemo = BACKEND.get(environment) is TrainerBackend.NEMO_RL
    fits = partial(refuse_misfit, run / RunFile.MODEL, tokenizer, on_nemo=on_nemo)
    match plan.method:
        case Method.DPO:
            dpo_recipe = complete(DPORecipe, plan.recipe)
            fits(dpo_recipe)
            found = dpo.left_out(run, tokenizer, dpo_recipe)
        case Method.SFT:
            sft_recipe = complete(SFTRecipe, plan.recipe)
            fits(sft_recipe)
            found = sft.left_out(run, tokenizer, sft_recipe)
        case _:
            recipe = complete(GRPORecipe, plan.recipe)
            fits(recipe)
            found = (prepare.left_out if on_nemo else grpo.left_out)(run, plan, tokenizer, recipe)
    return BeforeTraining(left_out=tuple(found), warnings=tuple(served_warnings(tokenizer, given=plan.method is not Method.GRPO)))


def main() -> int:
    """Print what is known about the run folder that is the working directory, or the error to standard error. Returns the exit code."""
    hide_torch()
    run = Path.cwd()
    try:
        found = before_training(run, parse(TrainingPlan, (run / RunFile.PLAN).read_bytes()), os.environ)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return PERMANENT
    except RatchetError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(found.model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
