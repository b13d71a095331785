"""Recipes of SFT and DPO that together use every branch of the renderer, and the other inputs of the rendering."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ratchet.trainers.backends.nemo.arithmetic import ClusterShape
from ratchet.trainers.backends.nemo.offline_checks import Offline
from ratchet.trainers.backends.nemo.offline_config import OfflinePlaces, render_offline
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.dpo import DPORecipe
from ratchet.trainers.recipes.sft import SFTRecipe

PLACES = OfflinePlaces(base="/base.yaml", model="/run/model", train="/run/train.jsonl", checkpoints="/run/checkpoints", logs="/run/logs")
VARIANTS: dict[str, tuple[type[Offline], dict[str, Any], ClusterShape]] = {
    "sft": (SFTRecipe, {}, ClusterShape(1, 8)),
    "sft_adapter_two_nodes": (SFTRecipe, {"lora": {"rank": 8}, "batch": 64, "nemo": {"tensor_parallel": 4}}, ClusterShape(2, 8)),
    "dpo": (DPORecipe, {"rehearsal": 0.0, "beta": 0.2}, ClusterShape(1, 8)),
    "dpo_float32": (DPORecipe, {"losses": {"sigmoid": 1}, "precision": "float32", "schedule": "constant"}, ClusterShape(1, 1)),
}


def rendered(name: str, base: str = PLACES.base) -> tuple[Offline, dict[str, Any]]:
    """Return the recipe of a variant and its configuration, which inherits from `base`."""
    kind, changes, cluster = VARIANTS[name]
    recipe = complete(kind, {"steps": 200, "learning_rate": 1e-6, **changes})
    return recipe, render_offline(recipe, cluster, replace(PLACES, base=base), seed=7, save_by=3_725.9)
