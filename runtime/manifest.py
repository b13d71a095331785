"""Folder manifest: `manifest.json` lists every other file with its SHA-256 and is written last.

Jobs write it next to a checkpoint. Executors verify it before they pin a checkpoint, and a job verifies it before it loads one. The
format is {"files": {relative name: digest}, "schema_version": N}. The manifest of a folder in `Artifacts` has no version, because its
digest identifies the folder and must be the same in each release.
"""

from __future__ import annotations

from pathlib import Path

from contracts.errors import Permanent
from contracts.ids import Digest, digest, digest_file
from contracts.schema import stamped, unstamped
from runtime.artifacts import write_atomic

MANIFEST = "manifest.json"


def _files(folder: Path) -> dict[str, Digest]:
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)
    return {path.relative_to(folder).as_posix(): digest_file(path) for path in found}


def write_manifest(folder: Path) -> Digest:
    """Write the manifest of all files below `folder` and return its digest. Raises `Retryable` if writing fails."""
    data = stamped({"files": _files(folder)})
    write_atomic(folder / MANIFEST, data)
    return digest(data)


def verify_manifest(folder: Path, expected: Digest | None = None) -> Digest:
    """Verify that `folder` contains exactly the files in its manifest, with the right content, and return the manifest's digest.

    Raises `Permanent` if the manifest is missing or invalid, if its digest is not `expected` (where given), or if a file differs. The
    message names the first file that differs.
    """
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
        files = dict(unstamped(data, MANIFEST)["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Permanent(f"{path} is missing or invalid ({type(error).__name__}); use an earlier checkpoint") from error
    if expected is not None and digest(data) != expected:
        raise Permanent(f"{path} has digest {digest(data)[:12]}, but the recorded digest is {expected[:12]}; use an earlier checkpoint")
    there = _files(folder)
    for name in sorted(files.keys() | there.keys()):
        if files.get(name) != there.get(name):
            raise Permanent(f"{folder / name} differs from its manifest (missing, added or changed); use an earlier checkpoint")
    return digest(data)
