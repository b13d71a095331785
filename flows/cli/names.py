"""Resolves the names that a user types: lines, cycles, versions and approval requests; and completes them in a shell."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratchet.contracts.errors import ConfigError, RatchetError

if TYPE_CHECKING:
    from ratchet.flows.composition.installation import Installation
    from ratchet.flows.core.folds.cycle import CycleView
    from ratchet.flows.report.version_diff import Made


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the most similar known name, or empty text if none is similar."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def named_line(installation: Installation, name: str | None) -> str:
    """Return the line that the user names, or the only line if `name` is None. The name may also be the path of a loop file.

    Raises ConfigError if the line does not exist, or if the user names no line although there are several.
    """
    lines = [view.line for view in installation.lines()]
    if name is None:
        if len(lines) != 1:
            raise ConfigError(f"name a line; there are {', '.join(lines)}" if lines else f"no line exists in {installation.home.root} yet")
        return lines[0]
    if name not in lines and is_file_name(name):
        from ratchet.flows.config.load import load_loop

        name = load_loop(Path(name)).line.name
    if name not in lines:
        raise ConfigError(f"there is no line {name!r}{nearest(name, lines)}; available: {', '.join(lines) or 'none'}")
    return name


def is_file_name(name: str) -> bool:
    """Return whether the text is the path of a loop file and not the name of a line."""
    return name.endswith(".toml") or "/" in name


def named_loop(installation: Installation, name: str) -> Path:
    """Return the loop file that the user names, by its path or by its line. Raises ConfigError if the ledger knows no file of the line."""
    return Path(name) if is_file_name(name) else installation.loop_file(named_line(installation, name))


def named_cycle(installation: Installation, name: str | None) -> CycleView:
    """Return the cycle that the user names: cycle/LINE/NUMBER, LINE/NUMBER, LINE for its newest, or None for the only line's newest.

    Raises ConfigError if there is no such cycle.
    """
    from ratchet.contracts.ids import cycle_stream

    line, _, number = (name or named_line(installation, None)).removeprefix("cycle/").partition("/")
    known = installation.ledger.streams("cycle/")
    if number.isdecimal():
        stream = cycle_stream(line, int(number))
    else:
        stream = next((one for one in reversed(known) if one.startswith(f"cycle/{line}/") and not number), "")
    if stream not in known:
        raise ConfigError(f"there is no cycle {name or line!r}; available: {', '.join(known[-10:]) or 'none'}")
    found = installation.cycle(line, int(stream.rpartition("/")[2]))
    if found is None:
        raise ConfigError(f"{stream} has no rows")
    return found


def named_version(installation: Installation, name: str) -> Made:
    """Return the version that the user names: LINE/NUMBER for that of a cycle, LINE/0 for the adopted model, LINE/champion,
    LINE/previous, or a tag or its beginning.

    Raises ConfigError if there is no such version, or more than one.
    """
    line, _, which = name.removeprefix("cycle/").partition("/")
    if which:
        return _version_of(installation, named_line(installation, line), which, name)
    found = {made.version.tag: made for view in installation.lines() for made in line_versions(installation, view.line)}
    tags = [tag for tag in found if tag == name or (len(name) > 3 and tag.startswith(name))]
    if len(tags) != 1:
        listed = ", ".join(f"{made.version.line}/{made.version.number} {tag}" for tag, made in found.items())
        raise ConfigError(f"{'several versions begin with' if tags else 'there is no version'} {name!r}; available: {listed or 'none'}")
    return found[tags[0]]


def _version_of(installation: Installation, line: str, which: str, name: str) -> Made:
    view, made = installation.line(line), line_versions(installation, line)
    wanted = {"champion": view.champion, "previous": view.previous}.get(which)
    number = int(which) if which.isdecimal() else wanted.number if wanted else None
    found = next((one for one in made if one.version.number == number), None)
    if found is None:
        listed = ", ".join(f"{line}/{one.version.number}" for one in made)
        raise ConfigError(f"{name} made no version; versions of line {line}: {listed or 'none'}")
    return found


def line_versions(installation: Installation, line: str) -> list[Made]:
    """Return the adopted model and the versions of all cycles of a line, oldest first."""
    from ratchet.flows.report.version_diff import Made

    base = installation.line(line).base
    cycles = installation.cycles(line)
    return [*([Made(base, None)] if base else []), *(Made(cycle.candidate, cycle) for cycle in cycles if cycle.candidate)]


# Shell completion. A shell shows the candidates, so no error and no message may appear.

_Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _completes(candidates: Callable[[Installation], Iterable[str]]) -> _Complete:
    def complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        from ratchet.flows.composition.installation import Installation
        from ratchet.flows.config.home import Home

        home = Home.from_environment()
        file = home.ledger_url.removeprefix("sqlite:///")
        if file != home.ledger_url and not Path(file).exists():
            return []  # a completion must not create the database
        try:
            return [text for text in candidates(Installation(home)) if text.startswith(incomplete) and text.isprintable()]
        except RatchetError:
            return []

    return complete


def _lines(installation: Installation) -> list[str]:
    return [stream.removeprefix("line/") for stream in installation.ledger.streams("line/")]


def _cycles(installation: Installation) -> list[str]:
    return [stream.removeprefix("cycle/") for stream in installation.ledger.streams("cycle/")]


def _requests(installation: Installation) -> list[str]:
    from ratchet.flows.engine.line import approvals

    found = [view for line in _lines(installation) for view in approvals(installation.ledger, line)]
    return [view.id.removeprefix("approval/") for view in found if view.awaiting]


complete_line = _completes(_lines)
complete_cycle = _completes(lambda installation: [*_lines(installation), *_cycles(installation)])
complete_request = _completes(_requests)
complete_any = _completes(lambda installation: [*_lines(installation), *_cycles(installation), *_requests(installation)])
complete_version = _completes(
    lambda installation: [f"{line}/{made.version.number}" for line in _lines(installation) for made in line_versions(installation, line)]
)


def line_argument(required: bool = True) -> Callable[[Any], Any]:
    """Return the argument LINE, which is completed from the ledger."""
    return click.argument("line", required=required, shell_complete=complete_line)


def cycle_argument(required: bool = False) -> Callable[[Any], Any]:
    """Return the argument CYCLE, which is completed from the ledger."""
    return click.argument("cycle", required=required, shell_complete=complete_cycle)
