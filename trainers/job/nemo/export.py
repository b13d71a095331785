"""The publishable model of a run: the start model's folder with the trained weights, only safetensors and JSON files.

The weights come from the consolidated weights of the release, or from a low-rank adapter that is merged here. Merging computes
W + (alpha / rank) B A in float32, with one shard in memory at a time. Tensor names and dtypes must be those of the start model;
the dtypes are converted. The tokenizer is that of the start model, because a run does not change it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import Permanent
from ratchet.contracts.safetensors import read_header
from ratchet.runtime.artifacts import write_atomic
from ratchet.trainers.job import checkpoints
from ratchet.trainers.job.nemo.steps import CONSOLIDATED, INDEX, WEIGHTS

TIED = frozenset({"lm_head.weight"})
"""Tensors that may be missing in one of the two folders: with tied embeddings, a folder can omit the output head."""
PREFIX = "base_model.model."
"""Prefix of tensor names in adapter files."""

Change = Callable[[str, Any], Any]
"""(tensor name, tensor of the start model) -> the trained tensor of the same shape, in any floating-point dtype."""


def export(start: Path, step: Path, adapter: bool, work: Path, folder: Path) -> Path:
    """Write the publishable model to `folder` and return it.

    `step` is the folder of a checkpoint, which holds an adapter if `adapter` is set. `work` is a folder for temporary files.
    Raises Permanent if the checkpoint does not match the start model.
    """
    trained = work / "trained"
    shutil.rmtree(trained, ignore_errors=True)
    trained.mkdir(parents=True)
    change = merged(step / WEIGHTS) if adapter else replaced(start, step / CONSOLIDATED)
    _rewrite(start, trained, change)
    return checkpoints.publishable(start, trained, folder)


def replaced(start: Path, consolidated: Path) -> Change:
    """Return a function that takes every tensor from the consolidated weights.

    Raises Permanent if their tensor names differ from those of the start model.
    """
    from safetensors import safe_open

    places = _places(consolidated)
    own = _places(start)
    strange = sorted(set(places).symmetric_difference(own) - TIED)
    if strange:
        raise Permanent(f"{consolidated} and the start model differ in tensor {strange[0]!r} (of {len(strange)}); they are not one model")

    def change(name: str, tensor: Any) -> Any:
        if name not in places:  # a tied output head that is not stored
            return tensor if name not in TIED else change(_embedding(own), tensor)
        with safe_open(places[name], "pt") as file:
            return file.get_tensor(name)

    return change


def _embedding(names: Mapping[str, Path]) -> str:
    found = [name for name in names if name.endswith("embed_tokens.weight") or name.endswith("wte.weight")]
    if not found:
        raise Permanent("the trained weights lack lm_head.weight, and the model has no known embedding that it could be tied to")
    return found[0]


def merged(weights: Path) -> Change:
    """Return a function that adds the adapter in `weights` to the start model: W + (alpha / rank) B A in float32 (arXiv:2106.09685).

    Raises Permanent for an adapter of another kind.
    """
    from safetensors.torch import load_file

    settings = json.loads((weights / "adapter_config.json").read_bytes())
    odd = [key for key in ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save") if settings.get(key)]
    if odd:
        raise Permanent(f"{weights}: adapters with {odd[0]} cannot be merged; train without it")
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in load_file(weights / "adapter_model.safetensors").items()}
    pairs = _pairs(tensors, weights)
    scale = float(settings["lora_alpha"]) / float(settings["r"])

    def change(name: str, tensor: Any) -> Any:
        if name not in pairs:
            return tensor
        low, high = pairs[name]
        return tensor.float() + scale * (high.float() @ low.float())

    change.expected = frozenset(pairs)  # type: ignore[attr-defined]
    return change


def _pairs(tensors: Mapping[str, Any], weights: Path) -> dict[str, tuple[Any, Any]]:
    """Name of the changed weight -> (A, B), of shapes [rank, in] and [out, rank]."""
    pairs = {}
    for name in tensors:
        if ".lora_A" in name:
            module = name[: name.index(".lora_A")]
            other = name.replace(".lora_A", ".lora_B")
            if other not in tensors:
                raise Permanent(f"{weights}: adapter tensor {other!r} is missing; the checkpoint is incomplete")
            pairs[f"{module}.weight"] = (tensors[name], tensors[other])
    if not pairs or 2 * len(pairs) != len(tensors):
        raise Permanent(f"{weights} has no lora_A and lora_B tensors, or other tensors besides them; such an adapter cannot be merged")
    return pairs


def _rewrite(start: Path, trained: Path, change: Change) -> None:
    """Write the shards of the start model with the changed tensors, under the same names and with the same index."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    left = set(getattr(change, "expected", ()))
    for shard in sorted(start.glob("*.safetensors")):
        tensors = {}
        with safe_open(shard, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                old = file.get_tensor(name)
                new = change(name, old)
                if new.shape != old.shape:
                    raise Permanent(f"trained tensor {name!r} has shape {tuple(new.shape)}, but the start model's has {tuple(old.shape)}")
                tensors[name] = (new.to(old.dtype) if old.is_floating_point() else new).contiguous()
                left.discard(name)
        save_file(tensors, trained / shard.name, metadata={"format": "pt"})
    if left:
        raise Permanent(f"the adapter changes {sorted(left)[0]!r}, which the start model does not have")
    if (start / INDEX).exists():
        write_atomic(trained / INDEX, (start / INDEX).read_bytes())


def _places(folder: Path) -> dict[str, Path]:
    """Tensor name -> safetensors file, from the headers of the files."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found.update(dict.fromkeys(read_header(path), path))
    if not found:
        raise Permanent(f"{folder} has no safetensors weights")
    return found
