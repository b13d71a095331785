"""Keeps one line while the service runs: ingests what arrives, repairs what differs from the ledger, moves an open rollout, and finds
out when a cycle is due.

It needs no Prefect. All its work is warm, in one process; a line without news costs one look at the spool folder, twice a second, and a
share of one query of the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from contracts.cycle import ApprovalKind, State
from contracts.data.datasets import IngestReport
from contracts.errors import Conflict, Fenced, RatchetError, Retryable
from contracts.ids import approval_stream, cycle_stream, line_stream, rollout_stream
from flows.composition.installation import Installation
from flows.composition.services import receiver_is_alive, start_receiver
from flows.core.folds import CycleView, LineView
from flows.core.rollout import Hold
from flows.core.triggers import cycle_is_due
from flows.engine.context import LineContext, process_holder
from flows.engine.ingest import ingest
from flows.engine.reconcile import go_back, reconcile, wanted_versions
from flows.engine.rollout import tick

SWEEP_SECONDS = 60.0
"""Seconds between two complete sweeps of a line with an open cycle: ingest of all sources, repairs, and whether a cycle is due."""
IDLE_SWEEP_SECONDS = 300.0
"""The same for a line without an open cycle. Its processes are looked at more often, and news cause work at once."""
DUE_SECONDS = 60.0
"""Seconds between two questions whether a cycle is due, because the minimum interval between cycles may have passed."""
POLL_SECONDS = 30.0
"""Seconds between two looks at sources that do not tell when something arrived."""
TICK_SECONDS = 5.0
"""Seconds between two looks at an open rollout."""
ALIVE_SECONDS = 3.0
"""Seconds between two looks whether the line's processes are alive."""
_NEVER = float("-inf")


@dataclass(frozen=True)
class News:
    """What one round of work found out about a line."""

    line: LineView
    cycle: CycleView | None
    """The open cycle."""
    due: str | None
    """Why a cycle is due; None if none is."""
    ingested: IngestReport
    texts: tuple[str, ...]
    """Repairs and problems, for the log."""


class Keeper:
    """The work of one line. `say` receives repairs and problems. One thread at a time may call `work`."""

    def __init__(self, installation: Installation, path: Path, say: Callable[[str], None]) -> None:
        self._installation = installation
        self._path = path
        self._say = say
        self.loop = installation.context(path).loop
        self.line = self.loop.line.name
        self._spool = installation.home.spool(self.line)
        self._receives = any(source.kind == "receiver" for source in self.loop.sources)
        self._polls = any(source.kind != "receiver" for source in self.loop.sources)
        self._spool_seen = 0
        self._swept = self._polled = self._ticked = self._looked = self._asked = _NEVER
        self._sweeps_every = SWEEP_SECONDS
        self._rolling = False
        self._woken = True
        self._lengths: dict[str, int] = {}
        self._said: set[str] = set()

    def streams(self) -> list[str]:
        """Return the ledger streams in which a new row is news for this line."""
        return [*self._lengths] or [line_stream(self.line)]

    def wake(self) -> None:
        """Let the next look find work."""
        self._woken = True

    def has_work(self, now: float, lengths: Mapping[str, int]) -> bool:
        """Return whether `work` has something to do. Cheap. `now` is a monotonic time, `lengths` the lengths of `streams`."""
        changed = {stream: lengths.get(stream, 0) for stream in self.streams()} != (self._lengths or {line_stream(self.line): -1})
        return (
            self._woken
            or changed
            or now - self._swept >= self._sweeps_every
            or now - self._asked >= DUE_SECONDS
            or (self._polls and now - self._polled >= POLL_SECONDS)
            or (self._rolling and now - self._ticked >= TICK_SECONDS)
            or now - self._looked >= ALIVE_SECONDS
            or self._spooled()
        )

    def _spooled(self) -> bool:
        """Return whether the spool folder has changed since the last ingest began, and is not empty."""
        if not self._receives:
            return False
        try:
            stamp = self._spool.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        if stamp == self._spool_seen:
            return False
        if not any(self._spool.iterdir()):
            self._spool_seen = stamp
            return False
        return True

    def work(self, now: float, lengths: Mapping[str, int]) -> News | None:
        """Do what is to be done now, and return the news; None if nothing happened that concerns a cycle.

        `now` and `lengths` are those of `has_work`. Nothing is raised: a problem becomes a text, and the next round tries again.
        """
        begun, report, news = self._woken, IngestReport(), None
        sweep = begun or now - self._swept >= self._sweeps_every
        texts: list[str] = []
        self._woken = False
        context = replace(self._installation.context(self._path), holder=process_holder())
        try:
            changed = begun or self._changed(lengths)
            if now - self._looked >= ALIVE_SECONDS:
                self._looked = now
                sweep = self._revive(context, texts) or sweep
            if changed:
                texts += go_back(context)
            try:
                report = self._ingest(context, now, sweep)
            except Retryable as error:  # another process ingests, or a source is away; a rollback or a rollout must not wait for it
                texts.append(str(error))
            if sweep:
                self._swept = now
                repairs = reconcile(context)
                if any(text.startswith("could not") for text in repairs):
                    self._looked = now + SWEEP_SECONDS  # a process that cannot start is not started again every three seconds
                texts += repairs
            line = context.line_view()
            cycle = context.cycle_view(line.open_cycle) if line.open_cycle else None
            self._rolling = cycle is not None and cycle.state is State.ROLLING
            asked = line.rollback_asked is not None or line.cancel_asked is not None
            if cycle is not None and self._rolling and (asked or now - self._ticked >= TICK_SECONDS):
                self._ticked = now
                texts += self._tick(replace(self._installation.cycle_context(cycle), holder=process_holder()), cycle)
            self._lengths = self._watched(line, cycle)
            self._sweeps_every = IDLE_SWEEP_SECONDS if cycle is None else SWEEP_SECONDS
            if changed or sweep or report.traces.kept or report.feedback.kept or now - self._asked >= DUE_SECONDS:
                self._asked = now
                news = News(line, cycle, self._due(context, line), report, tuple(texts))
        except (Retryable, Conflict, Fenced) as error:
            texts.append(str(error))
        except RatchetError as error:
            texts.append(f"{type(error).__name__}: {error}")
        except Exception as error:  # a defect in one line must not stop the others
            texts.append(f"unforeseen {type(error).__name__}: {error}")
        self._tell(texts, sweep)
        return news

    def _tell(self, texts: list[str], swept: bool) -> None:
        """Say each text once while it lasts. A text is over when a complete sweep does not repeat it."""
        new = [text for text in texts if text not in self._said and " is leased by " not in text]
        if new:
            self._say(f"{self.line}: {'; '.join(new)}")
        self._said = set(texts) if swept else self._said | set(texts)

    def _changed(self, lengths: Mapping[str, int]) -> bool:
        return {stream: lengths.get(stream, 0) for stream in self.streams()} != self._lengths

    def _watched(self, line: LineView, cycle: CycleView | None) -> dict[str, int]:
        """Return the streams to watch from now on, each with the length that was read, or now has."""
        streams = {line_stream(self.line): line.seq}
        if cycle is not None:
            streams[cycle_stream(self.line, cycle.number)] = cycle.seq
            others = [*(approval_stream(cycle.id, kind) for kind in ApprovalKind), rollout_stream(cycle.id)]
            found = self._installation.ledger.lengths(others)
            streams.update({stream: found.get(stream, 0) for stream in others})
        return streams

    def _revive(self, context: LineContext, texts: list[str]) -> bool:
        """Start the receiver again if its process has ended. Return whether a model server or the router is to be started again."""
        if self._receives and not receiver_is_alive(context.loop, self._installation.home):
            start_receiver(context.loop, self._installation.home)
            texts.append("started the receiver")
        line = context.line_view()
        if line.champion is None:
            return False
        if context.router.read(self.line) is None:
            return True
        running = {endpoint.tag for endpoint in context.server.running()}
        cycle = context.cycle_view(line.open_cycle) if line.open_cycle else None
        return any(version.tag not in running for version in wanted_versions(line, cycle))

    def _ingest(self, context: LineContext, now: float, sweep: bool) -> IngestReport:
        """Ingest the sources that may have something new."""
        poll = self._polls and (sweep or now - self._polled >= POLL_SECONDS)
        spooled = self._receives and (sweep or self._spooled())
        if not (poll or spooled):
            return IngestReport()
        if poll:
            self._polled = now
        stamp = self._spool.stat().st_mtime_ns if self._receives and self._spool.exists() else 0
        kinds = {source.name: source.kind for source in context.loop.sources}
        sources = [source for source in context.sources if poll or kinds[source.name] == "receiver"]
        report = ingest(context, sources)
        self._spool_seen = stamp
        return report

    def _tick(self, context: LineContext, cycle: CycleView) -> list[str]:
        decision = tick(rollout_stream(cycle.id), context)
        return [] if isinstance(decision, Hold) else [f"rollout of {cycle.id}: {decision}"]

    def _due(self, context: LineContext, line: LineView) -> str | None:
        due, reason = cycle_is_due(line, context.datasets.cursor(), context.loop.trigger, False, context.clock.now())
        return reason if due else None
