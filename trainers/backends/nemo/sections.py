"""Sections of a NeMo RL configuration that are the same for every method: optimiser, distribution, adapter, checkpoints.

The module defines names of the release's configuration keys, in two dialects: 0.7 (`policy.dtensor_cfg`) and 0.8 (`policy.automodel_cfg`).
It is pure.
"""

from __future__ import annotations

from typing import Any, Literal

from ratchet.trainers.recipes.recipe import Lora, Recipe

OUTPUT_HEAD = "*lm_head"
"""Pattern of the release for the output head. `*.lm_head` would not match it, because the head is at the top level of a model."""
FOREVER = 10**10
"""Number of steps of a constant schedule: more than any run has."""

Dialect = Literal["0.7", "0.8"]


def optimisation(recipe: Recipe) -> dict[str, Any]:
    """Return the keys of the policy section for precision, optimiser and schedule."""
    return {
        "precision": "float32" if recipe.precision == "float32" else "bfloat16",
        "max_grad_norm": recipe.max_grad_norm,
        "optimizer": {
            "name": "torch.optim.AdamW",
            "kwargs": {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay, "betas": [0.9, 0.999], "eps": 1e-8},
        },
        "scheduler": schedule(recipe),
    }


def engine(recipe: Recipe, dialect: Dialect) -> dict[str, Any]:
    """Return the section on the distribution of the weights over GPUs, by its name, which differs between the releases."""
    section = {
        "enabled": True,
        "tensor_parallel_size": recipe.nemo.tensor_parallel,
        "activation_checkpointing": recipe.gradient_checkpointing,
        "lora_cfg": _adapter(recipe.lora, recipe.nemo.tensor_parallel),
    }
    if dialect == "0.7":
        return {"dtensor_cfg": {"_v2": True, **section}}
    consolidated = "false" if recipe.lora else "final"
    return {"automodel_cfg": {**section, "checkpoint": {"model_save_format": "safetensors", "save_consolidated": consolidated}}}


def _adapter(lora: Lora | None, tensor_parallel: int) -> dict[str, Any]:
    """The section on the adapter.

    The release compares its patterns with the full dotted name of a module (`ModuleMatcher` of NeMo Automodel). Its
    `match_all_linear` includes the output head, and it rejects a configuration with both lists.
    """
    if lora is None:
        return {"enabled": False}
    named = [] if isinstance(lora.targets, str) else [name if "*" in name else f"*.{name}" for name in lora.targets]
    return {
        "enabled": True,
        "dim": lora.rank,
        "alpha": int(lora.alpha),
        "dropout": lora.dropout,
        "dropout_position": "pre",  # of the adapter's input, as on TRL; the base files drop its output
        "match_all_linear": False,
        "target_modules": named,
        "exclude_modules": [] if named else [OUTPUT_HEAD],
        "use_triton": tensor_parallel == 1,
    }


def checkpointing(recipe: Recipe, folder: str, metric: str | None, dialect: Dialect, save_by: float | None) -> dict[str, Any]:
    """Return the section on the checkpoints in `folder`.

    `metric` is the release's name of the figure by which it keeps the best ones; None keeps the newest. `save_by` is the training time,
    in seconds, after which the release saves a checkpoint and ends the run.
    """
    format_keys = {"model_save_format": "safetensors", "save_consolidated": recipe.lora is None}
    return {
        "enabled": True,
        "checkpoint_dir": folder,
        "metric_name": metric,
        "higher_is_better": True,
        "keep_top_k": recipe.keep_checkpoints,
        "save_period": recipe.fixed_save_every,
        "checkpoint_must_save_by": None if save_by is None else elapsed(save_by),
        "save_optimizer": True,
        "is_async": False,
        **(format_keys if dialect == "0.7" else {}),
    }


def elapsed(seconds: float) -> str:
    """Format `seconds` as DD:HH:MM:SS, rounded down to whole seconds, at least one second."""
    whole = max(1, int(seconds))
    return f"{whole // 86400:02d}:{whole // 3600 % 24:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def schedule(recipe: Recipe) -> list[dict[str, Any]]:
    """Return the learning rate schedule as a sequence of torch schedulers, which the release steps once per training step.

    The warm-up rises linearly to the peak over `warmup_steps` steps. It starts at peak / (warmup_steps + 1), not at zero.
    """
    open_end = recipe.steps == "auto"  # the run may end after any validation, so the rate stays constant
    warm = 0 if recipe.schedule == "constant" and not open_end else min(recipe.warmup_steps, recipe.last_step - 1)
    rest = max(1, recipe.last_step - warm)
    rise = _scheduler("LinearLR", start_factor=1 / (warm + 1), end_factor=1.0, total_iters=warm)
    course = {
        "cosine": _scheduler("CosineAnnealingLR", T_max=rest, eta_min=0.0),
        "linear": _scheduler("LinearLR", start_factor=1.0, end_factor=0.0, total_iters=rest),
    }.get("constant" if open_end else recipe.schedule, _scheduler("ConstantLR", factor=1.0, total_iters=FOREVER))
    return [*([rise] if warm else []), course, {"milestones": [warm] if warm else []}]


def _scheduler(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": f"torch.optim.lr_scheduler.{name}", "kwargs": arguments}
