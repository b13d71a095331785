"""The keys that a NeMo RL release knows, and the check that we emit no other. The release itself accepts unknown keys in silence.

Data: `nemo_keys.json`, keys only, each with the place it was read from. Inside a container the release's own base file
is read instead (`trainers.inside.nemo.release`). It knows no values and refuses to judge them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from contracts.errors import ConfigError

Tree = Mapping[str, "Tree | None"]
"""Key -> its keys; None for a value; {} for a mapping that takes any key."""

PINNED = "0.7"
"""The release that plans are checked against."""

DELIBERATE = {
    "defaults": "word of the release's own file inheritance",
    "data._override_": "word of the release's own file inheritance: takes `data` as a whole, or its example data set is inherited",
    "data.train.data_path": "argument of our data set class",
    "data.validation": "null in the base file; the release reads a mapping like data.train",
    "data.default.dataset_name": "our data set class; the base file names its data set under data.train only",
    "env.ratchet": "our reward environment",
    "checkpointing.is_async": "its base file is silent, the release reads it: a step must not be renamed before it is written",
    "grpo.skip_reference_policy_logprobs_calculation": "its base file is silent, the release reads it: saves a forward pass at beta 0",
}
"""Keys that we emit although no base file has them, and why. What lies below them is ours too."""


@cache
def shipped(release: str = PINNED) -> Tree:
    """The recorded keys of a release: 0.7 and main as read, 0.8 as assembled (see `read_from` in the file)."""
    records = json.loads(files("trainers").joinpath("nemo_keys.json").read_text())
    if release not in records:
        raise ConfigError(f"no keys are recorded for NeMo RL {release!r}; recorded are {', '.join(records)}")
    found: Tree = records[release]["keys"]
    return found


def tree_of(config: Mapping[str, Any]) -> Tree:
    """The key tree of a release's base file, its own inheritance already resolved."""
    return {key: tree_of(value) if isinstance(value, Mapping) else None for key, value in config.items()}


def refuse_unknown(config: Mapping[str, Any], keys: Tree, where: str) -> None:
    """ConfigError for the first key that neither `keys` nor `DELIBERATE` has. It is our error, or the release is another one."""
    for path in _unknown(config, keys, ""):
        known = [*_paths(keys, ""), *DELIBERATE]
        near = difflib.get_close_matches(path, known, n=1, cutoff=0.3)
        hint = f"nearest known: {near[0]!r}" if near else "nothing known is near"
        raise ConfigError(
            f"{where} does not know the key {path!r} that we would set ({hint}); use the pinned release, or correct trainers/nemo_config.py"
        )


def _unknown(config: Mapping[str, Any], keys: Tree, prefix: str) -> Iterator[str]:
    for key, value in config.items():
        path = prefix + key
        if path in DELIBERATE:
            continue
        if key not in keys:
            yield path
            continue
        below = keys[key]
        if isinstance(value, Mapping) and below != {}:
            yield from _unknown(value, below or {}, path + ".")


def _paths(keys: Tree, prefix: str) -> Iterator[str]:
    for key, below in keys.items():
        yield prefix + key
        if below:
            yield from _paths(below, f"{prefix}{key}.")
