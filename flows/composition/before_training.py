"""Looks at a job and at a model before a training: the rows that the job will leave out, what cannot work, and what is not as served.

Both run in a process of their own, because Transformers needs much memory.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.jobs.exit_codes import PERMANENT
from ratchet.contracts.jobs.training import BeforeTraining, JobSpec
from ratchet.contracts.ports import Artifacts
from ratchet.contracts.schema import stamped
from ratchet.local.processes import child_environment
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.jobs.job_protocol import TRAINER, RunFile

TIMEOUT = 900.0
"""Seconds after which the count is given up. The job counts its rows itself."""


def look_at_job(spec: JobSpec, artifacts: Artifacts, scratch: Path) -> BeforeTraining | None:
    """Look at a job in a process of its own, with the tokenizer and the chat template of its start model.

    Return None for a trainer of another package. Raises Retryable if the rows cannot be counted here, for example because the machine has
    no transformers, and ConfigError if the model cannot be trained with the recipe.
    """
    if TRAINER.find(spec.environment):
        return None
    if importlib.util.find_spec("transformers") is None:
        raise Retryable("transformers is not installed on this machine; the job counts them")
    scratch.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=scratch, prefix="rows-") as folder:
        run = Path(folder)
        for name, key in spec.inputs.items():
            if name == RunFile.MODEL:
                (run / name).symlink_to(artifacts.fetch(key, scratch / "models" / key).resolve())
            else:
                artifacts.fetch(key, run / name)
        write_atomic(run / RunFile.PLAN, stamped(json.loads(spec.plan_json)))
        command = [sys.executable, "-m", "ratchet.trainers.job.before_training"]
        environment = child_environment() | spec.environment
        try:
            done = subprocess.run(command, cwd=run, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        except subprocess.TimeoutExpired as error:
            raise Retryable(f"not finished after {TIMEOUT:g} s; the job counts them") from error
    if done.returncode == PERMANENT:
        raise ConfigError(done.stderr.strip().splitlines()[-1])
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise Retryable(lines[-1][-300:] if lines else f"exit code {done.returncode}")
    return BeforeTraining.model_validate_json(done.stdout)


class ModelFindings(NamedTuple):
    """What is known about a model folder, each finding with its remedy."""

    problems: list[str]
    """What cannot work in serving and in any training."""
    warnings: list[str]
    """In what the model is not trained as it is served."""


def look_at_model(folder: Path) -> ModelFindings:
    """Return what can be said about a model folder before its first training.

    Raises Retryable if its tokenizer cannot be loaded here: transformers is missing, or a server of another package has its own form.
    """
    if importlib.util.find_spec("transformers") is None:
        raise Retryable("transformers is not installed on this machine")
    command = [sys.executable, "-m", "ratchet.trainers.job.model_fit", str(folder)]
    try:
        done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise Retryable(f"its tokenizer was not loaded within {TIMEOUT:g} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise Retryable(f"its tokenizer cannot be loaded: {lines[-1][-300:] if lines else f'exit code {done.returncode}'}")
    return ModelFindings(**json.loads(done.stdout))
