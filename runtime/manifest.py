"""Folder manifest: `manifest.json` lists every other file with its SHA-256 and is written last.

Jobs write it next to a checkpoint. Executors verify it before they pin a checkpoint, and a job verifies it before it loads one. The
format is {"files": {relative name: digest}, "schema_version": N}. The manifest of a folder in `Artifacts` has no version, because its
digest identifies the folder and must be the same in each release.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from ratchet.contracts.errors import Permanent
from ratchet.contracts.ids import Digest, digest
from ratchet.contracts.schema import stamped, unstamped
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.jobs.job_files import MANIFEST_BYTES, BadJobFile, open_job_file, read_job_file, regular_files

MANIFEST = "manifest.json"


def _files(folder: Path) -> dict[str, Digest]:
    return {name: _digest(path) for name, path in _paths(folder).items()}


def _paths(folder: Path) -> dict[str, Path]:
    """Return the files below a folder by relative name, without the manifest. Raises Permanent for links and special files."""
    return {path.relative_to(folder).as_posix(): path for path in regular_files(folder) if path != folder / MANIFEST}


def _digest(path: Path) -> Digest:
    with open_job_file(path, depth=1) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path) -> Digest:
    """Write the manifest of all files below `folder` and return its digest. Raises `Retryable` if writing fails."""
    data = stamped({"files": _files(folder)})
    write_atomic(folder / MANIFEST, data)
    return digest(data)


def verify_manifest(folder: Path, expected: Digest | None = None) -> Digest:
    """Verify that `folder` contains exactly the files in its manifest, with the right content, and return the manifest's digest.

    Raises `Permanent` if the manifest is missing or invalid, if its digest is not `expected` (where given), or if a file differs. The
    message names the first file that differs. Links and special files are refused and never opened.
    """
    path = folder / MANIFEST
    try:
        data = read_job_file(path, MANIFEST_BYTES) or b""
        files = dict(unstamped(data, MANIFEST)["files"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, BadJobFile) as error:
        raise Permanent(f"{path} is missing or invalid ({type(error).__name__}); use an earlier checkpoint") from error
    if expected is not None and digest(data) != expected:
        raise Permanent(f"{path} has digest {digest(data)[:12]}, but the recorded digest is {expected[:12]}; use an earlier checkpoint")
    there = _paths(folder)
    for name in sorted(files.keys() ^ there.keys()) or sorted(files):  # a file that the manifest does not name is not read
        if name not in files or name not in there or files[name] != _digest(there[name]):
            raise Permanent(f"{folder / name} differs from its manifest (missing, added or changed); use an earlier checkpoint")
    return digest(data)
