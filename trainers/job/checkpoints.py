"""Checkpoints of a run, and the publishable model, as files and manifests.

The resume state (torch files with the optimiser and random number states) stays in the attempt's folder. It is verified against its
manifest before it is loaded. The library loads it with `weights_only=True`, so that no pickled code runs.
The publishable model is the start model's folder with the trained weights: safetensors, JSON, template and tokenizer files. An adapter is
published beside it.
The module does not load tensors.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ratchet.contracts.errors import Permanent
from ratchet.contracts.ids import Digest
from ratchet.contracts.jobs.training import ResumePoint
from ratchet.contracts.model import ADAPTER_CONFIG, ADAPTER_WEIGHTS, WEIGHTS, other_files, strange_files
from ratchet.contracts.safetensors import read_header
from ratchet.runtime.artifacts import sync
from ratchet.runtime.jobs.job_protocol import RunFile, step_folder, step_of
from ratchet.runtime.manifest import MANIFEST, verify_manifest, write_manifest


def seal(written: Path, folder: Path) -> Digest:
    """Turn the files in `written` into a finished checkpoint at `folder`, and return the digest of its manifest.

    The files are synced first, then the manifest is written, and then the folder is renamed.
    """
    for path in written.rglob("*"):
        if path.is_file():
            sync(path)
    digest = write_manifest(written)
    if folder.exists():  # left by an earlier process with the same incarnation number, never accepted
        shutil.rmtree(folder)
    written.replace(folder)
    sync(folder.parent)
    return digest


def prune(incarnation: Path, keep: int, pinned: ResumePoint | None, calm: int | None = None) -> None:
    """Remove old steps of an incarnation. Keep the newest `keep` steps, the pinned one, and the newest one up to step `calm`.

    The step up to `calm` is needed for a rollback if a health rule is violated later. Manifests are removed first, so that a partly
    removed step never looks complete.
    """
    steps = sorted(incarnation.glob(step_folder("*")), key=lambda folder: step_of(folder.name))
    good = [folder for folder in steps if calm is not None and step_of(folder.name) <= calm][-1:]
    for folder in steps[:-keep]:
        if folder not in good and (pinned is None or not folder.as_posix().endswith("/" + pinned.path)):
            (folder / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(folder)


def resume_folder(plan_folder: Path, resume: ResumePoint) -> Path:
    """Return the folder of the pinned step after verification. Raises Permanent if it does not match the pinned manifest."""
    folder = (plan_folder / resume.path).resolve()
    if not folder.is_relative_to(plan_folder.resolve()):
        raise Permanent(f"{RunFile.RESUME} names {resume.path!r}, which is outside the plan's folder; pin a step of this plan")
    verify_manifest(folder, resume.manifest)
    return folder


def publishable(start: Path, trained: Path, folder: Path) -> Path:
    """Write the publishable model to `folder`: the start model's files with the trained weights. Return `folder`.

    Moves the weights out of `trained`. Raises Permanent if the result has no weights or a file of another kind.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, path in other_files(start).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)
    for path in sorted(found for pattern in WEIGHTS for found in trained.glob(pattern)):
        shutil.move(path, folder / path.name)
    strange = strange_files(folder)
    if strange or not list(folder.glob("*.safetensors")):
        raise Permanent(f"{folder} must contain safetensors weights and no files of other kinds; it contains {strange or 'no weights'}")
    return folder


def publishable_adapter(trained: Path, folder: Path, base: Digest) -> Path:
    """Write the publishable adapter to `folder`: its weights and its configuration as PEFT wrote them to `trained`. Return `folder`.

    The configuration names `base`, the artifact of the base model, instead of a path. Lists without a meaningful order are sorted, so that
    equal runs publish equal files.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copyfile(trained / ADAPTER_WEIGHTS, folder / ADAPTER_WEIGHTS)
    config = json.loads((trained / ADAPTER_CONFIG).read_bytes()) | {"base_model_name_or_path": base}
    if isinstance(config.get("target_modules"), list):
        config["target_modules"].sort()
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")
    return folder


def stored_dtype(folder: Path) -> str:
    """Return the dtype that holds the most bytes in a model folder, under its safetensors name (F32, BF16, F16).

    It is read from the headers of the files. Raises Permanent if there are no weights or a header is invalid.
    """
    sizes: dict[str, int] = {}
    for path in folder.glob("*.safetensors"):
        for tensor in read_header(path).values():
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.end - tensor.begin
    if not sizes:
        raise Permanent(f"{folder} has no safetensors weights; adopt a folder written by save_pretrained")
    return max(sizes, key=lambda name: sizes[name])
