"""Identity of the code that a training job runs: a digest over the sources of `contracts`, `runtime`, `rewards` and `trainers`.

A plan records the digest. A job with different installed sources rejects the plan.
The module reads the source files without importing them.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from ratchet.contracts.errors import Permanent
from ratchet.contracts.ids import Digest, digest, digest_file

PACKAGES = ("contracts", "runtime", "rewards", "trainers")
"""Subpackages of `ratchet`."""


@cache
def code_digest() -> Digest:
    """Return the digest of the installed training code, computed once per process.

    It covers the relative names and the contents of all Python sources of these packages. Raises Permanent if one of the
    packages is not importable.
    """
    return digest([[package, *pair] for package in PACKAGES for pair in _sources(_folder(package))])


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(f"ratchet.{package}")
    places = list(spec.submodule_search_locations or []) if spec else []
    if not places:
        raise Permanent(
            f"package 'ratchet.{package}' is not importable; install the complete ratchet distribution, or run in its source folder"
        )
    return Path(places[0])


def _sources(folder: Path) -> list[list[str]]:
    return [[path.relative_to(folder).as_posix(), digest_file(path)] for path in sorted(folder.rglob("*.py"))]
