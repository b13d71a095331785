"""Keeps one line while the service runs: ingests what arrives, repairs what differs from the ledger, moves an open rollout, and finds
out when a cycle is due.

It needs no Prefect. All its work is warm, in one process; a line without news costs one look at the spool folder, twice a second, and a
share of one query of the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from ratchet.contracts.cycle import ApprovalKind
from ratchet.contracts.data.datasets import IngestReport
from ratchet.contracts.errors import ConfigError, Leased, RatchetError, Retryable
from ratchet.contracts.ids import approval_stream, cycle_stream, hash_share, line_stream, rollout_stream
from ratchet.contracts.moment import seconds_between
from ratchet.contracts.schema import stamped, unstamped
from ratchet.contracts.steps import State
from ratchet.flows.composition.installation import Installation
from ratchet.flows.composition.services import receiver_is_alive, start_receiver
from ratchet.flows.composition.stores import copy_files
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.flows.core.folds.line import LineView
from ratchet.flows.core.rollouts.rollout import Hold
from ratchet.flows.core.triggers import cycle_is_due
from ratchet.flows.engine.advance import unforeseen
from ratchet.flows.engine.context import LineContext, process_holder
from ratchet.flows.engine.ingest import ingest
from ratchet.flows.engine.line import note_name
from ratchet.flows.engine.reconcile import STARTS, WAITS, go_back, names_differ, reconcile, wanted_versions
from ratchet.flows.engine.rollouts.bypass import bypass
from ratchet.flows.engine.rollouts.rollout import tick
from ratchet.flows.service.memory import give_back
from ratchet.flows.service.receipts import Receipts
from ratchet.materializer.receive.files.notifications import listener
from ratchet.runtime.documents import open_documents
from ratchet.runtime.watched_file import stamp_of

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
FAILING_SECONDS = 90.0
"""Seconds after which a problem that lasts is the trouble of a line. What fails is tried again within 60 s."""
AGAIN_SECONDS = 5.0
"""Seconds after a problem until the next round, unless the ledger changes before."""
COLLECT_SECONDS = 86_400.0
"""Seconds between two garbage collections of a line."""
UPKEEP_SECONDS = 300.0
"""Seconds between two upkeeps of a line's lake."""
INGEST_SHARE = 0.2
"""Share of the time that a line spends on ingests of its spool under steady traffic, unless they take so long that the pause is
SPOOL_SECONDS. A commit to the lake costs about the same for one trace as for hundreds. The first requests after a quiet time do not wait.
"""
SPOOL_SECONDS = 10.0
"""The longest pause between two ingests of the spool."""
URGENT_SECONDS = 1.0
"""Seconds between two attempts to carry out a rollback, for example while another process holds its lease."""
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


class Keeper:
    """The work of one line. `say` receives repairs and problems.

    One thread at a time may call `work`, another one `guard`, and a third one `keep_lake`.
    """

    def __init__(self, installation: Installation, path: Path, say: Callable[[str], None]) -> None:
        self._installation = installation
        self._path = path
        self._say = say
        self._valid = installation.context(path)
        self._is_valid = True
        self.loop = self._valid.loop
        self.line = self.loop.line.name
        self._spool = installation.home.spool(self.line)
        self._receives = any(source.kind == "receiver" for source in self.loop.sources)
        self._polls = any(source.kind != "receiver" for source in self.loop.sources)
        self._woken = False
        """Whether a bucket has notified the line of new objects since the last look at its sources."""
        self._spool_seen = 0
        self._spool_pause = _NEVER
        """Monotonic time before which the spool is not ingested again."""
        self._swept = self._polled = self._ticked = self._looked = self._asked = self._worked = self._bypassed = _NEVER
        self._sweeps_every = SWEEP_SECONDS
        self._rolling = False
        self._urgent = False
        """Whether a requested rollback, or the cancellation of a rollout, is not carried out yet."""
        self._is_new = True
        self._is_copied = False
        """Whether the rows of files of an earlier release are in the database."""
        self._lengths: dict[str, int] = {}
        self._failed = False
        self._failed_lengths: dict[str, int] = {}
        self._again = self._guarded = _NEVER
        self._guarded_lengths: dict[str, int] = {}
        self._problems: list[str] = []
        """What has failed in this round."""
        self._failing = {"round": "", "sweep": ""}
        """The first problem of the last round, and of the last complete sweep, which does more."""
        self._failing_since = _NEVER
        self._said: set[str] = set()
        self._file: list[int] | None = None
        """Identity of the loop file that was read last; None if it does not exist."""
        self._wanted: set[str] = set()
        """Tags of the versions whose model servers must run, as of the last round."""
        self._kept: float | None = None
        """Monotonic time of the last upkeep of the lake."""
        self._kept_state: object = None
        """Day and state of the catalog at which the upkeep found nothing more to do."""
        self._keeping = ""
        """Why the last upkeep failed; empty if it did not."""
        self._share = hash_share("sweep", self.line) / 2
        """Part of the time between two sweeps by which this line's first ones come earlier, so that many lines do not sweep together."""

    def trouble(self, now: float) -> str:
        """Return what has failed for at least FAILING_SECONDS, or empty text. `now` is a monotonic time."""
        failing = self._failing["round"] or self._failing["sweep"]
        return failing if failing and now - self._failing_since >= FAILING_SECONDS else ""

    def streams(self) -> list[str]:
        """Return the ledger streams in which a new row is news for this line."""
        return [*self._lengths] or [line_stream(self.line)]

    def has_work(self, now: float, lengths: Mapping[str, int]) -> bool:
        """Return whether `work` has something to do. Cheap. `now` is a monotonic time, `lengths` the lengths of `streams`."""
        seen = self._seen(lengths)
        if now < self._again and seen == self._failed_lengths:
            return False
        return now - self._looked >= ALIVE_SECONDS or self._has_news(now, seen)

    def _has_news(self, now: float, seen: Mapping[str, int]) -> bool:
        """Return whether there is more to do than to look whether the line's processes are alive."""
        return (
            self._is_new
            or seen != (self._lengths or {line_stream(self.line): -1})
            or now - self._swept >= self._sweeps_every
            or now - self._asked >= DUE_SECONDS
            or (self._polls and now - self._polled >= POLL_SECONDS)
            or (self._rolling and now - self._ticked >= TICK_SECONDS)
            or (self._urgent and now - self._worked >= URGENT_SECONDS)
            or _stamp(self._path) != self._file
            or self._spooled(now)
            or self._notified()
        )

    def _notified(self) -> bool:
        """Return whether the bucket of a source has new objects, according to its queue."""
        if not self._woken and any(listener(source.queue).arrived() for source in self.loop.sources if source.queue):
            self._woken = True
        return self._woken

    def _spooled(self, now: float) -> bool:
        """Return whether the spool folder has changed since the last ingest began, and is not empty. False during the pause after one."""
        if not self._receives or now < self._spool_pause:
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

        `now` and `lengths` are those of `has_work`. Nothing is raised: a problem becomes a text, the other parts of the work go on, and a
        later round tries again.
        """
        self._look_at_bypass(now)
        if not self._has_news(now, self._seen(lengths)) and self._all_alive():
            self._looked = now
            return None
        begun, news = self._is_new, None
        sweep = begun or now - self._swept >= self._sweeps_every
        texts: list[str] = []
        self._is_new = self._failed = False
        self._problems = []
        self._worked = now
        context = self._context(texts)
        if not self._is_copied:
            with self._part(texts):
                copy_files(self._installation.home, self.line)
                Receipts(self._installation.home).copy_files()
                self._is_copied = True
        changed = begun or self._urgent or self._seen(lengths) != self._lengths
        if changed:
            with self._part(texts):
                texts += go_back(context)
            with self._part(texts):
                texts += self._stop_rollout(context)
        if now - self._looked >= ALIVE_SECONDS:
            looked, self._looked = now, now + SWEEP_SECONDS  # a process that cannot start is not started again every three seconds
            with self._part(texts):
                self._revive_receiver(context, texts)
                self._looked = looked
            with self._part(texts):
                sweep = self._misses_server(context) or sweep
        with self._part(texts):
            texts += note_name(context) if self._is_valid else []
            sweep = sweep or names_differ(context)  # a changed model name, or the end of a former one, is routed at once
        report = IngestReport()
        with self._part(texts):  # a rollback or a rollout must not wait for an ingest that fails
            report = self._ingest(context, now, sweep)
        if sweep:
            self._swept = now
            with self._part(texts):
                repairs = reconcile(context)
                if any(text.startswith(("could not", STARTS, WAITS)) for text in repairs):
                    self._looked = now + SWEEP_SECONDS
                self._problems += [text for text in repairs if text.startswith("could not")]
                texts += repairs
        with self._part(texts):
            line = context.line_view()
            cycle = context.cycle_view(line.open_cycle) if line.open_cycle else None
            self._rolling = cycle is not None and cycle.state is State.ROLLING
            asked = line.rollback_asked is not None or line.cancel_asked is not None
            self._urgent = line.rollback_asked is not None or (self._rolling and asked)
            if cycle is not None and self._rolling and (asked or now - self._ticked >= TICK_SECONDS):
                self._ticked = now
                with self._part(texts):
                    texts += self._tick(cycle)
            self._lengths = self._watched(line, cycle)
            self._wanted = {version.tag for version in wanted_versions(line, cycle)}
            self._sweeps_every = IDLE_SWEEP_SECONDS if cycle is None else SWEEP_SECONDS
            self._swept -= self._share * self._sweeps_every if begun else 0.0
            if changed or sweep or report.traces.kept or report.feedback.kept or now - self._asked >= DUE_SECONDS:
                self._asked = now - self._share * DUE_SECONDS if begun else now
                news = News(line, cycle, self._due(context, line), report)
        if sweep:
            with self._part(texts):
                texts += self._collect(context)
        if self._failed:
            if sweep:
                self._swept = now - self._sweeps_every + SWEEP_SECONDS
            self._again = now + (URGENT_SECONDS if self._urgent else AGAIN_SECONDS)
            self._failed_lengths = self._seen(lengths)
        self._note_failing(now, sweep)
        self._tell(texts, sweep)
        return news

    def _note_failing(self, now: float, swept: bool) -> None:
        """Note what has failed in this round, and since when something fails."""
        was = any(self._failing.values())
        for kind in ("round", "sweep") if swept else ("round",):
            self._failing[kind] = self._problems[0] if self._problems else ""
        if not was:
            self._failing_since = now

    def is_urgent(self, now: float, lengths: Mapping[str, int]) -> bool:
        """Return whether `guard` is to be called while `work` still runs. `now` and `lengths` are as for `has_work`."""
        return now - self._guarded >= ALIVE_SECONDS or self._seen(lengths) != self._guarded_lengths

    def guard(self, now: float, lengths: Mapping[str, int]) -> None:
        """Carry out a requested rollback, and start a receiver or a router that has died, while `work` is at something long.

        The ingest of a backlog can take minutes, in which users must not stay on a bad version. Nothing is raised.
        """
        self._guarded, self._guarded_lengths = now, self._seen(lengths)
        texts: list[str] = []
        context = replace(self._valid, holder=process_holder())
        with self._part(texts):
            texts += go_back(context)
        with self._part(texts):
            texts += self._stop_rollout(context)
        with self._part(texts):
            self._revive_receiver(context, texts)
        with self._part(texts):
            self._misses_server(context)
        self._tell(texts, False)
        self._look_at_bypass(now)

    def keeps_lake(self, now: float) -> bool:
        """Return whether `keep_lake` is to be called. Cheap. `now` is a monotonic time."""
        if self._kept is None:
            self._kept = now - self._share * UPKEEP_SECONDS
        if now - self._kept < UPKEEP_SECONDS:
            return False
        self._kept = now
        try:
            return self._lake_state() != self._kept_state
        except RatchetError:
            return True  # `keep_lake` reports the error

    def keep_lake(self, goes_on: Callable[[], bool]) -> None:
        """Merge the small files of the line's lake, in steps, until nothing is left to do or `goes_on` says no. Nothing is raised.

        A step may take some seconds. Ingest and rollouts must not wait for it, so `work` does not call this method.
        """
        from ratchet.flows.service.lake_upkeep import keep_lake

        try:
            state = self._lake_state()
            done = keep_lake(self._installation.home.lake(self.line), self._valid.clock.now().date(), goes_on)
            self._keeping = ""
        except Exception as error:  # a defect in one line must not stop the others
            text = str(error) if isinstance(error, Retryable) else unforeseen(error)
            if text != self._keeping:
                self._say(f"upkeep of the lake: {text}")
            self._keeping = text
            return
        if any(table.is_changed for table in done):
            give_back()
        else:
            self._kept_state = state

    def _lake_state(self) -> object:
        """Return the day and the state of the lake's catalog, which each commit changes. Raises Retryable if it cannot be read."""
        return self._valid.clock.now().date(), self._installation.home.lake(self.line).state()

    @contextmanager
    def _part(self, texts: list[str]) -> Iterator[None]:
        """Turn a problem of one part of the work into a text."""
        try:
            yield
        except Leased as error:
            texts.append(str(error))
        except Retryable as error:
            self._fail(texts, str(error))
        except RatchetError as error:
            self._fail(texts, f"{type(error).__name__}: {error}")
        except Exception as error:  # a defect in one line must not stop the others
            self._fail(texts, unforeseen(error))

    def _fail(self, texts: list[str], text: str) -> None:
        self._failed = True
        self._problems.append(text)
        texts.append(text)

    def _context(self, texts: list[str]) -> LineContext:
        """Return the line's context. While the loop file is invalid, its last valid content stays in force, but no cycle becomes due."""
        self._file = _stamp(self._path)
        try:
            context = self._installation.context(self._path)
            if context.loop.line.name != self.line:
                raise ConfigError(f"{self._path} defines line {context.loop.line.name!r} now; a line keeps its name while it is served")
            self._valid, self._is_valid = context, True
        except Exception as error:
            texts.append(f"the loop file cannot be used, so its last valid content stays in force and no cycle opens: {error}")
            self._problems.append(texts[-1])
            self._is_valid = False
        return replace(self._valid, holder=process_holder())

    def _tell(self, texts: list[str], swept: bool) -> None:
        """Say each text once while it lasts. A text is over when a complete sweep does not repeat it."""
        new = [text for text in texts if text not in self._said and " is leased by " not in text]
        if new:
            self._say(f"{self.line}: {'; '.join(new)}")
        self._said = set(texts) if swept else self._said | set(texts)

    def _seen(self, lengths: Mapping[str, int]) -> dict[str, int]:
        return {stream: lengths.get(stream, 0) for stream in self.streams()}

    def _watched(self, line: LineView, cycle: CycleView | None) -> dict[str, int]:
        """Return the streams to watch from now on, each with the length that was read, or now has."""
        streams = {line_stream(self.line): line.seq}
        if cycle is not None:
            streams[cycle_stream(self.line, cycle.number)] = cycle.seq
            others = [*(approval_stream(cycle.id, kind) for kind in ApprovalKind), rollout_stream(cycle.id)]
            found = self._installation.ledger.lengths(others)
            streams.update({stream: found.get(stream, 0) for stream in others})
        return streams

    def _all_alive(self) -> bool:
        """Return whether all processes of the line are alive, as far as this can be seen without the ledger. Starts nothing."""
        context = self._valid
        try:
            if self._receives and not receiver_is_alive(self.line, self._installation.home):
                return False
            if not self._wanted:
                return True
            return context.router.read(self.line) is not None and self._wanted <= {one.tag for one in context.server.running()}
        except Exception:  # of an extension; the complete look reports it
            return False

    def _look_at_bypass(self, now: float) -> None:
        """Let users reach the champion while the router is down, where the router of the line can be bypassed. Nothing is raised."""
        if now - self._bypassed < ALIVE_SECONDS:
            return
        self._bypassed = now
        texts: list[str] = []
        with self._part(texts):
            texts += bypass(self._valid)
        self._tell(texts, False)

    def _revive_receiver(self, context: LineContext, texts: list[str]) -> None:
        """Start the receiver again if its process has ended."""
        if self._receives and not receiver_is_alive(self.line, self._installation.home):
            start_receiver(context.loop, self._installation.home)
            texts.append("started the receiver")

    def _misses_server(self, context: LineContext) -> bool:
        """Return whether a model server or the router is to be started again. Starts the router with the route in force, if it has ended.

        That needs no lease, which a long effect may hold.
        """
        line = context.line_view()
        if line.champion is None:
            return False
        if context.router.read(self.line) is None:
            context.router.url()
            return True
        running = {endpoint.tag for endpoint in context.server.running()}
        cycle = context.cycle_view(line.open_cycle) if line.open_cycle else None
        return any(version.tag not in running for version in wanted_versions(line, cycle))

    def _ingest(self, context: LineContext, now: float, sweep: bool) -> IngestReport:
        """Ingest the sources that may have something new."""
        poll = self._polls and (sweep or self._woken or now - self._polled >= POLL_SECONDS)
        spooled = self._receives and (sweep or self._spooled(now))
        if not (poll or spooled):
            return IngestReport()
        if poll:
            self._polled, self._woken = now, False
        stamp = self._spool.stat().st_mtime_ns if self._receives and self._spool.exists() else 0
        kinds = {source.name: source.kind for source in context.loop.sources}
        sources = [source for source in context.sources if poll or kinds[source.name] == "receiver"]
        begun = context.clock.moment()
        report = ingest(context, sources)
        took = seconds_between(begun, context.clock.moment())
        self._spool_pause = now + took + min(took * (1 / INGEST_SHARE - 1), SPOOL_SECONDS)
        self._spool_seen = stamp
        return report

    def _stop_rollout(self, context: LineContext) -> list[str]:
        """Roll back an open rollout if somebody has asked for it, before an ingest that may take long."""
        line = context.line_view()
        cycle = context.cycle_view(line.open_cycle) if line.open_cycle and (line.rollback_asked or line.cancel_asked) else None
        return self._tick(cycle) if cycle is not None and cycle.state is State.ROLLING else []

    def _tick(self, cycle: CycleView) -> list[str]:
        decision = tick(rollout_stream(cycle.id), replace(self._installation.cycle_context(cycle), holder=process_holder()))
        return [] if isinstance(decision, Hold) else [f"rollout of {cycle.id}: {decision}"]

    def _collect(self, context: LineContext) -> list[str]:
        """Delete once a day what the line no longer needs. The first time is a day after the first start.

        If a cycle was open then, it is repeated when none is.
        """
        home, now = self._installation.home, context.clock.now()
        file = home.collected(self.line)
        documents = open_documents(file.parent, home.database(self.line), "service")
        content = documents.read(file.name)
        last = None if content is None else unstamped(content, "time of a garbage collection")
        elapsed = (now - datetime.fromisoformat(last["at"])).total_seconds() if last else None
        waits = bool(last and last.get("postponed")) and context.line_view().open_cycle is None
        if elapsed is not None and 0 <= elapsed < COLLECT_SECONDS and not waits:
            return []
        done = None
        if elapsed is not None:
            from ratchet.flows.service.garbage import collect_line

            done = collect_line(self._installation, context)
        written = stamped({"at": now.isoformat(), "postponed": done is not None and done.postponed})
        documents.change(file.name, lambda _: written)
        return [] if done is None or done.is_empty else [f"garbage collection: {done.summary}"]

    def _due(self, context: LineContext, line: LineView) -> str | None:
        due, reason = cycle_is_due(line, context.datasets.cursor(), context.loop.trigger, False, context.clock.now())
        return reason if due and self._is_valid else None


def _stamp(path: Path) -> list[int] | None:
    try:
        return stamp_of(path)
    except OSError:
        return None
