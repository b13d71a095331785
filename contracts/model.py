"""Identity of a model: the digests of all files that affect its answers, instead of a name or a path."""

from __future__ import annotations

import json
import re
from math import prod
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import VERSION, BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from ratchet.contracts.errors import Permanent
from ratchet.contracts.ids import Digest, digest, digest_file
from ratchet.contracts.safetensors import read_header

_LATE = tuple(int(part) for part in re.findall(r"\d+", VERSION)[:3]) >= (2, 14, 3)
"""Whether pydantic can build a class at its first use while several threads use it. Older releases then fail now and then."""


class Frozen(BaseModel):
    """Base class of all control types: immutable, and unknown fields are errors.

    A class is built at its first use, because a command uses few of them and all of them take longer to build than it runs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=_LATE)


class Extended(Frozen):
    """Control type that got fields after its first release.

    The fields in `LATER` are not written while they are empty, so that ids do not change and older releases read the rest.
    """

    LATER: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _written(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in dump(self).items() if value or name not in self.LATER}


Count = Annotated[int, Field(ge=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
"""A number that is neither infinite nor NaN."""
Magnitude = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ModelRef(Extended):
    """Reference to a model by content. Two folders whose answer-relevant files are equal have equal ids."""

    LATER = ("merged",)

    weights: Digest
    """Digest over the names and digests of all *.safetensors files and those of these files that exist: config.json, the index of the
    weights and, for an adapter, its configuration."""
    tokenizer: Digest
    """Digest over those tokenizer files that exist: tokenizer.json, tokenizer_config.json, special_tokens_map.json, added_tokens.json,
    vocab.json, merges.txt and tokenizer.model."""
    chat_template: Digest
    """Digest over chat_template.jinja, chat_template.json and the files in additional_chat_templates. If none of them exists, the digest of
    an empty list (the tokenizer config may contain the template)."""
    generation_config: Digest
    """Digest over generation_config.json."""
    others: Digest
    """Digest over the names and digests of all files that may be published and hold no weights (`other_files`). Training keeps it."""
    files: Digest
    """Artifact (folder manifest) that contains the model."""
    parent: Digest | None = None
    """`files` of the base model if this model is an adapter, otherwise None."""
    merged: ModelRef | None = None
    """If this model is an adapter that the line trained: the same model with the adapter merged into its base. The next training starts
    from it. Otherwise None."""

    @property
    def id(self) -> Digest:
        """Return the model's identity, which does not depend on `files` and `merged`."""
        return digest([self.weights, self.tokenizer, self.chat_template, self.generation_config, self.parent])

    @property
    def whole(self) -> ModelRef:
        """Return the model with all its weights in one folder: `merged` if there is one, otherwise this model."""
        return self.merged or self

    @property
    def alone(self) -> ModelRef:
        """Return the reference without `merged`, as `model_ref` computes it from the model's own folder."""
        return self.model_copy(update={"merged": None})

    @property
    def base(self) -> Digest:
        """Return the artifact of the weights that a server loads: those of the base model for an adapter, otherwise `files`."""
        return self.parent or self.files


ADAPTER_CONFIG = "adapter_config.json"
"""Configuration of an adapter in the format of PEFT."""
ADAPTER_WEIGHTS = "adapter_model.safetensors"
"""Weights of an adapter in the format of PEFT."""
_WEIGHTS = ("config.json", ADAPTER_CONFIG, "model.safetensors.index.json")
_TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
_TEMPLATES = ("chat_template.jinja", "chat_template.json")


def _digest_files(paths: list[Path]) -> Digest:
    return digest([[path.name, digest_file(path)] for path in sorted(paths) if path.exists()])


def model_ref(folder: Path, files: Digest, parent: Digest | None = None) -> ModelRef:
    """Return the `ModelRef` of a Hugging Face model folder.

    `files` is the artifact that contains the model; `parent` is the base model's artifact if the model is an adapter. Raises `Permanent`
    if `folder` is not a folder or contains no safetensors weights.
    """
    weights = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    if not weights:
        raise Permanent(f"{folder} has no *.safetensors weights; use a folder written by save_pretrained (pickled weights are rejected)")
    return ModelRef(
        weights=_digest_files([*weights, *(folder / name for name in _WEIGHTS)]),
        tokenizer=_digest_files([folder / name for name in _TOKENIZER]),
        chat_template=_digest_files([*(folder / name for name in _TEMPLATES), *folder.glob("additional_chat_templates/*")]),
        generation_config=_digest_files([folder / "generation_config.json"]),
        others=digest([[name, digest_file(path)] for name, path in other_files(folder).items()]),
        files=files,
        parent=parent,
    )


PUBLISHED = frozenset({".json", ".jinja", ".txt", ".model", ".safetensors"})
"""Suffixes of the files that a trained model may consist of. None of these formats contains executable code."""
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
"""Patterns of the files that training changes."""


def other_files(folder: Path) -> dict[str, Path]:
    """Return the files of a model folder that may be published and hold no weights, by their relative names, in order.

    They decide how prompts are rendered and how answers are drawn, so a trained model has those of its start model.
    """
    found = {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.is_file() and path.suffix in PUBLISHED and not any(path.match(pattern) for pattern in WEIGHTS)
    }
    return dict(sorted(found.items()))


def strange_files(folder: Path) -> list[str]:
    """Return the names of the files in a folder that no trained model may contain."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() and path.suffix not in PUBLISHED)


PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib"})
"""Suffixes of files that a loader may read as a pickle, which can run any code."""


def refuse_custom_code(folder: Path) -> None:
    """Raise Permanent if a JSON file of the model folder contains `auto_map`.

    This key names Python code in the folder. Libraries that are told to trust it, as NeMo RL is, run this code when they load the model.
    """
    for path in sorted(folder.glob("*.json")):
        if b"auto_map" in path.read_bytes() and _holds_auto_map(path):
            raise Permanent(
                f"{path} contains auto_map, which names Python code that a loader would run; "
                "use an architecture that transformers has itself, and remove the key"
            )


def refuse_code(folder: Path) -> None:
    """Raise Permanent if the model folder contains code: `auto_map`, Python files or pickles."""
    refuse_custom_code(folder)
    for path in sorted(folder.rglob("*")):
        suffix = path.suffix.lower()
        if suffix == ".py" or suffix in PICKLES:
            raise Permanent(
                f"{path} is {'Python code' if suffix == '.py' else 'a pickle, which can run code'}; "
                "adopt a folder with only safetensors, JSON, the tokenizer and the chat template"
            )


def _holds_auto_map(path: Path) -> bool:
    def held(value: object) -> bool:
        if isinstance(value, dict):
            return "auto_map" in value or any(map(held, value.values()))
        return isinstance(value, list) and any(map(held, value))

    try:
        return held(json.loads(path.read_bytes()))
    except (ValueError, RecursionError):
        return True  # a loader may read it in another way


def count_parameters(folder: Path) -> int:
    """Return the number of parameters in a model folder, read from the headers of its safetensors files.

    Tied weights are stored, and therefore counted, once. Raises Permanent if a header is invalid.
    """
    total = 0
    for path in folder.glob("*.safetensors"):
        total += sum(prod(tensor.shape) for tensor in read_header(path).values())
    return total


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of a model folder's config.json; empty if there is none, or none that is an object."""
    try:
        found = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
