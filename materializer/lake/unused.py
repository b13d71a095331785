"""Deletes the files of a lake to which nothing refers any more: files that were replaced, and leftovers of killed writers.

A reader may have planned its files before they were replaced. A file is therefore deleted only some time after it was first seen unused,
however old it is itself. The times are kept in a file in the lake's folder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ratchet.contracts.schema import stamped
from ratchet.materializer.lake.tables import Lake
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.json_files import read_json

READER_SECONDS = 86_400.0
"""Seconds for which an unused file is kept for readers that have begun before."""
_SEEN = "unused.json"
"""File in the folder of the lake: name of an unused file (see `LakeFile`) -> when it was first seen, in seconds since the epoch."""


class Swept(NamedTuple):
    """Numbers of the files that were deleted, of their bytes, and of the unused files that wait."""

    files: int
    bytes: int
    waiting: int


def sweep(lake: Lake, now: float, grace: float, dry_run: bool = False, boundary: Callable[[str], None] = lambda _: None) -> Swept:
    """Delete the files that were first seen unused at least `grace` seconds before `now` (seconds since the epoch).

    With `dry_run`, nothing is changed. After a crash, a repeated call deletes the rest. Raises Retryable if an erasure is at work.
    """
    seen = read_json(lake.root / _SEEN) or {}
    known = {str(path): float(at) for path, at in (seen.get("files") or {}).items()}
    unused = {file.name: file for file in lake.unused()}
    first = {name: min(now, known.get(name, now)) for name in unused}
    due = [unused[name] for name, at in first.items() if now - at >= grace]
    if not dry_run and first != known:
        write_atomic(lake.root / _SEEN, stamped({"files": first}))
    files = size = 0
    for file in due:
        files, size = files + 1, size + file.size
        if not dry_run:
            boundary("unused file")
            lake.delete(file)
    return Swept(files, size, len(first) - files)
