"""Launcher of a NeMo RL run: registers Ratchet's components with the release and then runs its standard entry point.

Usage: `python -m ratchet.trainers.job.nemo.launcher METHOD CONFIG FOLDER ENTRY`. Three classes of the release are replaced by subclasses,
by name in the module that uses them. The subclass of the deadline also checks for a stop file, so that the current step ends with a
checkpoint. The subclass of the logger also writes the figures to a file. The subclass of the policy loads the checkpoint of a resume after
the workers have copied the reference (of the KL penalty, or of DPO), so that it stays the start model. If the release has no such name, the
run continues without the subclass; then a stop loses the steps since the last checkpoint, or the reference changes. The exit code is that
of the release.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import Permanent
from ratchet.runtime.artifacts import write_atomic
from ratchet.trainers.backends.nemo import offline_config
from ratchet.trainers.backends.nemo.config import ENVIRONMENT, PROCESSOR
from ratchet.trainers.job.nemo.figures import LAST, WHOLE

STOP, FIGURES, HOOKS, ERROR = "stop", "figures.jsonl", "hooks.json", "error.json"
"""Files in the folder of the run for the communication with the trainer process that observes it."""
BEGAN = time.monotonic()
"""Start of this process, as a monotonic time."""
ACTOR = "ratchet.trainers.job.nemo.reward.PanelEnvironment"
"""Import path of the reward environment."""
PREFERENCES = "preference_preprocessor"
"""Name of the release's processor of preferences in the module that uses it."""


def register(method: str) -> None:
    """Register the product's components of a method (`dpo`, `grpo` or `sft`) with the release."""
    {"dpo": _register_pairs, "grpo": register_product, "sft": _register_answers}[method]()


def _register_answers() -> None:
    from nemo_rl.data.processors import register_processor

    from ratchet.trainers.job.nemo.offline_dataset import answer

    register_processor(offline_config.PROCESSOR, answer)


def _register_pairs() -> None:
    """Replace the release's processor of preferences, for which it has no registry: it would render the conversations in its own way."""
    from nemo_rl.data import utils

    from ratchet.trainers.job.nemo.offline_dataset import pair

    if not hasattr(utils, PREFERENCES):
        raise AttributeError(
            f"nemo_rl.data.utils has no {PREFERENCES}, so this release would train on other tokens; use the pinned release"
        )
    setattr(utils, PREFERENCES, pair)


def register_product() -> None:
    """Register the reward environment and the data processor of GRPO in the registries of the release."""
    from nemo_rl.data.processors import register_processor
    from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
    from nemo_rl.distributed.virtual_cluster import PY_EXECUTABLES
    from nemo_rl.environments.utils import register_env

    from ratchet.trainers.job.nemo.dataset import process

    register_env(ENVIRONMENT, ACTOR)
    ACTOR_ENVIRONMENT_REGISTRY[ACTOR] = PY_EXECUTABLES.SYSTEM
    register_processor(PROCESSOR, process)


def hook(folder: Path, method: str = "grpo") -> dict[str, bool]:
    """Install the subclasses in the module of a method. Return, for each class name, whether the release has the class."""
    algorithm = importlib.import_module(f"nemo_rl.algorithms.{method}")
    placed = {"TimeoutChecker": _deadline, "Logger": _logger, "Policy": _policy}
    found = {}
    for name, subclass in placed.items():
        stock = getattr(algorithm, name, None)
        found[name] = isinstance(stock, type)
        if isinstance(stock, type):
            setattr(algorithm, name, subclass(stock, folder))
    return found


def _deadline(stock: Any, folder: Path) -> Any:
    stop = folder / STOP

    class Deadline(stock):  # type: ignore[misc, unused-ignore]
        @property
        def start_time(self) -> float:
            """Return what the release subtracts from the wall clock, so that it gets the seconds of this process, with the loading time."""
            return time.time() - (time.monotonic() - BEGAN)

        @start_time.setter
        def start_time(self, _set_by_the_release: float) -> None:
            """Keep the start of this process."""

        def check_save(self) -> bool:
            if stop.exists() and not getattr(self, "last_saved", False):
                self.last_saved = True
                return True
            return bool(super().check_save())

    return Deadline


def _logger(stock: Any, folder: Path) -> Any:
    path = folder / FIGURES

    class Figures(stock):  # type: ignore[misc, unused-ignore]
        ended: float | None = None

        def log_metrics(self, metrics: dict[str, Any], step: int, prefix: str | None = "", *rest: Any, **named: Any) -> None:
            numbers = {name: number for name, value in metrics.items() if (number := _number(value)) is not None}
            if prefix == LAST:  # the release times DPO without the log-probabilities of the reference, which it computes between steps
                before, self.ended = self.ended, time.monotonic()
                numbers |= {} if before is None else {WHOLE: self.ended - before}
            _append(path, {"step": int(step), "prefix": prefix or "", "figures": numbers})
            super().log_metrics(metrics, step, prefix, *rest, **named)

        def log_batched_dict_as_jsonl(self, *_: Any, **__: Any) -> None:
            """Do nothing: complete batches of users' prompts and answers must not be logged."""

    return Figures


def _policy(stock: Any, _folder: Path) -> Any:
    class FromStartModel(stock):  # type: ignore[misc, unused-ignore]
        """Policy whose KL reference is the start model after a resume, too.

        A worker of v0.7.0 loads the checkpoint that it is given, and then copies its weights as the reference (NVIDIA-NeMo/RL issue
        2955). Without a checkpoint, it copies those of the start model. Its own method then loads the checkpoint.
        """

        def __init__(
            self, *arguments: Any, weights_path: str | os.PathLike[str] | None = None,
            optimizer_path: str | os.PathLike[str] | None = None, **named: Any,
        ) -> None:  # fmt: skip
            if weights_path is None or not named.get("init_reference_model", True):
                super().__init__(*arguments, weights_path=weights_path, optimizer_path=optimizer_path, **named)
                return
            super().__init__(*arguments, **named)
            state = Path(optimizer_path).resolve() if optimizer_path is not None else None
            paths = {"weights_path": str(Path(weights_path).resolve()), "optimizer_path": None if state is None else str(state)}
            self.run_all_workers_single_data("load_checkpoint", **paths)

    return FromStartModel


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _append(path: Path, value: dict[str, Any]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, json.dumps(value).encode() + b"\n")
    finally:
        os.close(descriptor)


def main(method: str, config: Path, folder: Path, entry: Path) -> None:
    """Run the entry point of the release to its end. An exception is written to a file and then raised again."""
    try:
        register(method)
        write_atomic(folder / HOOKS, json.dumps(hook(folder, method)).encode())
        sys.argv = [str(entry), "--config", str(config)]
        runpy.run_path(str(entry), run_name="__main__")
    except Exception as error:
        told = {"type": type(error).__name__, "message": str(error)[-20_000:], "permanent": isinstance(error, Permanent)}
        write_atomic(folder / ERROR, json.dumps(told).encode())  # an error of an actor is of the type that the actor raised, too
        raise


if __name__ == "__main__":
    from ratchet.trainers.job.parallel import die_with_parent

    die_with_parent()
    main(sys.argv[1], *(Path(argument) for argument in sys.argv[2:5]))
