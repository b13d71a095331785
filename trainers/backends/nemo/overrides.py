"""Settings of NeMo RL that a recipe does not name: passed on to the release after a check of their keys and types.

A key must be in the base file of the pinned release, its value must have the type that it has there, and Ratchet must not set it itself.
`value_types.json` holds the types and the source they were read from. Nobody has tried the combinations, so every override counts as not
proven. The module is pure.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from ratchet.contracts.errors import ConfigError

ANY, TABLE = "any value", "a table"
UNSUPPORTED = {
    "policy.megatron_cfg": "Ratchet reads, resumes and publishes checkpoints of DTensor only; a run on Megatron would end without a model",
    "policy.dtensor_cfg.enabled": "Ratchet reads, resumes and publishes checkpoints of DTensor only",
    "grpo.async_grpo": "Ratchet's rewards need whole groups at once, which asynchronous generation does not give them",
    "policy.generation.vllm_cfg.async_engine": "Ratchet's rewards need whole groups at once",
    "checkpointing": "Ratchet follows, verifies and resumes the checkpoints",
    "data": "Ratchet prepares the data from the plan",
    "env": "the rewards are the line's scorers",
    "logger.log_dir": "Ratchet reads the figures there",
    "cluster": "the shape of the cluster is training.nodes and training.gpus",
    "defaults": "the base file is that of the release",
}
"""Keys, or the beginnings of keys, that no override may change, with the reason."""
ESTIMATOR, ESTIMATORS = "grpo.adv_estimator.name", ("grpo", "reinforce_plus_plus")
"""Key of the advantage estimator of GRPO, and the estimators of the release that need no more than one reward for each answer."""
OTHER_ESTIMATORS = {
    "gdpo": "it needs several rewards for each answer, and the line's scorers give one",
    "opd": "it needs a teacher model, which the job does not have",
    "gae": "it needs a value model, which only PPO of the release has",
    "raw_reward": "only PPO of the release has it",
}
"""Other estimators of the release -> why none of them can run."""
RECIPE = "set it by its name in the recipe: [training.grpo] or [training.grpo.nemo]"


@cache
def value_types() -> Mapping[str, str]:
    """Return the type of each value in the base file of the pinned release, by its dotted key."""
    found: Mapping[str, str] = json.loads(files("ratchet.trainers.backends.nemo").joinpath("value_types.json").read_text())["types"]
    return found


def flat(overrides: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for each override. A table of the loop file continues the key, unless the release has a table there."""
    for name, value in overrides.items():
        key = prefix + name
        if isinstance(value, Mapping) and value_types().get(key) not in (TABLE, ANY):
            yield from flat(value, f"{key}.")
        else:
            yield key, value


def refuse_overrides(overrides: Mapping[str, Any], rendered: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first override that the release does not have, that has another type, or that Ratchet sets itself.

    `rendered` is the configuration without the overrides.
    """
    own = {key for key, _ in _leaves(rendered)}
    for key, value in flat(overrides):
        where = f"training.grpo.nemo.overrides: {key}"
        if reason := next((why for start, why in UNSUPPORTED.items() if key == start or key.startswith(f"{start}.")), None):
            raise ConfigError(f"{where} cannot be changed: {reason}")
        if key in own or any(one.startswith(f"{key}.") or key.startswith(f"{one}.") for one in own):
            raise ConfigError(f"{where} is set by Ratchet; {RECIPE}")
        expected = value_types().get(key)
        if expected is None:
            near = difflib.get_close_matches(key, value_types(), n=1, cutoff=0.3)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"{where} is no key of the pinned release{hint}")
        if not _fits(value, expected):
            raise ConfigError(f"{where} must be {expected}, not {json.dumps(value)}")
        if key == ESTIMATOR and value not in ESTIMATORS:
            why = OTHER_ESTIMATORS.get(value, "GRPO of the release has no estimator of this name")
            raise ConfigError(f"{where} = {json.dumps(value)}: {why}; set it to {' or '.join(map(json.dumps, ESTIMATORS))}")


def with_overrides(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with the overrides."""
    found: dict[str, Any] = {name: with_overrides(value, {}) if isinstance(value, Mapping) else value for name, value in config.items()}
    for key, value in flat(overrides):
        *path, last = key.split(".")
        place = found
        for name in path:
            place = place.setdefault(name, {})
        place[last] = value
    return found


def unproven(overrides: Mapping[str, Any]) -> str:
    """Return a sentence about the overrides for plan, explanation and approval; empty without overrides."""
    named = ", ".join(f"{key} = {json.dumps(value)}" for key, value in flat(overrides))
    return f"settings of NeMo RL that were never proven with Ratchet: {named}" if named else ""


def _leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _fits(value: Any, expected: str) -> bool:
    match expected:
        case "true or false":
            return isinstance(value, bool)
        case "a whole number":
            return isinstance(value, int) and not isinstance(value, bool)
        case "a number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "a text":
            return isinstance(value, str)
        case "a list":
            return isinstance(value, list)
        case "a table":
            return isinstance(value, Mapping)
        case _:
            return True
