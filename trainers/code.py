"""The identity of the code that a training job runs: a digest over the sources of contracts, rewards and trainers.

A plan records it, and a job whose installed sources differ refuses the plan. It reads files; it imports nothing.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from contracts.errors import Permanent
from contracts.ids import Digest, digest, digest_file

ROOMS = ("contracts", "rewards", "trainers")


@cache
def code_digest() -> Digest:
    """Over the relative names and contents of all Python sources of the three rooms, as installed. Computed once per process."""
    return digest([[room, *pair] for room in ROOMS for pair in _sources(_folder(room))])


def _folder(room: str) -> Path:
    spec = importlib.util.find_spec(room)
    places = list(spec.submodule_search_locations or []) if spec else []
    if not places:
        raise Permanent(f"package {room!r} is not importable; install ratchet whole, or run in its source folder")
    return Path(places[0])


def _sources(folder: Path) -> list[list[str]]:
    return [[path.relative_to(folder).as_posix(), digest_file(path)] for path in sorted(folder.rglob("*.py"))]
