"""The start model of a run, and the check whether it computes both answers of a pair exactly in one row.

All are used before the first step. `trainer` is the trainer of `dpo_trainer.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import use_adapter

from ratchet.trainers.job.parallel import rank

PROBE_TOKENS = 256
"""Target length in tokens of the pair that is computed in both layouts. The pair with the nearest length is used."""
EXACT, COARSE = 1e-4, 0.02
"""Allowed difference between the layouts, in nats per token: in float32, and in bfloat16 or with quantized weights.

bfloat16 has 8 bits of precision, so the order of the sums in each layer changes a log-probability by some thousandths. A model whose
attention does not follow the layout differs by tenths."""


def policy(model: Path, shared: Mapping[str, Any]) -> Any:
    """Return the model to train, for the argument `model` of the library: the path, or a model without values.

    In a sharded run, only rank 0 reads the weights, and the library distributes them. The other ranks need the shapes and the memory
    addresses of the parameters. Their parameters are never written, so the operating system gives them no memory.
    """
    if not shared.get("fsdp") or rank() == 0:
        return str(model)
    import transformers
    from accelerate import init_empty_weights

    config = transformers.AutoConfig.from_pretrained(model, trust_remote_code=False)
    kind = getattr(transformers, config.architectures[0], transformers.AutoModelForCausalLM)
    with init_empty_weights(include_buffers=False):
        empty = kind._from_config(config, dtype=torch.float32)
    for module in empty.modules():
        for name, value in module.named_parameters(recurse=False):
            setattr(module, name, torch.nn.Parameter(torch.empty_like(value, device="cpu"), value.requires_grad))
    empty.tie_weights()
    return empty


def no_reference(model: Any) -> Any:
    """Return `model`, a path or a model, without weights, for the argument `ref_model` of a sharded DPO run.

    Without this argument, the library loads the start model a second time on every rank. `Stepwise` discards it.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(model, trust_remote_code=False) if isinstance(model, str) else model.config
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def without_adapter(model: Any) -> Any:
    """Return the language model without its adapter wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def start_model(trainer: Any) -> Iterator[Any]:
    """Yield the start model, without gradients and without gradient checkpointing.

    It is the reference copy of a benchmark, the model without its adapter, or the model before its first step.
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
    coarse = getattr(model, "is_quantized", False) or trainer.accelerator.mixed_precision == "bf16"
    tolerance = (COARSE if coarse else EXACT) * max(len(pair.chosen), len(pair.rejected)) + 1e-4 * two.abs()
    return bool(((one - two).abs() <= tolerance).all())
