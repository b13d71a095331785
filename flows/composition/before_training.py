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

from ratchet.contracts.errors import ConfigError, Permanent, Retryable
from ratchet.contracts.jobs.exit_codes import PERMANENT
from ratchet.contracts.jobs.training import BeforeTraining, JobSpec
from ratchet.contracts.loop.serving import ServingSettings
from ratchet.contracts.model import ADAPTER_CONFIG
from ratchet.contracts.ports import Artifacts
from ratchet.contracts.safetensors import read_header
from ratchet.contracts.schema import stamped
from ratchet.local.processes import child_environment
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.jobs.job_protocol import TRAINER, RunFile

TIMEOUT = 900.0
"""Seconds after which the count is given up. The job counts its rows itself."""
OWN_SERVERS = ("embedded", "vllm")
"""Servers of this package. They load folders in Hugging Face format."""
_POINTER = b"version https://git-lfs"
"""First bytes of the small text file that a clone without Git LFS has in the place of a large file."""


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


def look_at_model(folder: Path, serving: ServingSettings) -> ModelFindings:
    """Return what can be said about a model folder before its first training, if `serving` serves it.

    Raises Retryable if its tokenizer cannot be loaded here: transformers is missing, or a server of another package has its own form.
    """
    own = serving.kind in OWN_SERVERS
    broken = broken_files(folder) if own else []
    if broken:
        return ModelFindings(broken, [])
    if importlib.util.find_spec("transformers") is None:
        raise Retryable("transformers is not installed on this machine")
    command = [sys.executable, "-m", "ratchet.trainers.job.model_fit", str(folder), *(["--own-server"] if own else [])]
    try:
        done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise Retryable(f"its tokenizer was not loaded within {TIMEOUT:g} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise Retryable(f"its tokenizer cannot be loaded: {lines[-1][-300:] if lines else f'exit code {done.returncode}'}")
    return ModelFindings(**json.loads(done.stdout))


def broken_files(folder: Path) -> list[str]:
    """Return why the servers of this package cannot load the files of a model folder, each reason with its remedy.

    Looks at config.json, at the headers of the weights and at their index. The values of the weights are not read.
    """
    weights = sorted(folder.glob("*.safetensors"))
    found = [*_configuration(folder), *(text for path in weights if (text := _weights(path)))]
    return found or _index(folder, {path.name for path in weights})


def _configuration(folder: Path) -> list[str]:
    if not (folder / "config.json").exists():
        if (folder / ADAPTER_CONFIG).exists():
            return ["it is an adapter; merge it into its base model (merge_and_unload), and give the folder of the whole model"]
        return ["config.json is missing; copy all files of the model"]
    if not isinstance(_json(folder / "config.json"), dict):
        return ["config.json is no JSON object; copy it again"]
    return []


def _weights(path: Path) -> str:
    try:
        with path.open("rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                return f"{path.name} is a pointer of Git LFS, not the weights; run `git lfs pull` in the clone, or download the file"
        read_header(path)
    except OSError as error:
        return f"{path.name} cannot be read ({error.strerror}); make it readable for this user"
    except Permanent as error:
        return str(error).replace(f"{path}", path.name, 1).replace("write the file again", "copy or download the file again")
    return ""


def _index(folder: Path, weights: set[str]) -> list[str]:
    """Compare the index of a model whose weights stand in several files with these files."""
    path = folder / "model.safetensors.index.json"
    if not path.exists():
        return []
    index = _json(path)
    files = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(files, dict):
        return [f"{path.name} is no index of weights; copy it again"]
    missing = sorted({str(name) for name in files.values()} - weights)
    if missing:
        more = f" and {len(missing) - 3} others" if len(missing) > 3 else ""
        return [f"{', '.join(missing[:3])}{more} is missing, which {path.name} names; copy or download all files of the model"]
    return []


def _json(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
