"""The release's checkpoints: which are whole, which are not and why, and how one passes into our keeping and back.

Layout: CHECKPOINTS/step_N/{training_info.json, config.yaml, train_dataloader.pt, policy/{weights/model, optimizer}}; written as
tmp_step_N, and renamed. The release resumes from the highest number it sees and looks no further; so a run sees only the step
that was pinned, and only whole steps get a manifest. Reads headers, never tensors, never a pickle.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from contracts.errors import Permanent
from contracts.ids import Digest
from contracts.manifest import MANIFEST
from trainers.inside import checkpoints

WEIGHTS = "policy/weights/model"
CONSOLIDATED = f"{WEIGHTS}/consolidated"
INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Found:
    """One step_N."""

    step: int
    folder: Path
    missing: tuple[str, ...]
    """What it lacks, in words; empty: it is whole."""


def look(folder: Path, adapter: bool, consolidated: bool) -> list[Found]:
    """All steps below `folder`, oldest first. tmp_step_N and old_step_N are not steps."""
    numbered = [(int(match[1]), path) for path in folder.glob("step_*") if (match := re.fullmatch(r"step_(\d+)", path.name))]
    return [Found(step, path, tuple(lacks(path, step, adapter, consolidated))) for step, path in sorted(numbered)]


def leftovers(folder: Path) -> list[str]:
    """Names of what a save that was cut short left: half-written and half-renamed steps."""
    return sorted(path.name for path in folder.glob("*_step_*") if re.fullmatch(r"(tmp|old)_step_\d+", path.name))


def lacks(folder: Path, step: int, adapter: bool, consolidated: bool) -> Iterator[str]:
    """What a step lacks to be resumed from, and where `consolidated`, to be published from."""
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


def _lacks_weights(folder: Path, adapter: bool) -> Iterator[str]:
    name = folder.name if folder.name == "consolidated" else "weights"
    shards = sorted(folder.glob("*.safetensors"))
    if adapter:
        shards = [folder / "adapter_model.safetensors"]
        if not _filled(folder / "adapter_config.json"):
            yield f"{name}/adapter_config.json"
    if not shards:
        yield f"{name}/*.safetensors"
    yield from (f"{name}/{path.name} (cut short)" for path in shards if not whole(path))
    index = folder / INDEX
    if index.exists():
        try:
            named = {str(name) for name in json.loads(index.read_bytes())["weight_map"].values()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            yield f"{name}/{INDEX} (torn)"
        else:
            yield from (f"{name}/{lost}" for lost in sorted(named - {path.name for path in shards}))
    elif name == "consolidated" and len(shards) > 1:
        yield f"{name}/{INDEX}"


def _lacks_state(folder: Path) -> Iterator[str]:
    """The optimiser's distributed checkpoint: its `.metadata` is written last, by one rank, and names the parts of all ranks."""
    found = [path for path in folder.rglob(".metadata") if _filled(path)]
    if not found:
        yield "optimizer/.metadata"
    for metadata in found:
        named = _parts(metadata, metadata.stat().st_mtime_ns)
        if not named:
            yield "optimizer/.metadata (torn)"
        yield from (f"optimizer/{name}" for name in named if not _filled(metadata.parent / name))


@lru_cache
def _parts(metadata: Path, _at: int) -> list[str]:
    """Names of the parts that a `.metadata` of that time speaks of; none where it is cut short. It is a pickle, which could carry code: its
    bytes are searched for names, which stand in it as they are, and its last must be that of a pickle's end."""
    data = metadata.read_bytes()
    return sorted({name.decode() for name in re.findall(rb"__\d+_\d+\.distcp", data)}) if data.endswith(b".") else []


def _filled(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def whole(path: Path) -> bool:
    """Whether a safetensors file holds tensors and is as long as its own header says (8 bytes of header length, JSON, tensors)."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if 0 < length <= path.stat().st_size else {}
            ends = [int(value["data_offsets"][1]) for name, value in header.items() if name != "__metadata__"]
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError):
        return False  # whatever it is, it is no header of tensors
    return bool(ends) and path.stat().st_size == 8 + length + max(ends)


def link_tree(source: Path, target: Path) -> None:
    """`target` holds the files of `source` (but no manifest of ours): the same blocks where links work, else copies."""
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


def keep(found: Found, folder: Path, work: Path, adapter: bool) -> Digest:
    """Seals a whole step at `folder`, beside the release's own, which it rotates as it likes. FileNotFoundError if it just did."""
    part = work / f"sealing_{found.step}"
    shutil.rmtree(part, ignore_errors=True)
    try:
        link_tree(found.folder, part)
        if gone := list(lacks(part, found.step, adapter, consolidated=False)):  # removed while we looked
            raise FileNotFoundError(f"{found.folder} lost {', '.join(gone)}")
        return checkpoints.seal(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def lay_down(pinned: Path | None, step: int, folder: Path) -> None:
    """A fresh checkpoint folder with nothing in it but the pinned step, already verified by the caller."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if pinned is None:
        return
    part = folder / f"tmp_step_{step}"
    link_tree(pinned, part)
    if not (part / "training_info.json").exists():
        raise Permanent(f"{pinned} is no step of this trainer; pin one that it wrote")
    part.replace(folder / f"step_{step}")
