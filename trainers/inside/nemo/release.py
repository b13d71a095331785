"""The NeMo RL release that this container holds: where it lies, which dialect it speaks, which keys it knows.

It reads files and imports nothing of the release, so that a wrong container is refused in words and at once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contracts.errors import Permanent
from trainers.nemo_config import Dialect
from trainers.nemo_keys import Tree, tree_of

BASE = "examples/configs/grpo_math_1B.yaml"
ENTRY = "examples/run_grpo.py"
WORKER = "nemo_rl/models/policy/workers/dtensor_policy_worker_v2.py"


@dataclass(frozen=True)
class Release:
    """One source folder of the release."""

    root: Path
    dialect: Dialect
    keys: Tree
    keeps_reference: bool
    """Whether the KL stays anchored to the start model after a resume. v0.7.0 takes its reference after it has loaded the
    checkpoint, so that the anchor moves (NVIDIA-NeMo/RL issue 2955, mended by pull request 3722)."""

    @property
    def base(self) -> Path:
        return self.root / BASE

    @property
    def entry(self) -> Path:
        return self.root / ENTRY


def find() -> Release:
    """The release below RATCHET_NEMO_RL, or where NVIDIA's images have it. Permanent where there is none."""
    root = Path(os.environ.get("RATCHET_NEMO_RL", "/opt/nemo-rl"))
    for needed in (BASE, ENTRY):
        if not (root / needed).is_file():
            raise Permanent(f"{root / needed} is absent; run in a NeMo RL image, or name the release's folder in RATCHET_NEMO_RL")
    base = read(root / BASE)
    policy = base.get("policy") or {}
    if "automodel_cfg" not in policy and "dtensor_cfg" not in policy:
        raise Permanent(f"{root / BASE} has neither policy.dtensor_cfg nor policy.automodel_cfg; use the pinned release")
    worker = root / WORKER
    mended = worker.is_file() and "defer_checkpoint_load" in worker.read_text(encoding="utf-8")
    return Release(root, "0.8" if "automodel_cfg" in policy else "0.7", tree_of(base), mended)


def read(path: Path) -> dict[str, Any]:
    """A base file with its own `defaults` merged in, later ones over earlier ones; values stay as written."""
    import yaml

    own = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    parents = own.pop("defaults", [])
    merged: dict[str, Any] = {}
    for parent in [parents] if isinstance(parents, str) else parents:
        merged = _merge(merged, read(path.parent / parent))
    return _merge(merged, own)


def _merge(below: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(value, dict) and value.get("_override_"):
            merged[key] = {name: item for name, item in value.items() if name != "_override_"}
        else:
            merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def write(config: dict[str, Any], path: Path) -> Path:
    """The configuration as YAML, in its own order."""
    import yaml

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path
