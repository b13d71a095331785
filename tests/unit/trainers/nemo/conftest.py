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

ROOT = Path(__file__).resolve().parents[4]
STUB = Path(__file__).with_name("stub")


def blank(tree: Tree) -> dict[str, Any]:
    """Return all recorded keys without values."""
    return {key: blank(below) if isinstance(below, Mapping) else None for key, below in tree.items()}


@pytest.fixture
def release_folder(tmp_path: Path) -> Path:
    """Return a folder that contains the stand-in."""
    return lay_out_release(tmp_path / "nemo-rl")


def lay_out_release(folder: Path) -> Path:
    """Copy the stand-in to `folder` and write its base file."""
    shutil.copytree(STUB, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "examples" / "configs").mkdir(parents=True, exist_ok=True)
    (folder / "examples" / "configs" / "grpo_math_1B.yaml").write_text(yaml.safe_dump(blank(shipped("0.7"))))
    return folder


@pytest.fixture
def stub_path(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the stand-in importable in this process during the test."""
    monkeypatch.syspath_prepend(str(STUB))
    ours = ("nemo_rl", "ratchet.trainers.job.nemo.reward", "ratchet.trainers.job.nemo.dataset")
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
        paths = os.pathsep.join(filter(None, [str(release_folder), str(ROOT), os.environ.get("PYTHONPATH")]))
        stubbed = {"STUB": stub, "STUB_SECONDS": str(seconds), "STUB_BEST": str(best), "STUB_HOLD": str(hold)}
        more = {"RATCHET_NEMO_RL": str(release_folder), "PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0", **stubbed}
        return spec.model_copy(update={"environment": spec.environment | more})

    return make
