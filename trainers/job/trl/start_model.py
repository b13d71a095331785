"""The start model of a DPO run, and the check whether it computes both answers of a pair exactly in one row.

Both are used before the first step. `trainer` is the trainer of `dpo_trainer.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import use_adapter

PROBE_TOKENS = 256
"""Target length in tokens of the pair that is computed in both layouts. The pair with the nearest length is used."""


def without_adapter(model: Any) -> Any:
    """Return the language model without its adapter wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def start_model(trainer: Any) -> Iterator[Any]:
    """Yield the start model, without gradients and without gradient checkpointing.

    It is the reference copy, the model without its adapter, or the model before its first step.
    """
    trained = trainer.accelerator.unwrap_model(trainer.model)
    adapted = trainer.ref_model is None and hasattr(trained, "disable_adapter")
    with (
        torch.no_grad(),
        disable_gradient_checkpointing(trainer.model, trainer.args.gradient_checkpointing_kwargs),
        use_adapter(trained, adapter_name=None) if adapted else nullcontext(),
        trainer.accelerator.autocast(),
    ):
        yield trainer.ref_model or trainer.model


def computes_shared_rows_exactly(trainer: Any, model: Any) -> bool:
    """Return whether the shared layout gives the same log-probabilities under `model` as the separate layout.

    Models with other attention (windows, recurrence, other kernels) are excluded by their configuration. For the others, one pair is
    computed in both layouts and compared.
    """
    config = without_adapter(trainer.model).config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if config._attn_implementation not in ("sdpa", "eager") or kinds != {"full_attention"} or getattr(config, "sliding_window", None):
        return False
    complete = [pair for pair in trainer.pairs if pair.prompt and pair.chosen and pair.rejected]
    if not complete:
        return False
    pair = min(complete, key=lambda pair: abs(pair.length(True) - PROBE_TOKENS))
    one, two = (trainer.answers(model, trainer.layout([pair], shared)) for shared in (True, False))
    tolerance = (0.02 if getattr(model, "is_quantized", False) else 1e-4) * max(len(pair.chosen), len(pair.rejected)) + 1e-4 * two.abs()
    return bool(((one - two).abs() <= tolerance).all())
