"""Finds scorers by their short names through the entry point group `ratchet.rewards`, and says exactly which code each is."""

from __future__ import annotations

import inspect
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from contracts.errors import ConfigError
from contracts.ids import Digest, digest_file
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
    """(distribution, version, digest of the source of the module that defines the scorer)."""
    source = inspect.getsourcefile(kind)
    if source is None:
        raise ConfigError(f"reward {entry.name!r}: the source of {kind.__module__} cannot be read, so its version cannot be pinned")
    return *_distribution(entry), digest_file(Path(source))


def _distribution(entry: EntryPoint) -> tuple[str, str]:
    return (entry.dist.name, entry.dist.version) if entry.dist else ("unknown", "0")
