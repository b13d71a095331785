"""Finds installed scorers by name in the entry point group `ratchet.rewards`, and identifies their code versions."""

from __future__ import annotations

import inspect
from importlib.metadata import EntryPoint, entry_points
from itertools import takewhile
from pathlib import Path
from typing import Any

from contracts.errors import ConfigError
from contracts.ids import Digest, digest, digest_file
from rewards.options import nearest

GROUP = "ratchet.rewards"


def load(name: str) -> tuple[type[Any], EntryPoint]:
    """Return the class of a scorer and its entry point.

    Raises `ConfigError` if no installed package provides the name, if several packages do, or if the import fails.
    """
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        installed = sorted({entry.name for entry in entry_points(group=GROUP)})
        raise ConfigError(
            f"no reward {name!r} is installed{nearest(name, installed)}; installed: {', '.join(installed) or 'none; reinstall ratchet'}"
        )
    if len({entry.value for entry in found}) > 1:
        offers = ", ".join(f"{_distribution(entry)[0]} ({entry.value})" for entry in found)
        raise ConfigError(f"reward {name!r} is provided more than once: {offers}; uninstall all but one")
    try:
        return found[0].load(), found[0]
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"reward {name!r} ({found[0].value}) cannot be imported: {error}; reinstall {_distribution(found[0])[0]}"
        ) from error


def identify(kind: type[Any], entry: EntryPoint) -> tuple[str, str, Digest]:
    """Return (distribution, version, code digest) of a scorer.

    The code digest covers all files of the outermost package that contains the scorer's module, including prompts and rubrics. For a
    module outside any package, it covers the source file. A wheel and an editable install have the same digest. Raises `ConfigError` if
    the source is not available.
    """
    source = inspect.getsourcefile(kind)
    if source is None:
        raise ConfigError(f"reward {entry.name!r}: cannot pin its version without the source of {kind.__module__}; install the source")
    return *_distribution(entry), _code(Path(source).resolve())


def _code(source: Path) -> Digest:
    packages = list(takewhile(lambda folder: (folder / "__init__.py").is_file(), source.parents))
    if not packages:
        return digest_file(source)
    files = (path for path in sorted(packages[-1].rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return digest([[path.relative_to(packages[-1]).as_posix(), digest_file(path)] for path in files])


def _distribution(entry: EntryPoint) -> tuple[str, str]:
    return (entry.dist.name, entry.dist.version) if entry.dist else ("unknown", "0")
