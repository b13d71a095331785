"""Ingests batches into the lake exactly once. The ledger identifies a batch by its digest, the lake a record by (source, id)."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ratchet.contracts.cycle import Append, Lease
from ratchet.contracts.data.datasets import IngestReport, RawBatch
from ratchet.contracts.errors import Conflict, RatchetError, Retryable
from ratchet.contracts.ids import Digest, digest, ingest_stream, line_stream
from ratchet.contracts.loop import Loop
from ratchet.contracts.ports import TraceSource
from ratchet.contracts.rows import IngestBegun, IngestEnd, QuarantineAlarm, content_of, row_of
from ratchet.contracts.schema import upgraded
from ratchet.flows.core.quarantine_alarm import alarm_text, is_alarm
from ratchet.flows.engine.context import LineContext, leased

_PREPARED = 4
"""Number of batches after which they are prepared. The lake forgets after some commits which rows came since the last preparation, and then
all rows would be read again.
"""


def ingest(context: LineContext, sources: Sequence[TraceSource] | None = None, wait: float = 0.0, note_always: bool = True) -> IngestReport:
    """Ingest all batches that the sources hold now; by default, all sources of the line. Return the summed report.

    Without `note_always`, an ingest that finds no batch leaves a new alarm of the quarantine to the next one, and does not open the lake.

    The records of a batch that the ledger knows count as duplicates, and the batch is not read again.
    Raises Retryable if another process still ingests for this line after `wait` seconds, or if a source fails.
    """
    total, found = IngestReport(), False
    with leased(context, "an ingest", f"ingest/{context.line}", wait) as lease:
        for source in context.sources if sources is None else sources:
            with _retried(source):
                batches = list(source.batches())
            found = found or bool(batches)
            for number, (batch, report) in enumerate(_ingest(context, batches, lease), 1):
                total += report
                with _retried(source):
                    source.done(batch)
                context.progress(f"ingest {source.name}", number, len(batches))
                if number % _PREPARED == 0:
                    context.datasets.prepare()
    if note_always or found or context.line_view().alarm is not None:
        note_alarm(context)
    if found:
        context.datasets.prepare()
    return total


def note_alarm(context: LineContext) -> None:
    """Record in the line's stream that the alarm of the quarantine begins or ends. A line without a model has no stream yet.

    Another process may change the stream at the same time. The next ingest tries again.
    """
    settings, line = context.loop.quarantine, context.line_view()
    counts = context.datasets.quarantine.counts(context.clock.now().timestamp() - settings.alarm_window)
    alarm = is_alarm(counts, settings, line.alarm is not None)
    if not line.rows or alarm == (line.alarm is not None):
        return
    content = QuarantineAlarm(read=counts.read, quarantined=counts.quarantined, reasons=counts.reasons, text=alarm_text(counts))
    row = row_of("quarantine_alarm", content) if alarm else row_of("quarantine_calm", content)
    with contextlib.suppress(Conflict):
        context.ledger.append([Append(stream=line_stream(context.line), after=line.seq, rows=(row,))], None, context.clock.now())


@contextmanager
def _retried(source: TraceSource) -> Iterator[None]:
    """Report an unexpected error of a source, for example of its network, as Retryable: the next ingest asks the source again."""
    try:
        yield
    except RatchetError:
        raise
    except Exception as error:
        raise Retryable(f"source {source.name!r} failed: {type(error).__name__}: {error}; it is asked again at the next ingest") from error


def _ingest(context: LineContext, batches: Sequence[RawBatch], lease: Lease) -> Iterator[tuple[RawBatch, IngestReport]]:
    """Yield each batch with its report, in order, when the ledger has it. Some batches are begun ahead (`Datasets.ingest_each`)."""
    if not batches:
        return
    waiting: deque[tuple[RawBatch, RawBatch, bool]] = deque()
    begun: dict[Digest, int] = {}

    def new() -> Iterator[RawBatch]:
        for given in batches:
            batch, report = _known(context, given)
            is_new = batch.digest not in begun and report is None
            waiting.append((given, batch, is_new))
            if is_new:
                begun[batch.digest] = _begin(context, batch, lease)
                yield batch

    def known() -> Iterator[tuple[RawBatch, IngestReport]]:
        while waiting and not waiting[0][2]:
            given, batch, _ = waiting.popleft()
            report = _recorded(context, batch.digest)
            assert report is not None
            yield given, report

    for report in context.datasets.ingest_each(new()):
        yield from known()
        given, batch, _ = waiting.popleft()
        versions, rules = context.versions.get("dialect", ()), reading_rules(context.loop, batch.source)
        row = row_of("done", IngestEnd(report=report, dialects=versions, rules=rules), "ingest")
        after = begun.pop(batch.digest)
        context.ledger.append(
            [Append(stream=ingest_stream(context.line, batch.digest), after=after, rows=(row,))], lease, context.clock.now()
        )
        yield given, report
    yield from known()


def _known(context: LineContext, batch: RawBatch) -> tuple[RawBatch, IngestReport | None]:
    """Return a batch under the digest by which the ledger and the lake know it, and its report if it was ingested.

    A batch whose records were read by other settings, for example without the right mapping, is read again, as another batch: records that
    the lake has count as duplicates, and those that could not be stored before are stored. The settings of a batch that an earlier release
    ingested are unknown; it counts as read by those of today. So does a batch that another source has delivered: its records would be new.
    """
    begun, done = _rows(context, batch.digest)
    if done is None:
        return batch, None
    rules = reading_rules(context.loop, batch.source)
    if begun is None or begun.source != batch.source or done.rules in (None, rules):
        return batch, done.report.repeated()
    again = replace(batch, digest=digest([batch.digest, rules]), is_reread=True)
    return again, _recorded(context, again.digest)


def reading_rules(loop: Loop, source: str) -> Digest:
    """Return a digest of the settings of a line that decide what is read from a record of a source."""
    known = next((one for one in loop.sources if one.name == source), None)
    own = known.model_dump(mode="json", include={"mapping", "consent_places", "rating_scale", "options"}) if known else {}
    return digest([own, loop.governance.consent])


def _recorded(context: LineContext, batch: Digest) -> IngestReport | None:
    """Return the report of a batch that the ledger has, in which all records count as duplicates; None for a new batch."""
    done = _rows(context, batch)[1]
    return None if done is None else done.report.repeated()


def _rows(context: LineContext, batch: Digest) -> tuple[IngestBegun | None, IngestEnd | None]:
    """Return what the ledger has of the begin and of the end of a batch's ingest."""
    rows = {row.kind: row for row in upgraded(context.ledger.read(ingest_stream(context.line, batch)))}
    begun, done = rows.get("intended"), rows.get("done")
    return content_of(IngestBegun, begun) if begun else None, content_of(IngestEnd, done) if done else None


def _begin(context: LineContext, batch: RawBatch, lease: Lease) -> int:
    """Record that a batch is about to be written, once. Return the number of the last row of its stream."""
    stream = ingest_stream(context.line, batch.digest)
    rows = context.ledger.read(stream)
    if not rows:
        sender = batch.sender.label if batch.sender else None
        intended = row_of("intended", IngestBegun(source=batch.source, format=batch.format, sender=sender), "ingest")
        rows = context.ledger.append([Append(stream=stream, after=0, rows=(intended,))], lease, context.clock.now())
    return rows[-1].seq
