"""Recipes that together use every branch of the renderer, and the other inputs of the rendering."""

from __future__ import annotations

from typing import Any

from ratchet.trainers.backends.nemo.arithmetic import ClusterShape
from ratchet.trainers.backends.nemo.config import Places, RunCounts, render_config
from ratchet.trainers.backends.nemo.sections import Dialect
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.grpo import GRPORecipe

PLACES = Places(
    base="/opt/nemo-rl/examples/configs/grpo_math_1B.yaml",
    model="/run/model",
    train="/run/train.jsonl",
    validation="/run/validation.jsonl",
    checkpoints="/run/checkpoints",
    logs="/run/logs",
    plan="/run/plan.json",
    journal="/run/rewards.jsonl",
)

VARIANTS: dict[str, tuple[dict[str, Any], ClusterShape]] = {
    "colocated": ({}, ClusterShape(1, 8)),
    "two nodes": ({"prompts_per_step": 16, "nemo": {"generation_tensor_parallel": 4, "tensor_parallel": 2}}, ClusterShape(2, 8)),
    "dedicated, one node": ({"nemo": {"generation": "dedicated", "generation_gpus": 4}}, ClusterShape(1, 8)),
    "dedicated, nodes": ({"nemo": {"generation": "dedicated", "generation_nodes": 1}}, ClusterShape(3, 8)),
    "adapter": ({"lora": {"rank": 8, "alpha": 16.0, "targets": ["q_proj", "v_proj"]}, "learning_rate": 1e-5}, ClusterShape(1, 2)),
    "adapter, all linear": ({"lora": {}, "nemo": {"tensor_parallel": 2}}, ClusterShape(1, 2)),
    "dynamic sampling": (
        {"clip_high": 0.28, "nemo": {"dynamic_sampling": True, "batch_multiplier": 1.5, "overlong_filtering": True}},
        ClusterShape(1, 8),
    ),
    "no pull": (
        {"beta": 0.0, "loss": "grpo", "scale_rewards": "none", "nemo": {"leave_one_out": False, "kl_type": "k2"}},
        ClusterShape(1, 4),
    ),
    "float32, linear, padded": (
        {"precision": "float32", "schedule": "linear", "warmup_steps": 0, "nemo": {"packing": False, "train_batch": 32}},
        ClusterShape(1, 8),
    ),
    "constant, unvalidated": ({"schedule": "constant", "top_k": 50, "top_p": 0.9, "nemo": {"validate_every": 0}}, ClusterShape(1, 1)),
    "open end": ({"steps": "auto", "warmup_steps": 5, "save_every": 10}, ClusterShape(1, 2)),
}


def recipe(name: str) -> GRPORecipe:
    """Return the recipe of a variant, with the learning rate that a job would fill in."""
    return complete(GRPORecipe, {"steps": 200, "learning_rate": 1e-6, **VARIANTS[name][0]})


def config(name: str, dialect: Dialect = "0.7", base: str = PLACES.base, counts: RunCounts | None = None) -> dict[str, Any]:
    """Return the rendered configuration of a variant."""
    places = Places(**{**vars(PLACES), "base": base})
    return render_config(
        recipe(name), VARIANTS[name][1], places, counts or RunCounts(500, 50), seed=7, dialect=dialect, save_by=86_400 + 3_725.9
    )
