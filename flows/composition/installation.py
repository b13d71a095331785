"""An installation: a home folder, its ledger, and one line context per loop.

A cycle always runs with the loop file's content that was stored when the cycle was opened.
"""

from __future__ import annotations

import contextlib
import os
import threading
import tomllib
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.ids import Digest, cycle_stream, digest, line_stream, rollout_stream
from ratchet.contracts.rows import Adopted, CycleOpened, FileTaken, content_of
from ratchet.contracts.schema import upgraded
from ratchet.flows.composition.pods import adopt_keys
from ratchet.flows.config.home import Home
from ratchet.flows.core.folds.cycle import CycleView, fold_cycle
from ratchet.flows.core.folds.line import LineView, fold_line
from ratchet.flows.core.folds.rollout import RolloutView, fold_rollout
from ratchet.flows.ledger.opening import open_ledger_at

if TYPE_CHECKING:  # imported late: a command that only reads the ledger needs none of it
    from ratchet.contracts.loop import Loop
    from ratchet.contracts.ports import Ledger, Progress
    from ratchet.flows.engine.context import LineContext


def silent(_what: str, _done: int, _total: int) -> None:
    """Ignore a progress report. This is the default progress callback."""


def is_same_file(owner: Path, path: Path) -> bool:
    """Return whether two paths name one loop file, also if one of them is a link to the other one."""
    if os.path.normpath(owner) == os.path.normpath(path.absolute()):
        return True
    try:
        return owner.samefile(path)
    except OSError:
        return False


def _is_file_of(owner: Path, path: Path) -> bool:
    """Return whether `path` is the loop file `owner` of a line. A link may point to the file of another line by now."""
    same = os.path.normpath(owner) == os.path.normpath(path.absolute())
    return same or (not owner.is_symlink() and is_same_file(owner, path))


def other_file(line: str, owner: Path, path: Path) -> str:
    """Return why `path` may not act on `line`, which belongs to the loop file `owner`, and what to do."""
    path = path.absolute()  # two files of one name are told apart
    take = f"`ratchet takeover {path} --why TEXT`"
    if not owner.exists():
        return f"line {line!r} belongs to the loop file {owner}, which does not exist, and not to {path}; if it was moved there, run {take}"
    return (
        f"line {line!r} belongs to the loop file {owner}, and not to {path}; use that file, give the line in {path} a name of its own, or "
        f"let {path} decide for the line from now on with {take}"
    )


def renamed(line: str, former: str, path: Path) -> str:
    """Return why `path`, the loop file of the line `former`, may not begin the line `line`, and what to do."""
    return (
        f"{path.absolute()} is the loop file of line {former!r}, and names line {line!r} now; a line keeps its name: with another one, it "
        f"would begin again without its traces, its cycles and its champion, and {former!r} would have no loop file. Restore `line.name`, "
        f"or, for a new line, copy the file and change the name in the copy. If the file of {former!r} was moved, run "
        "`ratchet takeover PATH --why TEXT` with its present path first"
    )


class Installation:
    """Gives commands and flows access to the ledger and to the line contexts of one home folder."""

    def __init__(self, home: Home, progress: Progress = silent) -> None:
        self.home = home
        self.progress = progress
        self._contexts: dict[Digest, LineContext] = {}
        self._openings: dict[str, Path | None] = {}
        """Stream of a cycle -> the loop file with which it was opened. Its row also has the whole content of that file."""
        self._lock = threading.Lock()

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger of the installation, opened at first use."""
        return open_ledger_at(self.home.ledger_url)

    def context(self, path: Path, late: bool = False, any_file: bool = False) -> LineContext:
        """Return the line context of a loop file, with the file's current content.

        Raises ConfigError if the file is invalid, or if the line belongs to another loop file, unless `any_file`, for what changes nothing.
        With `late`, a port is built when it is first used: for a command that uses few of them.
        """
        from ratchet.flows.config.load import load_loop

        path = path.absolute()
        loop = load_loop(path)
        if not any_file:
            with contextlib.suppress(Retryable):  # nothing acts on a line while its ledger is away, and the service waits for it
                self.refuse_other(loop.line.name, path)
        return self._build(loop, path.parent, path.name, late)

    def owner(self, line: str) -> Path | None:
        """Return the loop file to which a line belongs, which need not exist; None if the ledger names none.

        It is the file with which the line adopted its model, opened its newest cycle, or was taken over, whichever was last.
        """
        for row in reversed(self.line(line).rows):
            found: Path | None = None
            if row.kind == "adopted":
                found = _file_of(content_of(Adopted, row))
            elif row.kind == "file_taken":
                found = _file_of(content_of(FileTaken, row))
            elif row.kind == "cycle_opened":
                found = self._opened_with(row.key)
            if found is not None:
                return found
        return None

    def _opened_with(self, stream: str) -> Path | None:
        if stream not in self._openings:
            rows = upgraded(self.ledger.read(stream)[:1])
            self._openings[stream] = _file_of(content_of(CycleOpened, rows[0])) if rows else None
        return self._openings[stream]

    def refuse_other(self, line: str, path: Path) -> None:
        """Raise ConfigError, which names the remedy, if `line` belongs to another loop file, or if `path` was that of another line."""
        owner = self.owner(line)
        if owner is not None and not is_same_file(owner, path):
            raise ConfigError(other_file(line, owner, path))
        if owner is None and not self.line(line).rows:
            for former in (stream.removeprefix("line/") for stream in self.ledger.streams("line/")):
                if former != line and (known := self.owner(former)) is not None and _is_file_of(known, path):
                    raise ConfigError(renamed(line, former, path))

    def cycle_context(self, cycle: CycleView, late: bool = False) -> LineContext:
        """Return the line context of a cycle, with the loop content stored when the cycle was opened. `late` is as for `context`.

        Only the section `compute` is that of the present loop file: it changes no result, and a cluster may have moved.
        """
        folder = Path(cycle.opened.folder)
        return self._build(_with_present_compute(cycle.loop, folder / cycle.opened.file), folder, cycle.opened.file, late)

    def _build(self, loop: Loop, folder: Path, file: str, late: bool) -> LineContext:
        from ratchet.flows.composition.ports import build_line_context

        adopt_keys(self.home, loop.line.name)
        key = digest([loop.model_dump(mode="json"), str(folder), file, late])
        with self._lock:
            if key not in self._contexts:
                built = build_line_context(loop, folder, self.home, self.progress, self.ledger, late)
                self._contexts[key] = replace(built, file=file)
            return self._contexts[key]

    def loop_file(self, line: str) -> Path:
        """Return the loop file to which a line belongs (see `owner`).

        Raises ConfigError if the ledger names none, or if the file does not exist or defines another line.
        """
        from ratchet.flows.config.load import load_loop

        found = self.owner(line)
        if found is None:
            raise ConfigError(f"the ledger does not name the loop file of line {line!r}; give the path of the file")
        if not found.exists():
            raise ConfigError(
                f"the loop file of line {line!r} is {found}, which does not exist; if it was moved, run "
                "`ratchet takeover PATH --why TEXT` with its present path"
            )
        if (now := load_loop(found).line.name) != line:
            raise ConfigError(f"{found} defines line {now!r} now, not {line!r}; give the path of the loop file of {line!r}")
        return found

    def lines(self) -> list[LineView]:
        """List the views of all lines in the ledger."""
        return [self.line(stream.removeprefix("line/")) for stream in self.ledger.streams("line/")]

    def line(self, name: str) -> LineView:
        """Return the view of a line; it is empty for an unknown line."""
        return fold_line(name, self.ledger.read(line_stream(name)))

    def cycles(self, line: str) -> list[CycleView]:
        """List all cycles of a line, oldest first."""
        return [fold_cycle(self.ledger.read(stream)) for stream in self.ledger.streams(f"cycle/{line}/")]

    def cycle(self, line: str, number: int) -> CycleView | None:
        """Return a cycle by its number, or None if it does not exist."""
        entries = self.ledger.read(cycle_stream(line, number))
        return fold_cycle(entries) if entries else None

    def rollout(self, cycle: str) -> RolloutView | None:
        """Return the rollout of the cycle with the stream `cycle`, or None if it is not opened yet."""
        entries = self.ledger.read(rollout_stream(cycle))
        return fold_rollout(entries) if entries else None


def _file_of(named: Adopted | FileTaken | CycleOpened) -> Path | None:
    """Return the loop file that a row names; None if it names none."""
    return Path(named.folder) / named.file if named.file else None


def _with_present_compute(loop: Loop, path: Path) -> Loop:
    """Return the loop with the section `compute` of the loop file `path`, if that can be read and defines the same line."""
    from ratchet.contracts.loop import ComputeSettings

    try:
        present = tomllib.loads(path.read_text(encoding="utf-8"))
        if present["line"]["name"] != loop.line.name:
            return loop
        return loop.model_copy(update={"compute": ComputeSettings.model_validate(present.get("compute", {}))})
    except (OSError, ValueError, KeyError, TypeError):  # `check` and the service say what is wrong with the file
        return loop
