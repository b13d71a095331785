"""Finds other installations near a folder, for the message to a user whose command looked into the wrong home folder."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ratchet.flows.config import variables
from ratchet.flows.config.home import Home

_MOST = 3
"""Number of installations that a message names."""
_LOOKED_AT = 500
"""Number of entries of a folder in which an installation is looked for."""


@dataclass(frozen=True)
class Installed:
    """An installation that has at least one line."""

    root: Path
    lines: tuple[str, ...]


def home_text(home: Home) -> str:
    """Return the home folder and where it comes from: RATCHET_HOME, or the default."""
    given = os.environ.get(variables.HOME)
    if not given:
        return f"{home.root} ({variables.HOME} is not set, so it is .ratchet in the current folder)"
    return f"{home.root} ({variables.HOME} is set to {given!r})"


def remedy_text(home: Home, line: str | None = None) -> str:
    """Return what to do if `home` is the wrong one: the installations above and beside the current folder, or empty text.

    With `line`, only installations that have this line are named.
    """
    found = [one for one in installations_near(Path.cwd(), home) if line is None or line in one.lines][:_MOST]
    if not found:
        return ""
    texts = [f"{one.root} ({'line' if len(one.lines) == 1 else 'lines'} {', '.join(one.lines)})" for one in found]
    return f"another installation is in {'; one in '.join(texts)}; to use it, set {variables.HOME}={found[0].root}"


def installations_near(folder: Path, home: Home) -> list[Installed]:
    """List the installations with lines in `folder`, in the folders above it and in those beside and below it, but not `home`.

    Nothing is changed, and a folder that cannot be read is left out.
    """
    found: dict[Path, Installed] = {}
    for root in _candidates(folder):
        if root != home.root and root not in found and (lines := _lines(Home(root).ledger_file)):
            found[root] = Installed(root, lines)
    return list(found.values())


def _candidates(folder: Path) -> Iterator[Path]:
    """Yield folders that may be a home: each place near `folder`, and `.ratchet` in it. The nearest come first."""
    beside = [*_folders(folder), *_folders(folder.parent)] if folder != folder.parent else []
    for place in (folder, *folder.parents, *beside):
        yield from (place / ".ratchet", place)


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            some = [entry.path for entry, _ in zip(entries, range(_LOOKED_AT), strict=False) if entry.is_dir()]
    except OSError:
        return []
    return [Path(path) for path in sorted(some)]


def _lines(file: Path) -> tuple[str, ...]:
    """Return the lines in a ledger file; empty if it is no ledger or cannot be read."""
    try:
        if not file.is_file():
            return ()
        wal = file.with_name(f"{file.name}-wal").exists()  # without one, nobody writes, and an immutable file is read without a lock file
        with closing(sqlite3.connect(f"{file.as_uri()}?{'mode=ro' if wal else 'immutable=1'}", uri=True, timeout=1)) as ledger:
            rows = ledger.execute("SELECT stream FROM ratchet_rows WHERE seq = 1 AND stream LIKE 'line/%' ORDER BY stream").fetchall()
    except (OSError, sqlite3.Error):
        return ()
    return tuple(stream.removeprefix("line/") for (stream,) in rows)
