"""The run itself: registers what is ours with the release, then hands over to its stock entry point.

`python -m trainers.inside.nemo.launcher CONFIG FOLDER`. Two of the release's classes are replaced by subclasses of
themselves, by name in the module that uses them: the deadline, which also hears that a stop file appeared, so that the
step at hand ends with a checkpoint; and the logger, which also writes its figures to a file. Where a name is gone, the
run goes on without: then a stop costs what was done since the last checkpoint. It judges nothing and ends as the release ends.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from contracts.files import write_atomic
from trainers.nemo_config import ENVIRONMENT, PROCESSOR

STOP, FIGURES, HOOKS, ERROR = "stop", "figures.jsonl", "hooks.json", "error.json"
"""Files in the run's own folder, by which it and the watching process speak."""
BEGAN = time.time()
ACTOR = "trainers.inside.nemo.reward.PanelEnvironment"


def register() -> None:
    """Our environment and our processor, where the release looks for them."""
    from nemo_rl.data.processors import register_processor
    from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
    from nemo_rl.distributed.virtual_cluster import PY_EXECUTABLES
    from nemo_rl.environments.utils import register_env

    from trainers.inside.nemo.dataset import process

    register_env(ENVIRONMENT, ACTOR)
    ACTOR_ENVIRONMENT_REGISTRY[ACTOR] = PY_EXECUTABLES.SYSTEM
    register_processor(PROCESSOR, process)


def hook(folder: Path) -> dict[str, bool]:
    """Puts our subclasses in place; says which the release had room for."""
    from nemo_rl.algorithms import grpo

    placed = {"TimeoutChecker": _deadline, "Logger": _logger}
    found = {}
    for name, subclass in placed.items():
        stock = getattr(grpo, name, None)
        found[name] = isinstance(stock, type)
        if isinstance(stock, type):
            setattr(grpo, name, subclass(stock, folder))
    return found


def _deadline(stock: Any, folder: Path) -> Any:
    stop = folder / STOP

    class Deadline(stock):  # type: ignore[misc, unused-ignore]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.start_time = min(getattr(self, "start_time", BEGAN), BEGAN)  # loading counts as time

        def check_save(self) -> bool:
            if stop.exists() and not getattr(self, "last_saved", False):
                self.last_saved = True
                return True
            return bool(super().check_save())

    return Deadline


def _logger(stock: Any, folder: Path) -> Any:
    path = folder / FIGURES

    class Figures(stock):  # type: ignore[misc, unused-ignore]
        def log_metrics(self, metrics: dict[str, Any], step: int, prefix: str | None = "", *rest: Any, **named: Any) -> None:
            numbers = {name: number for name, value in metrics.items() if (number := _number(value)) is not None}
            _append(path, {"step": int(step), "prefix": prefix or "", "figures": numbers})
            super().log_metrics(metrics, step, prefix, *rest, **named)

        def log_batched_dict_as_jsonl(self, *_: Any, **__: Any) -> None:
            """Whole batches of people's prompts and their answers are not written to a log."""

    return Figures


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


def main(config: Path, folder: Path, entry: Path) -> None:
    """Runs to the release's end. An error is noted in words before it goes its way."""
    try:
        register()
        write_atomic(folder / HOOKS, json.dumps(hook(folder)).encode())
        sys.argv = [str(entry), "--config", str(config)]
        runpy.run_path(str(entry), run_name="__main__")
    except Exception as error:
        write_atomic(folder / ERROR, json.dumps({"type": type(error).__name__, "message": str(error)[-20_000:]}).encode())
        raise


if __name__ == "__main__":
    from trainers.inside.parallel import die_with_parent

    die_with_parent()
    main(*(Path(argument) for argument in sys.argv[1:4]))
