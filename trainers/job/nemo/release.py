"""The NeMo RL release in this container: its location, its configuration dialect, and its known keys.

The module only reads files and imports nothing from the release. So a wrong container is rejected early, with a clear message.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import Permanent
from ratchet.runtime.jobs.job_protocol import NEMO_RL
from ratchet.trainers.backends.nemo.keys import Tree, tree_of
from ratchet.trainers.backends.nemo.sections import Dialect

BASE = "examples/configs/grpo_math_1B.yaml"
BASES = {"dpo": "examples/configs/dpo.yaml", "grpo": BASE, "sft": "examples/configs/sft.yaml"}
"""Method -> its base configuration file."""
ENTRIES = {"dpo": "examples/run_dpo.py", "grpo": "examples/run_grpo.py", "sft": "examples/run_sft.py"}
"""Method -> its entry point script."""
WORKER = "nemo_rl/models/policy/workers/dtensor_policy_worker_v2.py"


@dataclass(frozen=True)
class Release:
    """An installed release, as its source folder."""

    root: Path
    """Source folder of the release."""
    dialect: Dialect
    """Names of its configuration keys."""
    keys: Tree
    """Keys of its base file."""
    keeps_reference: bool
    """Whether the KL reference is still the start model after a resume. v0.7.0 creates its reference after it has loaded the
    checkpoint, so the reference changes (NVIDIA-NeMo/RL issue 2955, fixed by pull request 3722)."""
    method: str = "grpo"
    """Method whose base file and entry point are meant."""

    @property
    def base(self) -> Path:
        """Path of the base configuration file."""
        return self.root / BASES[self.method]

    @property
    def entry(self) -> Path:
        """Path of the entry point script."""
        return self.root / ENTRIES[self.method]


def find(method: str = "grpo") -> Release:
    """Return the release in NEMO_RL of the environment, or in its default folder in NVIDIA's images, for `dpo`, `grpo` or `sft`.

    Raises Permanent if there is none.
    """
    root = NEMO_RL.get(os.environ)
    file = BASES[method]
    for needed in (file, ENTRIES[method]):
        if not (root / needed).is_file():
            raise Permanent(f"{root / needed} is missing; run in a NeMo RL image, or set {NEMO_RL.name} to the folder of the release")
    base = read(root / file)
    policy = base.get("policy") or {}
    if "automodel_cfg" not in policy and "dtensor_cfg" not in policy:
        raise Permanent(f"{root / file} has neither policy.dtensor_cfg nor policy.automodel_cfg; use the pinned release")
    worker = root / WORKER
    deferred = worker.is_file() and "defer_checkpoint_load" in worker.read_text(encoding="utf-8")
    return Release(root, "0.8" if "automodel_cfg" in policy else "0.7", tree_of(base), deferred, method)


def read(path: Path) -> dict[str, Any]:
    """Return a base file with the files of its `defaults` merged in; later files override earlier ones. Values are not resolved."""
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
    """Write the configuration to `path` as YAML, with its order of keys, and return `path`."""
    import yaml

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path
