"""Checkpoints of a run and the model that leaves it. Knows files and manifests, no tensors.

Resume state (optimiser, random numbers: torch files) never leaves the attempt's folder; it is checked against our
manifest before anything is loaded, and the library loads it with `weights_only=True`, which runs no pickled code.
The model that leaves is the start model's folder with other weights: safetensors, JSON, template and tokenizer files.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from contracts.errors import Permanent
from contracts.files import sync_folder
from contracts.ids import Digest
from contracts.manifest import MANIFEST, verify_manifest, write_manifest
from contracts.training import ResumePoint

LEAVES = frozenset({".json", ".jinja", ".txt", ".model", ".safetensors"})
"""Kinds of files that a published model may hold; none of them can carry code."""
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")


def seal(written: Path, folder: Path) -> Digest:
    """Turns what a library wrote into a finished checkpoint at `folder`: synced, then its manifest, then its name."""
    for path in written.rglob("*"):
        if path.is_file():
            _sync(path)
    digest = write_manifest(written)
    if folder.exists():  # left by an incarnation that was never accepted under this number
        shutil.rmtree(folder)
    written.replace(folder)
    sync_folder(folder.parent)
    return digest


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def prune(incarnation: Path, keep: int, pinned: ResumePoint | None, calm: int | None = None) -> None:
    """Removes all but the newest `keep` steps of an incarnation, the pinned one, and the newest one up to step `calm`, which is what
    there is to go back to if trouble has begun since. Manifests go first: no torn step looks whole."""
    steps = sorted(incarnation.glob("step_*"), key=_number)
    good = [folder for folder in steps if calm is not None and _number(folder) <= calm][-1:]
    for folder in steps[:-keep]:
        if folder not in good and (pinned is None or not folder.as_posix().endswith("/" + pinned.path)):
            (folder / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(folder)


def _number(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))


def resume_folder(plan_folder: Path, resume: ResumePoint) -> Path:
    """The pinned step's folder, verified whole. Permanent if it is not what was pinned."""
    folder = (plan_folder / resume.path).resolve()
    if not folder.is_relative_to(plan_folder.resolve()):
        raise Permanent(f"resume.json names {resume.path!r}, outside the plan's folder; pin a step of this plan")
    verify_manifest(folder, resume.manifest)
    return folder


def publishable(start: Path, trained: Path, folder: Path) -> Path:
    """Lays out the model that leaves: the start model's own files, with the trained weights. Permanent if anything else is in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in sorted(start.iterdir()):
        if path.is_file() and path.suffix in LEAVES and not any(path.match(pattern) for pattern in WEIGHTS):
            shutil.copyfile(path, folder / path.name)
    for path in sorted(found for pattern in WEIGHTS for found in trained.glob(pattern)):
        shutil.move(path, folder / path.name)
    strange = [path.name for path in folder.rglob("*") if path.suffix not in LEAVES]
    if strange or not list(folder.glob("*.safetensors")):
        raise Permanent(f"{folder} must hold safetensors weights and nothing that carries code; it holds {strange or 'no weights'}")
    return folder


def stored_dtype(folder: Path) -> str:
    """The type of a model folder's largest part, as safetensors names it (F32, BF16, F16), from the files' headers.

    Format: https://github.com/huggingface/safetensors#format (8 bytes of header length, then JSON).
    """
    sizes: dict[str, int] = {}
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for tensor in (value for name, value in header.items() if name != "__metadata__"):
            begin, end = tensor["data_offsets"]
            sizes[tensor["dtype"]] = sizes.get(tensor["dtype"], 0) + end - begin
    if not sizes:
        raise Permanent(f"{folder} holds no safetensors weights; adopt a folder written by save_pretrained")
    return max(sizes, key=lambda name: sizes[name])
