"""Runs the keepers of all lines: one thread looks for work twice a second, a few threads do it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime

from ratchet.contracts.errors import RatchetError, Retryable
from ratchet.flows.composition.anchors import open_anchors
from ratchet.flows.composition.installation import Installation
from ratchet.flows.engine.advance import unforeseen
from ratchet.flows.service.keeper import SWEEP_SECONDS, Keeper, News

LOOK_SECONDS = 0.5
"""Seconds between two looks for work."""
WORKERS = 8
"""Number of lines that are worked on at the same time."""
HANG_SECONDS = 900.0
"""Seconds after which work on a line that has not ended counts as hanging. The ingest of a large backlog takes minutes."""


class Keepers:
    """The keepers of an installation's lines. `on_news`, `say` and `beat` are called from their threads.

    `beat` gets a sign of life after each look for work, with what is wrong: of all lines, or of those whose work fails or hangs.
    """

    def __init__(
        self,
        installation: Installation,
        keepers: Sequence[Keeper],
        on_news: Callable[[News], None],
        say: Callable[[str], None],
        beat: Callable[[str], None],
    ) -> None:
        self._installation = installation
        self._keepers = keepers
        self._on_news = on_news
        self._say = say
        self._beat = beat
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(WORKERS, "line")
        self._guards = ThreadPoolExecutor(WORKERS, "guard")
        self._upkeep = ThreadPoolExecutor(1, "upkeep")  # the files that are merged are in memory, so one line is kept at a time
        self._busy: dict[str, Future[None]] = {}
        self._guarded: dict[str, Future[None]] = {}
        self._kept: dict[str, Future[None]] = {}
        self._begun: dict[str, tuple[float, datetime]] = {}
        """When the newest work on a line began: monotonic time, and time of day."""
        self._thread = threading.Thread(target=self._run, name="keepers", daemon=True)
        self._exported = 0.0
        self._trouble = ""

    def start(self) -> None:
        """Start to look for work."""
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Stop to look for work, and wait at most `seconds` for work that has begun. Return whether all of it has ended."""
        self._stop.set()
        self._thread.join(seconds)
        for pool in (self._pool, self._guards, self._upkeep):
            pool.shutdown(wait=False, cancel_futures=True)
        until = time.monotonic() + seconds
        begun = [*self._busy.values(), *self._guarded.values(), *self._kept.values()]
        while any(not future.done() for future in begun) and time.monotonic() < until:
            time.sleep(0.05)
        return all(future.done() for future in begun)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            try:
                self._look()
                self._export()
                self._trouble = ""
            except Exception as error:  # the ledger is away, or a defect: say it once and go on looking
                text = str(error) if isinstance(error, Retryable) else unforeseen(error)
                if text != self._trouble:
                    self._say(text)
                self._trouble = text
            self._beat(self._trouble or self.line_troubles(time.monotonic()))

    def line_troubles(self, now: float) -> str:
        """Return which lines' work fails or hangs, and why; empty text if none does. `now` is a monotonic time."""
        found = []
        for keeper in self._keepers:
            begun, at = self._begun.get(keeper.line, (now, datetime.now(UTC)))
            if now - begun >= HANG_SECONDS and not _is_over(self._busy.get(keeper.line)):
                found.append(f"{keeper.line}: the work that began at {at:%Y-%m-%d %H:%M:%S} UTC has not ended")
            elif text := keeper.trouble(now):
                found.append(f"{keeper.line}: {text}")
        return "; ".join(found)

    def _look(self) -> None:
        """Hand every line with work to a thread, and what is urgent to a second one. One query of the ledger serves all lines."""
        lengths = self._installation.ledger.lengths([stream for keeper in self._keepers for stream in keeper.streams()])
        now = time.monotonic()
        for keeper in self._keepers:
            if _is_over(self._busy.get(keeper.line)):
                if keeper.has_work(now, lengths):
                    self._begun[keeper.line] = now, datetime.now(UTC)
                    self._busy[keeper.line] = self._pool.submit(self._work, keeper, now, lengths)
            elif _is_over(self._guarded.get(keeper.line)) and keeper.is_urgent(now, lengths):
                self._guarded[keeper.line] = self._guards.submit(keeper.guard, now, lengths)
            if _is_over(self._kept.get(keeper.line)) and keeper.keeps_lake(now):
                self._kept[keeper.line] = self._upkeep.submit(keeper.keep_lake, lambda: not self._stop.is_set())

    def _work(self, keeper: Keeper, now: float, lengths: dict[str, int]) -> None:
        news = keeper.work(now, lengths)
        if news is not None:
            self._on_news(news)

    def _export(self) -> None:
        """Export the signed heads of the ledger once a minute, if they have changed."""
        if time.monotonic() - self._exported < SWEEP_SECONDS:
            return
        self._exported = time.monotonic()
        for text in export_heads(self._installation):
            self._say(text)


def _is_over(future: Future[None] | None) -> bool:
    return future is None or future.done()


def export_heads(installation: Installation) -> list[str]:
    """Export the signed heads of the ledger if they have changed. Return a text if that was not possible."""
    try:
        open_anchors(installation.home).export(installation.ledger, datetime.now(UTC))
    except RatchetError as error:
        return [f"could not export the ledger's heads: {error}"]
    return []
