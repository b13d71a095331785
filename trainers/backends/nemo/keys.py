"""Known configuration keys of the NeMo RL releases, and a check of rendered configurations against them.

The check is necessary because the release ignores unknown keys without an error. The file `keys.json` holds the keys of each
release and the source they were read from. Inside a container, the keys come from the base file of the installed release
(`ratchet.trainers.job.nemo.release`). Values are not checked.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from ratchet.contracts.errors import ConfigError

Tree = Mapping[str, "Tree | None"]
"""Nested keys: None stands for a plain value, {} for a mapping that accepts any key."""

PINNED = "0.7"
"""Release whose keys plans are checked against."""

DELIBERATE = {
    "defaults": "directive for file inheritance in the release",
    "data._override_": "directive for file inheritance in the release: replaces all of `data`, so that no example dataset is inherited",
    "data.train.data_path": "argument of Ratchet's dataset class",
    "data.validation": "null in the base file; the release accepts a mapping like data.train",
    "data.default.dataset_name": "Ratchet's dataset class; the base file names its dataset only under data.train",
    "env.ratchet": "Ratchet's reward environment",
    "checkpointing.is_async": "not in the base file, but read by the release: a step must be completely written before it is renamed",
    "grpo.skip_reference_policy_logprobs_calculation": "not in the base file, but read by the release: avoids a forward pass if beta is 0",
}
"""Keys that are set although no base file contains them, with the reason. The keys below them are not checked."""
_FORMAT = "not in the base file of this method, but read by the release, as for GRPO"
OFFLINE = {
    "data.train": "arguments of Ratchet's dataset class",
    "checkpointing.model_save_format": _FORMAT,
    "checkpointing.save_consolidated": _FORMAT,
}
"""Further such keys of SFT and DPO."""
OF_METHOD: Mapping[str, Mapping[str, str]] = {
    "grpo": DELIBERATE,
    "sft": {**DELIBERATE, **OFFLINE, "policy.scheduler": "not in the base file of SFT, but read by the release"},
    "dpo": {**DELIBERATE, **OFFLINE, "policy.dtensor_cfg._v2": "not in the base file of DPO, but read by the release: the newer worker"},
}
"""Method -> such keys."""


@cache
def shipped(release: str = PINNED, method: str = "grpo") -> Tree:
    """Return the recorded keys of a release in its base file for a method. Raises ConfigError if none are recorded.

    The keys of 0.7 and main were read from their base files. The keys of 0.8 were assembled (see `read_from` in the file).
    """
    records = json.loads(files("ratchet.trainers.backends.nemo").joinpath("keys.json").read_text())
    name = release if method == "grpo" else f"{release} {method}"
    if name not in records:
        raise ConfigError(f"no keys are recorded for NeMo RL {name!r}; recorded releases: {', '.join(records)}")
    found: Tree = records[name]["keys"]
    return found


def tree_of(config: Mapping[str, Any]) -> Tree:
    """Return the key tree of a base file whose inheritance is already resolved."""
    return {key: tree_of(value) if isinstance(value, Mapping) else None for key, value in config.items()}


def refuse_unknown(config: Mapping[str, Any], keys: Tree, where: str, method: str = "grpo") -> None:
    """Raise ConfigError for the first key of `config` that is neither in `keys` nor set deliberately (`OF_METHOD`).

    `where` names the release in the message. The cause is an error in the rendering of the configuration, or an unsupported release.
    """
    deliberate = OF_METHOD[method]
    for path in _unknown(config, keys, deliberate, ""):
        known = [*_paths(keys, ""), *deliberate]
        near = difflib.get_close_matches(path, known, n=1, cutoff=0.3)
        hint = f"did you mean {near[0]!r}?" if near else "no similar key is known"
        raise ConfigError(
            f"{where} does not know the configuration key {path!r} ({hint}); use the pinned release, "
            "or correct trainers/backends/nemo/config.py (offline_config.py for SFT and DPO)"
        )


def _unknown(config: Mapping[str, Any], keys: Tree, deliberate: Mapping[str, str], prefix: str) -> Iterator[str]:
    for key, value in config.items():
        path = prefix + key
        if path in deliberate:
            continue
        if key not in keys:
            yield path
            continue
        below = keys[key]
        if isinstance(value, Mapping) and below != {}:
            yield from _unknown(value, below or {}, deliberate, path + ".")


def _paths(keys: Tree, prefix: str) -> Iterator[str]:
    for key, below in keys.items():
        yield prefix + key
        if below:
            yield from _paths(below, f"{prefix}{key}.")
