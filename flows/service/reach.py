"""Finds the artifacts that ledger rows and bound names refer to, directly or through other artifacts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from typing import Any

from ratchet.contracts.ids import Digest
from ratchet.contracts.ports import Ledger
from ratchet.runtime.artifacts import DIGEST, FolderArtifacts

_DIGEST_IN = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_DOCUMENT_BYTES = 16 << 20
"""Maximum size of an artifact that is read for the digests that it names. Larger ones are models or rows, which name none."""
_OF_LINES = ("cycle", "approval", "rollout", "edition", "split")
"""First parts of the streams and names whose second part is a line."""

_OF_LINES_ALONE = ("line", "reviews", "teacher")
"""First parts of the streams whose second and last part is a line."""


def named(artifacts: FolderArtifacts, ledger: Ledger, line: str | None = None) -> set[Digest]:
    """Return the digests that the ledger and the bound names contain, or only those that belong to one line.

    The streams of ingested batches name no artifact, and are not read.
    """
    prefixes = [f"{sort}/" if line is None else f"{sort}/{line}/" for sort in _OF_LINES]
    found = {key for name, key in artifacts.names() if line is None or name.startswith(tuple(prefixes))}
    streams = {stream for prefix in prefixes for stream in ledger.streams(prefix)}
    streams |= {stream for sort in _OF_LINES_ALONE for stream in (ledger.streams(f"{sort}/") if line is None else (f"{sort}/{line}",))}
    for stream in streams:
        for row in ledger.read(stream):
            found |= set(_digests(row.data))
    return found


def _digests(value: Any) -> Iterator[Digest]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _digests(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _digests(item)
    elif isinstance(value, str) and DIGEST.fullmatch(value):
        yield value


def reachable(artifacts: FolderArtifacts, roots: set[Digest], expired: Set[Digest] = frozenset()) -> set[Digest]:
    """Return the artifacts of the folder that the roots reach, also through documents, manifests and records of erased rows.

    Neither `expired` artifacts count nor what only they name.
    """
    left, reached = set(roots), set[Digest]()
    while left:
        key = artifacts.current(left.pop())
        path = artifacts.here(key)
        if key in reached or key in expired or not path.exists():
            continue
        reached.add(key)
        if path.stat().st_size <= _DOCUMENT_BYTES:
            left |= {found.decode() for found in _DIGEST_IN.findall(path.read_bytes())} - reached
    return reached
