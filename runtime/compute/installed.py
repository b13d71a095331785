"""Identity of the code with which a worker computes. A worker whose code differs from that of the service is refused."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.ids import digest, digest_file
from ratchet.runtime.extensions import ExtensionKind, load, offers, provider

PACKAGES = ("contracts", "runtime", "rewards", "materializer")
"""Subpackages of `ratchet` that a worker may run."""
_KINDS = (ExtensionKind.DIALECT, ExtensionKind.REWARD)


@cache
def installed_code() -> Mapping[str, str]:
    """Return name -> version or digest of all that may influence a result: Python, Ratchet's code, its libraries, and extensions.

    It is computed once per process, from the files that are installed then.
    """
    own = Path(__file__).parents[2]
    sources = [[path.relative_to(own).as_posix(), digest_file(path)] for name in PACKAGES for path in sorted((own / name).rglob("*.py"))]
    found = {"python": ".".join(map(str, sys.version_info[:2])), "ratchet": digest(sources)[:12]}
    for text in requires("ratchet") or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found[requirement.name] = _version(requirement.name)
    for kind in _KINDS:
        for name, entries in offers(kind).items():
            if any(provider(entry)[0] != "ratchet" for entry in entries):
                found[f"{kind} {name}"] = load(kind, name).identity().code[:12]
    return found


def refuse_other_code(theirs: Mapping[str, str], where: str, ours: Mapping[str, str] | None = None) -> None:
    """Raise ConfigError, which names the differences, if a worker (`theirs`) has other code than the service (`ours`, or this process).

    `where` describes the worker.
    """
    ours = installed_code() if ours is None else ours
    differ = [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
    if differ:
        named = "; ".join(f"{name}: {theirs.get(name, 'none')} there, {ours.get(name, 'none')} here" for name in differ[:5])
        more = f", and {len(differ) - 5} more" if len(differ) > 5 else ""
        raise ConfigError(
            f"{where} has other code than the service ({named}{more}), so that results could differ; install the same release and the "
            "same versions of its packages on both, then restart the service"
        )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
