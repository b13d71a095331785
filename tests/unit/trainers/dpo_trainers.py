"""The product's DPO trainer on small pairs of the tiny model, for tests."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from ratchet.trainers.job.trl.micro_batches import PairSize
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.dpo import DPORecipe

CHANCE = random.Random(5)


def some_pairs(n: int) -> list[PairSize]:
    """Return `n` pairs of very different lengths, as token ids of the tiny model."""

    def ids(low: int, high: int) -> list[int]:
        return [CHANCE.randrange(5, 19) for _ in range(CHANCE.randint(low, high))]

    return [PairSize(ids(1, 30), ids(1, 12), ids(1, 20)) for _ in range(n)]


PAIRS = some_pairs(12)


def recipe(**changes: Any) -> DPORecipe:
    """Return a small DPO recipe with `changes`."""
    small = {"batch": 12, "micro_batch": 4, "max_length": 48, "steps": 3, "gradient_checkpointing": False, "warmup_steps": 0}
    return complete(DPORecipe, {**small, **changes})


def shared(folder: Path, batch: int = 12) -> dict[str, Any]:
    """Return the arguments of the library that both trainers use."""
    return {
        "output_dir": str(folder), "seed": 3, "max_steps": 3, "learning_rate": 1e-2, "use_cpu": True, "bf16": False, "report_to": "none",
        "per_device_train_batch_size": batch, "model_init_kwargs": {"dtype": "float32"}, "gradient_checkpointing": False,
        "disable_tqdm": True, "lr_scheduler_type": "constant", "save_strategy": "no", "logging_steps": 1,
    }  # fmt: skip


def ours(
    model: Path,
    folder: Path,
    own: DPORecipe,
    optimizations: Any = None,
    pairs: list[PairSize] = PAIRS,
    references: Any = None,
    given: dict[str, Any] | None = None,
    **more: Any,
) -> Any:
    """Return the product's trainer for these pairs."""
    from transformers import AutoTokenizer

    from ratchet.trainers.job.trl.dpo_trainer import Optimizations, Stepwise, configuration, placeholder
    from ratchet.trainers.job.trl.reference_logps import computed

    optimizations = optimizations or Optimizations()
    return Stepwise(
        own, pairs, [1.0] * len(pairs), references or (lambda trainer: computed(trainer, range(len(pairs)))), optimizations,
        model=str(model), args=configuration(own, shared(folder) | (given or {}), optimizations), train_dataset=placeholder(),
        processing_class=AutoTokenizer.from_pretrained(model), **more,
    )  # fmt: skip


SHOWN = [pair._replace(rejected=[]) for pair in some_pairs(5)]


def rehearsing(rows: float = 5, shown: list[PairSize] = SHOWN) -> Any:
    """Return a rehearsal of these demonstrations, with `rows` of them per step."""
    from ratchet.trainers.job.trl.dpo_trainer import Rehearsal

    return Rehearsal(shown, [1.0] * len(shown), rows)
