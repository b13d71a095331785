"""The model that leaves a run: the start model's folder with trained weights, safetensors and JSON only.

From the release's consolidated weights, or from a low-rank adapter that is merged here, W + B A * alpha / rank in
float32, shard by shard, so that one shard at a time is in memory. Names must be the start model's; number types become
the start model's. The tokenizer stays the start model's: a run does not change it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from contracts.errors import Permanent
from contracts.files import write_atomic
from trainers.inside import checkpoints
from trainers.inside.nemo.steps import CONSOLIDATED, INDEX, WEIGHTS

TIED = frozenset({"lm_head.weight"})
"""May be in one of the two folders only: a model whose head is its embedding stores it once or twice."""
PREFIX = "base_model.model."

Change = Callable[[str, Any], Any]
"""(name of a tensor, the start model's tensor) -> the trained tensor, in any float type."""


def export(start: Path, step: Path, adapter: bool, work: Path, folder: Path) -> Path:
    """The publishable model folder. Permanent where the step does not hold this model's weights."""
    trained = work / "trained"
    shutil.rmtree(trained, ignore_errors=True)
    trained.mkdir(parents=True)
    change = merged(step / WEIGHTS) if adapter else replaced(start, step / CONSOLIDATED)
    _rewrite(start, trained, change)
    return checkpoints.publishable(start, trained, folder)


def replaced(start: Path, consolidated: Path) -> Change:
    """Every tensor from the consolidated weights."""
    from safetensors import safe_open

    places = _places(consolidated)
    own = _places(start)
    strange = sorted(set(places).symmetric_difference(own) - TIED)
    if strange:
        raise Permanent(f"{consolidated} and the start model differ in tensor {strange[0]!r} (of {len(strange)}); they are not one model")

    def change(name: str, tensor: Any) -> Any:
        if name not in places:  # the tied head, stored once
            return tensor if name not in TIED else change(_embedding(own), tensor)
        with safe_open(places[name], "pt") as file:
            return file.get_tensor(name)

    return change


def _embedding(names: Mapping[str, Path]) -> str:
    found = [name for name in names if name.endswith("embed_tokens.weight") or name.endswith("wte.weight")]
    if not found:
        raise Permanent("the trained weights lack lm_head.weight, and no embedding is known that it could be tied to")
    return found[0]


def merged(weights: Path) -> Change:
    """The start model's tensors plus an adapter's. Permanent for an adapter of another kind."""
    from safetensors.torch import load_file

    settings = json.loads((weights / "adapter_config.json").read_bytes())
    odd = [key for key in ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save") if settings.get(key)]
    if odd:
        raise Permanent(f"{weights}: adapters with {odd[0]} cannot be merged here; train without it")
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
    """Name of the changed weight -> (A, B)."""
    pairs = {}
    for name in tensors:
        if ".lora_A" in name:
            module = name[: name.index(".lora_A")]
            other = name.replace(".lora_A", ".lora_B")
            if other not in tensors:
                raise Permanent(f"{weights}: adapter tensor {other!r} is absent; the checkpoint is incomplete")
            pairs[f"{module}.weight"] = (tensors[name], tensors[other])
    if not pairs or 2 * len(pairs) != len(tensors):
        raise Permanent(f"{weights} holds more than pairs of lora_A and lora_B, or none; such an adapter cannot be merged here")
    return pairs


def _rewrite(start: Path, trained: Path, change: Change) -> None:
    """The start model's shards with changed tensors, under the same names, and the same index."""
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
                    raise Permanent(f"trained tensor {name!r} has shape {tuple(new.shape)}, the start model's {tuple(old.shape)}")
                tensors[name] = (new.to(old.dtype) if old.is_floating_point() else new).contiguous()
                left.discard(name)
        save_file(tensors, trained / shard.name, metadata={"format": "pt"})
    if left:
        raise Permanent(f"the adapter changes {sorted(left)[0]!r}, which the start model does not have")
    if (start / INDEX).exists():
        write_atomic(trained / INDEX, (start / INDEX).read_bytes())


def _places(folder: Path) -> dict[str, Path]:
    """Tensor name -> file, from the headers."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        found.update({name: path for name in header if name != "__metadata__"})
    if not found:
        raise Permanent(f"{folder} holds no safetensors weights")
    return found
