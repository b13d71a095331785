"""An installation: a home folder, its ledger, and a house per loop. A cycle is worked on with the loop that was frozen in it."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from contracts.ids import Digest, cycle_stream, digest, line_stream
from contracts.loop import Loop
from contracts.ports import Ledger, Progress
from flows.config.home import Home
from flows.config.load import load_loop
from flows.core.views import CycleView, LineView, fold_cycle, fold_line
from flows.engine.house import House
from flows.engine.wiring import build_house, open_ledger, silent


class Installation:
    """What a command or a flow works with."""

    def __init__(self, home: Home, progress: Progress = silent) -> None:
        self.home = home
        self.progress = progress
        self._houses: dict[Digest, House] = {}

    @cached_property
    def ledger(self) -> Ledger:
        return open_ledger(self.home)

    def house(self, path: Path) -> House:
        """The line of a loop file, with today's content of the file."""
        path = path.absolute()
        return self._house(load_loop(path), path.parent)

    def house_of(self, cycle: CycleView) -> House:
        """The line of a cycle, with the loop that was frozen when it was opened."""
        return self._house(cycle.loop, Path(cycle.opened["folder"]))

    def _house(self, loop: Loop, folder: Path) -> House:
        key = digest([loop.model_dump(mode="json"), str(folder)])
        if key not in self._houses:
            self._houses[key] = build_house(loop, folder, self.home, self.progress)
        return self._houses[key]

    def lines(self) -> list[LineView]:
        """Every line that the ledger knows."""
        return [self.line(stream.removeprefix("line/")) for stream in self.ledger.streams("line/")]

    def line(self, name: str) -> LineView:
        return fold_line(name, self.ledger.read(line_stream(name)))

    def cycles(self, line: str) -> list[CycleView]:
        """All cycles of a line, oldest first."""
        return [fold_cycle(self.ledger.read(stream)) for stream in self.ledger.streams(f"cycle/{line}/")]

    def cycle(self, line: str, number: int) -> CycleView | None:
        entries = self.ledger.read(cycle_stream(line, number))
        return fold_cycle(entries) if entries else None
