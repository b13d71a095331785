"""Finds scorers by their short names through the entry point group `ratchet.rewards`, and says exactly which code each is."""

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
    """The scorer's class and its entry point. ConfigError where no installed package offers the name, or where two do."""
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        installed = sorted({entry.name for entry in entry_points(group=GROUP)})
        raise ConfigError(
            f"no reward {name!r} is installed{nearest(name, installed)}; installed: {', '.join(installed) or 'none (is ratchet itself?)'}"
        )
    if len({entry.value for entry in found}) > 1:
        offers = ", ".join(f"{_distribution(entry)[0]} ({entry.value})" for entry in found)
        raise ConfigError(f"reward {name!r} is offered twice: {offers}; uninstall one")
    try:
        return found[0].load(), found[0]
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"reward {name!r} ({found[0].value}) cannot be imported: {error}; reinstall {_distribution(found[0])[0]}"
        ) from error


def identify(kind: type[Any], entry: EntryPoint) -> tuple[str, str, Digest]:
    """(distribution, version, digest of the code that scores: the outermost package around the scorer's module, with prompts and rubrics
    that lie in it; of a module in no package, its source). The same for a wheel and for an editable install."""
    source = inspect.getsourcefile(kind)
    if source is None:
        raise ConfigError(f"reward {entry.name!r}: the source of {kind.__module__} cannot be read, so its version cannot be pinned")
    return *_distribution(entry), _code(Path(source).resolve())


def _code(source: Path) -> Digest:
    packages = list(takewhile(lambda folder: (folder / "__init__.py").is_file(), source.parents))
    if not packages:
        return digest_file(source)
    files = (path for path in sorted(packages[-1].rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return digest([[path.relative_to(packages[-1]).as_posix(), digest_file(path)] for path in files])


def _distribution(entry: EntryPoint) -> tuple[str, str]:
    return (entry.dist.name, entry.dist.version) if entry.dist else ("unknown", "0")
