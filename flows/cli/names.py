"""Resolves the names that a user types for cycles, versions and approval requests; and completes all names in a shell."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ratchet.contracts.errors import ConfigError, RatchetError, Rejected
from ratchet.flows.cli.lines import known_lines, loop_files, named_line, unknown_line

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ratchet.flows.composition.installation import Installation
    from ratchet.flows.core.folds.cycle import CycleView
    from ratchet.flows.core.requests import ApprovalView
    from ratchet.flows.report.version_diff import Made


def named_cycle(installation: Installation, name: str | None, quiet: bool) -> CycleView:
    """Return the cycle that the user names: cycle/LINE/NUMBER or LINE/NUMBER; or LINE, or its loop file, for its newest; or None for the
    only line's newest.

    Unless `quiet`, one line on standard error says which line was taken. Raises ConfigError if there is no such cycle.
    """
    from ratchet.contracts.ids import cycle_stream

    lines = known_lines(installation)
    first, _, number = (name or "").removeprefix("cycle/").partition("/")
    by_number = number.isdecimal() and not Path(name or "").exists()
    line = first if by_number else named_line(installation, name, quiet, reads=True)
    if line not in lines:
        raise unknown_line(installation.home, lines, line)
    known = installation.ledger.streams(f"cycle/{line}/")
    stream = cycle_stream(line, int(number)) if by_number else known[-1] if known else ""
    if stream not in known:
        newest = ", ".join(one.removeprefix("cycle/") for one in known[-10:])
        what = f"there is no cycle {name!r}" if by_number else f"line {line!r} has no cycle yet"
        raise ConfigError(f"{what}; cycles of the line: {newest}" if newest else f"{what}; `ratchet trigger {line}` opens one")
    found = installation.cycle(line, int(stream.rpartition("/")[2]))
    if found is None:
        raise ConfigError(f"{stream} has no rows")
    return found


def named_request(installation: Installation, name: str | None, quiet: bool) -> ApprovalView:
    """Return the approval request that the user names: approval/LINE/NUMBER/training, or the same without `approval/`; or LINE, or its loop
    file, for the only pending request of the line; or None for the only pending request.

    Unless `quiet`, one line on standard error says which line was taken. Raises Rejected if there is no such request, or several.
    """
    from ratchet.flows.engine.line import approvals

    lines = known_lines(installation)
    known = [view for line in lines for view in approvals(installation.ledger, line)]
    waiting = [view for view in known if view.awaiting]
    named = [view for view in known if name in (view.id, view.id.removeprefix("approval/"))] if name else waiting
    about = ""
    if name and not named and name.removeprefix("approval/").count("/") != 2:
        line = named_line(installation, name, quiet)
        named = [view for view in waiting if view.id.startswith(f"approval/{line}/")]
        about = f" of line {line!r}"
    if len(named) == 1:
        return named[0]
    listed = "\n".join(f"  {view.id}  until {view.expires:%Y-%m-%d %H:%M} UTC" for view in waiting) or "  none"
    if not waiting and (about or not name):
        raise Rejected("which_request", "no request is pending; `ratchet status` shows what each cycle waits for")
    number = f"{len(named)} requests{about} are pending; name one"
    problem = f"there is no request {name!r}" if name and not about else number if about else f"no REQUEST given, and {number}"
    raise Rejected("which_request", f"{problem}; pending requests:\n{listed}")


def named_version(installation: Installation, name: str) -> Made:
    """Return the version that the user names: LINE/NUMBER for that of a cycle, LINE/0 for the adopted model, LINE/champion,
    LINE/previous, or a tag or its beginning.

    Raises ConfigError if there is no such version, or more than one.
    """
    line, _, which = name.removeprefix("cycle/").partition("/")
    if which:
        return _version_of(installation, named_line(installation, line, quiet=True), which, name)
    found = {made.version.tag: made for line in known_lines(installation) for made in line_versions(installation, line)}
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

_Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def _completes(candidates: Callable[[Installation], Iterable[str]], files: bool = False) -> _Complete:
    """Return a completion of names from the ledger. With `files`, loop files are offered, too."""

    def complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [text for text in _known(candidates) if text.startswith(incomplete) and text.isprintable()]
        names += _loop_files(incomplete) if files else []
        if files and not names:
            return [CompletionItem(incomplete, type="file")]  # the shell completes the path
        return [CompletionItem(name) for name in names]

    return complete


def _known(candidates: Callable[[Installation], Iterable[str]]) -> list[str]:
    from ratchet.flows.composition.installation import Installation
    from ratchet.flows.config.home import Home

    home = Home.from_environment()
    if not home.has_ledger:
        return []  # a completion must not create the database
    try:
        return list(candidates(Installation(home)))
    except RatchetError:
        return []


def _loop_files(incomplete: str) -> list[str]:
    """Return the loop files of the current folder whose names begin so. A path with a folder is left to the shell."""
    return [name for name in loop_files() if name.startswith(incomplete)]


def _lines(installation: Installation) -> list[str]:
    return known_lines(installation)


def _cycles(installation: Installation) -> list[str]:
    return [stream.removeprefix("cycle/") for stream in installation.ledger.streams("cycle/")]


def _requests(installation: Installation) -> list[str]:
    from ratchet.flows.engine.line import approvals

    found = [view for line in _lines(installation) for view in approvals(installation.ledger, line)]
    return [view.id.removeprefix("approval/") for view in found if view.awaiting]


complete_line = _completes(_lines, files=True)
complete_cycle = _completes(lambda installation: [*_lines(installation), *_cycles(installation)], files=True)
complete_request = _completes(_requests)
complete_any = _completes(lambda installation: [*_lines(installation), *_cycles(installation), *_requests(installation)], files=True)
complete_version = _completes(
    lambda installation: [f"{line}/{made.version.number}" for line in _lines(installation) for made in line_versions(installation, line)]
)


class LineName(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.4 only
    """The name of a line, or the path of its loop file. A message about a missing one names what there is."""

    name = "text"

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str | None:  # noqa: ARG002
        """Return the lines of the installation and the loop files of the current folder, or None if there are none."""
        lines, files = _known(_lines), _loop_files("")
        told = [f"{what}: {', '.join(names)}" for what, names in (("lines", lines), ("loop files here", files)) if names]
        return "; ".join(told) or None


def line_argument(required: bool = True) -> Callable[[Any], Any]:
    """Return the argument LINE: the name of a line, or the path of its loop file."""
    return click.argument("line", type=LineName(), required=required, shell_complete=complete_line)


loop_argument = click.argument("loop", type=LineName(), shell_complete=complete_line)
"""The argument LOOP of commands that also work before the line exists: the path of a loop file, or the name of a line."""


def cycle_argument(required: bool = False) -> Callable[[Any], Any]:
    """Return the argument CYCLE, which is completed from the ledger."""
    return click.argument("cycle", required=required, shell_complete=complete_cycle)
