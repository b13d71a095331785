"""A stand-in for the release, laid out as an image has it, with the base file that its recorded keys make."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainers.nemo_keys import Tree, shipped

STUB = Path(__file__).with_name("stub")


def blank(tree: Tree) -> dict[str, Any]:
    """Every recorded key, without a value."""
    return {key: blank(below) if isinstance(below, Mapping) else None for key, below in tree.items()}


@pytest.fixture
def release_folder(tmp_path: Path) -> Path:
    return lay_out_release(tmp_path / "nemo-rl")


def lay_out_release(folder: Path) -> Path:
    """The stand-in at `folder`."""
    shutil.copytree(STUB, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "examples" / "configs").mkdir(parents=True, exist_ok=True)
    (folder / "examples" / "configs" / "grpo_math_1B.yaml").write_text(yaml.safe_dump(blank(shipped("0.7"))))
    return folder


@pytest.fixture
def stub_path(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in importable in this very process; gone again afterwards."""
    monkeypatch.syspath_prepend(str(STUB))
    ours = ("nemo_rl", "trainers.inside.nemo.reward", "trainers.inside.nemo.dataset")
    for name in [name for name in sys.modules if name.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)
    return STUB
