"""What a model is: digests of the files that decide its answers. Never a bare name or path."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from contracts.errors import Permanent
from contracts.ids import Digest, digest, digest_file


class Frozen(BaseModel):
    """Base of all control types: immutable, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelRef(Frozen):
    """A model by content. Two folders with equal answers-deciding files have equal refs."""

    weights: Digest
    """Over the names and digests of all *.safetensors files and config.json."""
    tokenizer: Digest
    """Over tokenizer.json, tokenizer_config.json, special_tokens_map.json, vocab and merges files, where present."""
    chat_template: Digest
    """Of chat_template.jinja, or of the empty string where the tokenizer config carries it."""
    generation_config: Digest
    files: Digest
    """The artifact (folder manifest) that holds the model."""
    parent: Digest | None = None
    """`files` of the base model, where this one is an adapter."""

    @property
    def id(self) -> Digest:
        """The model's identity."""
        return digest([self.weights, self.tokenizer, self.chat_template, self.generation_config, self.parent])


_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt", "tokenizer.model")


def _digest_files(paths: list[Path]) -> Digest:
    return digest([[path.name, digest_file(path)] for path in sorted(paths) if path.exists()])


def model_ref(folder: Path, files: Digest, parent: Digest | None = None) -> ModelRef:
    """Reads a Hugging Face model folder into a ModelRef. Permanent if it holds no safetensors weights or is not a folder."""
    weights = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not weights:
        raise Permanent(f"{folder} holds no *.safetensors weights: name a folder written by save_pretrained (pickled weights are refused)")
    return ModelRef(
        weights=_digest_files([*weights, folder / "config.json"]),
        tokenizer=_digest_files([folder / name for name in _TOKENIZER]),
        chat_template=_digest_files([folder / "chat_template.jinja"]),
        generation_config=_digest_files([folder / "generation_config.json"]),
        files=files,
        parent=parent,
    )


def count_parameters(folder: Path) -> int:
    """Weights of a model folder, from its safetensors headers: 8 bytes of length, then JSON. Tied ones count once."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        total += sum(prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    return total
