"""`ratchet status LINE --watch`: reads a line again and again, and redraws its screen.

Streams of the ledger are read again only if they have grown. What costs more is looked at less often.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ratchet.contracts.cycle import ApprovalKind, Entry
from ratchet.contracts.errors import RatchetError
from ratchet.contracts.ids import approval_stream, cycle_stream, line_stream, rollout_stream
from ratchet.contracts.serving import LATENCY_BASE
from ratchet.contracts.steps import State
from ratchet.flows.cli.look.screen_rows import plain, rows
from ratchet.flows.cli.output import json_line
from ratchet.flows.cli.terminal import show
from ratchet.flows.composition.installation import Installation
from ratchet.flows.core.folds.cycle import CycleView, fold_cycle
from ratchet.flows.core.folds.line import LineView, fold_line
from ratchet.flows.core.folds.rollout import fold_rollout
from ratchet.flows.core.problem import Problem
from ratchet.flows.core.requests import fold_approval
from ratchet.flows.core.screen import Screen, Seen, Serving, Traffic, Training, Waiting, screen
from ratchet.flows.core.triggers import cycle_is_due
from ratchet.flows.engine.context import busy_text
from ratchet.flows.service.vitals import Vitals, is_away, problems, take
from ratchet.router.counts.outcomes import window
from ratchet.router.counts.report import figures
from ratchet.router.state import Document

if TYPE_CHECKING:
    from rich.text import Text

    from ratchet.contracts.data.datasets import Cursor
    from ratchet.contracts.loop import Loop

POLL_SECONDS = 1.0
"""Seconds between two looks at the ledger and the router's report."""
VITALS_SECONDS = 3.0
"""Seconds between two looks at the service, the disk, the Prefect server and the spool."""
SLOW_SECONDS = 5.0
"""Seconds between two looks at the lake, the loop file and the events of a training job."""
WINDOW_MINUTES = 5
"""Minutes of traffic that are shown."""
_WIDTH = 100
"""Width of the blocks that are printed if the output is not a terminal."""

_Value = TypeVar("_Value")


def watch(installation: Installation, line: str, as_json: bool) -> None:
    """Show a line until the user interrupts. Without a terminal, print a new block, or a line of JSON, when something has changed."""
    watcher = Watcher(installation, line)
    looks = _looks(watcher, time.sleep)
    try:
        if as_json:
            for one in changes(looks):
                json_line(one.model_dump(mode="json"))
        elif sys.stdout.isatty():
            _redraw(looks)
        else:
            for one in changes(looks):
                show(plain(one, _WIDTH) + "\n")
                sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(0)


def _looks(watcher: Watcher, sleep: Callable[[float], None]) -> Iterator[Screen]:
    while True:
        yield watcher.look(datetime.now(UTC), time.monotonic())
        sleep(POLL_SECONDS)


def changes(screens: Iterator[Screen]) -> Iterator[Screen]:
    """Yield the first screen, and each one that differs from the last yielded one in its facts."""
    last: list[Any] | None = None
    for one in screens:
        if (facts := one.facts()) != last:
            last = facts
            yield one


def _redraw(screens: Iterator[Screen]) -> None:
    """Draw each screen at the place of the last one, on the terminal's second buffer. Leave the last one on the first buffer."""
    from rich.console import Console
    from rich.live import Live

    console, last = Console(highlight=False), None
    try:
        with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
            for last in screens:
                size = console.size
                live.update(_text(last, size.width, size.height), refresh=True)
    finally:
        if last is not None:
            console.print(_text(last, shutil.get_terminal_size().columns, 1000))


def _text(one: Screen, width: int, height: int) -> Text:
    from rich.text import Text

    lines = [Text.assemble(*row, no_wrap=True, overflow="crop") for row in rows(one, width, height)]
    return Text("\n", no_wrap=True, overflow="crop").join(lines)


class Watcher:
    """Reads what the screen of a line shows."""

    def __init__(self, installation: Installation, line: str) -> None:
        self._installation = installation
        self._line = line
        self._rows: dict[str, list[Entry]] = {}
        self._folded: dict[str, tuple[int, Any]] = {}
        self._report: tuple[int, dict[str, Any] | None] = (0, None)
        self._slow: dict[str, tuple[float, Any]] = {}
        self._last: Seen | None = None

    def look(self, now: datetime, monotonic: float) -> Screen:
        """Return the screen of the present state. While the ledger cannot be read, the last state is shown with this problem."""
        found = self._every("vitals", VITALS_SECONDS, monotonic, lambda: self._vitals(now))
        wrong: tuple[Problem, ...] = tuple(problems(found.model_copy(update={"at": now}))) if found is not None else ()
        try:
            self._last = self._seen(wrong, found, now, monotonic)
        except RatchetError as error:
            away = Problem(level="error", about="ledger", text=f"the ledger cannot be read: {error}")
            last = self._last or Seen(LineView(self._line, 0))
            return screen(Seen(**{**vars(last), "problems": (away, *wrong)}), now)
        return screen(self._last, now)

    def _every(self, name: str, seconds: float, monotonic: float, read: Callable[[], _Value]) -> _Value | None:
        """Return what `read` returns, or what it returned less than `seconds` ago. None if it fails."""
        at, value = self._slow.get(name, (float("-inf"), None))
        if monotonic - at >= seconds:
            try:
                value = read()
            except (RatchetError, OSError):
                value = None
            self._slow[name] = monotonic, value
        found: _Value | None = value
        return found

    def _vitals(self, now: datetime) -> Vitals:
        return take(self._installation.home, [self._line], now, is_away)

    def _grow(self, streams: list[str]) -> None:
        """Read the new rows of the streams."""
        ledger = self._installation.ledger
        for stream, length in ledger.lengths(streams).items():
            known = self._rows.setdefault(stream, [])
            if length != len(known):
                known += ledger.read(stream, len(known))

    def _view(self, stream: str, fold: Callable[[list[Entry]], _Value]) -> _Value | None:
        """Return the view of a stream that was read; None if it has no rows."""
        known = self._rows.get(stream)
        if not known:
            return None
        if self._folded.get(stream, (0, None))[0] != len(known):
            self._folded[stream] = len(known), fold(known)
        found: _Value = self._folded[stream][1]
        return found

    def _seen(self, wrong: tuple[Problem, ...], vitals: Vitals | None, now: datetime, monotonic: float) -> Seen:
        self._grow([line_stream(self._line)])
        line = self._view(line_stream(self._line), lambda found: fold_line(self._line, found)) or LineView(self._line, 0)
        stream = line.open_cycle or (cycle_stream(self._line, line.cycles) if line.cycles else "")
        requests = {kind: approval_stream(stream, kind) for kind in ApprovalKind} if stream else {}
        if stream:
            self._grow([stream, rollout_stream(stream), *requests.values()])
        cycle = self._view(stream, fold_cycle)
        views = {kind: view for kind, name in requests.items() if (view := self._view(name, fold_approval)) is not None}
        lease = self._installation.ledger.holder(line_stream(self._line))
        cursor = self._every("lake", SLOW_SECONDS, monotonic, self._cursor)
        training = cycle is not None and cycle.state is State.ATTEMPT
        received = [one for one in vitals.backlogs if one.at == "receiver"] if vitals is not None else []
        return Seen(
            line=line,
            problems=wrong,
            cycle=cycle,
            rollout=self._view(rollout_stream(stream), fold_rollout) if stream else None,
            requests=views,
            training=self._every("training", SLOW_SECONDS, monotonic, lambda: self._training(cycle)) if training else None,
            busy=busy_text(lease, now) if lease is not None and lease.expires > now else None,
            due=self._due(line, cursor, now, monotonic),
            traffic=self._traffic(now),
            waiting=Waiting(requests=received[0].files, oldest=received[0].oldest) if received else None,
            ingested=cursor.newest if cursor is not None else None,
        )

    def _cursor(self) -> Cursor:
        from ratchet.materializer.lake.places.size import lake_cursor

        return lake_cursor(self._installation.home.lake(self._line))

    def _due(self, line: LineView, cursor: Cursor | None, now: datetime, monotonic: float) -> str | None:
        """Return what the next cycle waits for by the present loop file; None if that cannot be said."""
        if cursor is None or line.open_cycle is not None:
            return None
        loop = self._every("loop", 6 * SLOW_SECONDS, monotonic, self._loop)
        if loop is None:
            return None
        settings = loop.trigger
        due, reason = cycle_is_due(line, cursor, settings, False, now)
        schedule = f", or by schedule ({settings.cron} {settings.timezone})" if settings.cron and not due else ""
        return f"{reason}{schedule}"

    def _loop(self) -> Loop:
        from ratchet.flows.config.load import load_loop

        return load_loop(self._installation.loop_file(self._line))

    def _training(self, cycle: CycleView | None) -> Training | None:
        from ratchet.flows.composition.jobs import job_events

        if cycle is None or not cycle.incarnations:
            return None
        newest = cycle.incarnations[-1]
        events = [one for one in job_events(cycle, self._installation.home).get(newest.attempt, ()) if one.incarnation == newest.number]
        steps = [one for one in events if one.kind == "progress" and one.total]
        if not steps:
            return None
        first, last = steps[0], steps[-1]
        times = {"since": datetime.fromtimestamp(first.at, UTC), "at": datetime.fromtimestamp(last.at, UTC)}
        return Training(step=last.step, total=last.total, first=first.step, **times)

    def _traffic(self, now: datetime) -> Traffic | None:
        """Return what the router on this machine reports; None if there is none, or if it is of another kind or release."""
        file: Path = self._installation.home.serving(self._line) / "router" / Document.REPORT
        try:
            stamp = file.stat().st_mtime_ns
            if stamp != self._report[0]:
                self._report = stamp, dict(figures(file.read_bytes()))
            report = self._report[1]
            return traffic_of(report, now) if report is not None else None
        except (OSError, RatchetError, LookupError, TypeError, ValueError):
            return None


def traffic_of(report: dict[str, Any], now: datetime) -> Traffic:
    """Return the traffic that a report of the router describes. Raises LookupError, TypeError or ValueError if the report is damaged."""
    outcomes = report["outcomes"]
    found, turned_away = window(outcomes, now.timestamp(), WINDOW_MINUTES)
    versions = [
        Serving(
            tag=tag,
            requests=one["requests"],
            errors=one["errors"],
            refused=one["refused"],
            p50_ms=percentile(one["latencies"], 0.5),
            p95_ms=percentile(one["latencies"], 0.95),
        )
        for tag, one in found.items()
    ]
    return Traffic(
        minutes=WINDOW_MINUTES,
        since=datetime.fromtimestamp(int(outcomes["since"]), UTC),
        versions=tuple(sorted(versions, key=lambda one: -one.requests)),
        turned_away=turned_away,
        in_flight=sum(int(n) for n in report["in_flight"].values()),
        lost={str(reason): int(n) for reason, n in report["dropped_traces"].items()},
        unsent_bytes=int(report["waiting_bytes"]),
    )


def percentile(latencies: dict[int, int], share: float) -> float | None:
    """Return the latency in milliseconds below which `share` of the answers lie, from counts by bucket; None without answers."""
    total, seen = sum(latencies.values()), 0
    for bucket, n in sorted(latencies.items()):
        seen += n
        if seen >= share * total:
            return float(LATENCY_BASE ** (bucket + 0.5))
    return None
