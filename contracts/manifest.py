"""A folder's manifest: `manifest.json` names every other file with its SHA-256, and is written last.

Jobs write it beside a checkpoint, executors check it before they pin one, and a job checks it again before it loads
one. It knows nothing of what the files mean. Same form as a folder in `Artifacts`: {"files": {relative name: digest}}.
"""

from __future__ import annotations

import json
from pathlib import Path

from contracts.errors import Permanent
from contracts.files import write_atomic
from contracts.ids import Digest, canonical, digest, digest_file

MANIFEST = "manifest.json"


def _files(folder: Path) -> dict[str, Digest]:
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)
    return {path.relative_to(folder).as_posix(): digest_file(path) for path in found}


def write_manifest(folder: Path) -> Digest:
    """Writes the manifest of all files below `folder` and returns its digest. Retryable where the disk refuses."""
    data = canonical({"files": _files(folder)})
    write_atomic(folder / MANIFEST, data)
    return digest(data)


def verify_manifest(folder: Path, expected: Digest | None = None) -> Digest:
    """The manifest's digest, if `folder` holds exactly the files that it names, whole; and it is `expected`, where given.

    Permanent otherwise: the message names the first file that differs.
    """
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
        files = dict(json.loads(data)["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Permanent(f"{path} is absent or torn ({type(error).__name__}); use an earlier checkpoint") from error
    if expected is not None and digest(data) != expected:
        raise Permanent(f"{path} has digest {digest(data)[:12]}, not {expected[:12]} as recorded; use an earlier checkpoint")
    there = _files(folder)
    for name in sorted(files.keys() | there.keys()):
        if files.get(name) != there.get(name):
            raise Permanent(f"{folder / name} differs from its manifest (missing, added or changed); use an earlier checkpoint")
    return digest(data)
