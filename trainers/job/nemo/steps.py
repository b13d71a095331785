"""Checkpoints of the release: checks for completeness, the copy into sealed checkpoints, and the copy back for a resume.

Layout: CHECKPOINTS/step_N/{training_info.json, config.yaml, train_dataloader.pt, policy/{weights/model, optimizer}}. The release
writes to tmp_step_N and then renames the folder. It resumes from the step with the highest number without further checks. So the
folder of a run only contains the pinned step at the start, and only complete steps get a manifest.
The module reads file headers. It loads no tensors and no pickles.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ratchet.contracts.errors import Permanent
from ratchet.contracts.ids import Digest
from ratchet.contracts.safetensors import read_header
from ratchet.runtime.manifest import MANIFEST
from ratchet.trainers.job import checkpoints

WEIGHTS = "policy/weights/model"
"""Folder of the weights within a step."""
CONSOLIDATED = f"{WEIGHTS}/consolidated"
"""Folder of the consolidated weights within a step."""
INDEX = "model.safetensors.index.json"
CHOICE = "choice"
"""Folder that Ratchet adds to a sealed step: its measurements, and the weights of the best step so far (`choice.py`)."""


@dataclass(frozen=True)
class FoundStep:
    """A checkpoint folder step_N of the release."""

    step: int
    """Number of the step, from the folder name."""
    folder: Path
    missing: tuple[str, ...]
    """Missing or invalid files. Empty if the step is complete."""


def find_steps(folder: Path, adapter: bool, consolidated: bool) -> list[FoundStep]:
    """Return all steps in `folder`, oldest first, without tmp_step_N and old_step_N.

    `adapter` and `consolidated` state which weights a complete step must contain.
    """
    numbered = [(int(match[1]), path) for path in folder.glob("step_*") if (match := re.fullmatch(r"step_(\d+)", path.name))]
    return [FoundStep(step, path, tuple(lacks(path, step, adapter, consolidated))) for step, path in sorted(numbered)]


def leftovers(folder: Path) -> list[str]:
    """Return the folder names of incomplete saves: partly written or partly renamed steps."""
    return sorted(path.name for path in folder.glob("*_step_*") if re.fullmatch(r"(tmp|old)_step_\d+", path.name))


def lacks(folder: Path, step: int, adapter: bool, consolidated: bool) -> Iterator[str]:
    """Yield the missing or invalid files of a step.

    Checks the files for a resume and, if `consolidated`, also the files for publishing.
    """
    try:
        if int(json.loads((folder / "training_info.json").read_bytes())["total_steps"]) != step:
            yield "training_info.json (of another step)"
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        yield "training_info.json"
    for name in ("config.yaml", "train_dataloader.pt"):
        if not _filled(folder / name):
            yield name
    yield from _lacks_weights(folder / WEIGHTS, adapter)
    if consolidated:
        yield from _lacks_weights(folder / CONSOLIDATED, False)
    yield from _lacks_state(folder / "policy" / "optimizer")


def lacks_model(folder: Path, adapter: bool) -> Iterator[str]:
    """Yield the missing or invalid files of the weights in `folder`, which is a step or what `choice.py` keeps of one."""
    yield from _lacks_weights(folder / WEIGHTS, adapter)
    if not adapter:
        yield from _lacks_weights(folder / CONSOLIDATED, False)


def _lacks_weights(folder: Path, adapter: bool) -> Iterator[str]:
    name = folder.name if folder.name == "consolidated" else "weights"
    shards = sorted(folder.glob("*.safetensors"))
    if adapter:
        shards = [folder / "adapter_model.safetensors"]
        if not _filled(folder / "adapter_config.json"):
            yield f"{name}/adapter_config.json"
    if not shards:
        yield f"{name}/*.safetensors"
    yield from (f"{name}/{path.name} (truncated)" for path in shards if not whole(path))
    index = folder / INDEX
    if index.exists():
        try:
            named = {str(name) for name in json.loads(index.read_bytes())["weight_map"].values()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            yield f"{name}/{INDEX} (not valid)"
        else:
            yield from (f"{name}/{lost}" for lost in sorted(named - {path.name for path in shards}))
    elif name == "consolidated" and len(shards) > 1:
        yield f"{name}/{INDEX}"


def _lacks_state(folder: Path) -> Iterator[str]:
    """Yield the missing files of the optimiser's distributed checkpoint.

    One rank writes `.metadata` last. It contains the names of the parts of all ranks.
    """
    found = [path for path in folder.rglob(".metadata") if _filled(path)]
    if not found:
        yield "optimizer/.metadata"
    for metadata in found:
        named = _parts(metadata, metadata.stat().st_mtime_ns)
        if not named:
            yield "optimizer/.metadata (truncated)"
        yield from (f"optimizer/{name}" for name in named if not _filled(metadata.parent / name))


@lru_cache
def _parts(metadata: Path, _at: int) -> list[str]:
    """Names of the parts in a `.metadata` file, or none if the file is truncated. `_at` is its modification time, for the cache.

    The file is a pickle, which could contain code. So it is not loaded: the names are found by a search of its bytes. The last byte
    must be the STOP opcode of a pickle.
    """
    data = metadata.read_bytes()
    return sorted({name.decode() for name in re.findall(rb"__\d+_\d+\.distcp", data)}) if data.endswith(b".") else []


def _filled(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def whole(path: Path) -> bool:
    """Return whether a safetensors file has tensors and the length that its header defines."""
    try:
        return bool(read_header(path))
    except (OSError, Permanent):
        return False  # not a valid safetensors header


def link_tree(source: Path, target: Path) -> None:
    """Hard-link the files of `source` into `target`, without the manifest. Copy them if the file system has no hard links.

    Raises FileNotFoundError if a file disappears in the meantime.
    """
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        elif path != source / MANIFEST:
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, place)
            except FileNotFoundError:
                raise
            except OSError:  # a file system without hard links
                shutil.copyfile(path, place)


def keep(found: FoundStep, folder: Path, work: Path, adapter: bool, add: Callable[[Path, int], None] | None = None) -> Digest:
    """Seal a copy of a complete step at `folder`, because the release rotates its own checkpoints. Return the manifest's digest.

    `work` is a folder for temporary files. `add` writes further files into the copy of a step. Raises FileNotFoundError if the release has
    removed the step in the meantime.
    """
    part = work / f"sealing_{found.step}"
    shutil.rmtree(part, ignore_errors=True)
    try:
        link_tree(found.folder, part)
        if gone := list(lacks(part, found.step, adapter, consolidated=False)):  # removed during the copy
            raise FileNotFoundError(f"{found.folder} lost {', '.join(gone)}")
        if add is not None:
            add(part, found.step)
        return checkpoints.seal(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def lay_down(pinned: Path | None, step: int, folder: Path) -> None:
    """Create a new checkpoint folder for the release that contains only the pinned step, or nothing.

    The caller has verified the pinned step. Raises Permanent if it is not a step of this trainer.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if pinned is None:
        return
    part = folder / f"tmp_step_{step}"
    link_tree(pinned, part)
    shutil.rmtree(part / CHOICE, ignore_errors=True)  # the release did not write it
    if not (part / "training_info.json").exists():
        raise Permanent(f"{pinned} is not a step of this trainer; pin a step that it wrote")
    part.replace(folder / f"step_{step}")
