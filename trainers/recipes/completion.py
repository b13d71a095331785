"""Recipe class of each method, and complete recipes from the overrides of a loop file."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.jobs.training import Method
from ratchet.contracts.model import Frozen
from ratchet.contracts.wording import first_problem
from ratchet.trainers.recipes.dpo import DPORecipe
from ratchet.trainers.recipes.grpo import GRPORecipe
from ratchet.trainers.recipes.health_limits import LIMITS, Health, Limit
from ratchet.trainers.recipes.nemo_rl import NemoRL, NemoSharding
from ratchet.trainers.recipes.recipe import Lora, R, Recipe
from ratchet.trainers.recipes.sft import SFTRecipe

KINDS: dict[Method, type[Recipe]] = {Method.DPO: DPORecipe, Method.GRPO: GRPORecipe, Method.SFT: SFTRecipe}
"""Recipe class of each method."""


def complete(kind: type[R], changes: Mapping[str, Any]) -> R:
    """Return the recipe of `kind` with its defaults and `changes`.

    Raises ConfigError for an unknown key, with the most similar known key, or for an invalid value.
    """
    _known(kind, changes, kind.__name__.removesuffix("Recipe"))
    try:
        return kind.model_validate(dict(changes))
    except ValidationError as error:
        raise ConfigError(
            f"{kind.__name__.removesuffix('Recipe')} recipe: {first_problem(error, quote=True)}; see trainers/recipes"
        ) from error


def _known(kind: type[Frozen], changes: Mapping[str, Any], where: str) -> None:
    nested: dict[str, type[Frozen]] = {
        "lora": Lora,
        "health": Health,
        "nemo": NemoRL if kind is GRPORecipe else NemoSharding,
        **dict.fromkeys(LIMITS, Limit),
    }
    for key, value in changes.items():
        if key not in kind.model_fields:
            near = difflib.get_close_matches(key, kind.model_fields, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(sorted(kind.model_fields))}"
            raise ConfigError(f"{where} recipe: unknown key {key!r}; {hint}")
        if key in nested and isinstance(value, Mapping):
            _known(nested[key], value, f"{where} {key}")
