"""A stand-in for the release, in the layout of an image, with a base file that is made from the recorded keys."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.contracts.jobs.training import Attempt, JobSpec, Method
from ratchet.trainers.backends.nemo.backend import NemoGRPO
from ratchet.trainers.backends.nemo.keys import Tree, shipped
from ratchet.trainers.backends.nemo.offline import NemoDPO, NemoSFT
from ratchet.trainers.job.nemo.release import BASES

ROOT = Path(__file__).resolve().parents[4]
STUB = Path(__file__).with_name("stub")
OFFLINE: dict[Method, Any] = {Method.DPO: NemoDPO(), Method.SFT: NemoSFT()}


def blank(tree: Tree) -> dict[str, Any]:
    """Return all recorded keys without values."""
    return {key: blank(below) if isinstance(below, Mapping) else None for key, below in tree.items()}


@pytest.fixture
def release_folder(tmp_path: Path) -> Path:
    """Return a folder that contains the stand-in."""
    return lay_out_release(tmp_path / "nemo-rl")


def lay_out_release(folder: Path) -> Path:
    """Copy the stand-in to `folder` and write its base files."""
    shutil.copytree(STUB, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "examples" / "configs").mkdir(parents=True, exist_ok=True)
    for method, file in BASES.items():
        (folder / file).write_text(yaml.safe_dump(blank(shipped("0.7", method))))
    return folder


@pytest.fixture
def stub_path(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the stand-in importable in this process during the test."""
    monkeypatch.syspath_prepend(str(STUB))
    ours = ("nemo_rl", *(f"ratchet.trainers.job.nemo.{name}" for name in ("reward", "dataset", "offline_dataset")))
    for name in [name for name in sys.modules if name.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)
    return STUB


@pytest.fixture
def job(workshop: Any, release_folder: Path) -> Callable[..., JobSpec]:
    """Return a function that makes a job on the stand-in.

    `changes` are settings of the recipe, or `rewards` for the plan.
    """

    def make(
        stub: str = "",
        seconds: float = 0.0,
        timeout: float = 3000.0,
        development: str | None = None,
        best: int = 1000,
        hold: int = 0,
        **changes: Any,
    ) -> JobSpec:
        small = {"steps": 4, "save_every": 2, "prompts_per_step": 4, "generations": 2, "micro_batch": 4}
        nemo = {"max_prompt": 32, **changes.pop("nemo", {})}
        plan = workshop.plan(Method.GRPO, **{**small, **changes, "nemo": nemo}).model_copy(update={"development": development})
        spec = NemoGRPO().job(plan, Attempt(number=1, timeout=timeout, gpus=1))
        stubbed = {"STUB": stub, "STUB_SECONDS": str(seconds), "STUB_BEST": str(best), "STUB_HOLD": str(hold)}
        return spec.model_copy(update={"environment": spec.environment | stubbed | _environment(release_folder)})

    return make


def _environment(release: Path) -> dict[str, str]:
    paths = os.pathsep.join(filter(None, [str(release), str(ROOT), os.environ.get("PYTHONPATH")]))
    return {"RATCHET_NEMO_RL": str(release), "PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture
def offline_job(workshop: Any, release_folder: Path) -> Callable[..., JobSpec]:
    """Return a function that makes a job of SFT or DPO on the stand-in. `changes` are settings of the recipe."""

    def make(method: Method, stub: str = "plain", **changes: Any) -> JobSpec:
        trainer = OFFLINE[method]
        small = {"steps": 4, "save_every": 2, "batch": 8, "micro_batch": 4, "max_length": 48, "learning_rate": 1e-3}
        plan = workshop.plan(method).model_copy(update={"recipe": trainer.recipe({**small, **changes})})
        spec = trainer.job(plan, Attempt(number=1, timeout=3000.0, gpus=1))
        return spec.model_copy(update={"environment": spec.environment | {"STUB": stub} | _environment(release_folder)})

    return make
