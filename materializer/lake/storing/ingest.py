"""Commits one batch to the lake, exactly once, and counts the outcome of every record.

If the lake already holds a record from the same batch, an earlier, incomplete attempt has written it. The record counts as kept and
is not written again. A repeat after a crash between two commits therefore completes the batch and reports the same counts as an
uninterrupted run. Governance decides later which records are used for training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime

from ratchet.contracts.data.datasets import Counts, FeedbackCounts, IngestReport, RawBatch, TraceCounts
from ratchet.contracts.data.decoding import PLACE, Decoded, Kind, Limits, Row
from ratchet.contracts.data.quarantine import QuarantineCounts
from ratchet.contracts.data.records import TRACES, ConsentSubject, FeedbackKind
from ratchet.contracts.errors import Rejected
from ratchet.contracts.ports import Dialect
from ratchet.materializer.dialects.admission import DEFERRED, Admission, Bulk
from ratchet.materializer.dialects.decode import BUILT_IN, decode_in_columns
from ratchet.materializer.dialects.otlp import OF_LOGS
from ratchet.materializer.dialects.plain.traces import PlainTraces
from ratchet.materializer.lake.arrow import pa
from ratchet.materializer.lake.schemas import arrow_table
from ratchet.materializer.lake.storing.common_traces import take_common
from ratchet.materializer.lake.storing.dedup_index import DedupIndex, RowKeys, content_of, key_of, response_key
from ratchet.materializer.lake.storing.late_references import late_references
from ratchet.materializer.lake.storing.statements import SortedTraces, sort_halves, sort_statements, sort_traces, without_refused
from ratchet.materializer.lake.storing.whole_traces import apply_refusals
from ratchet.materializer.lake.tables import TABLES, Commit, Lake, TableName
from ratchet.materializer.lake.upkeep import tidy
from ratchet.materializer.quarantine.kept import KeptRecords
from ratchet.materializer.quarantine.writing import Keeping, ended_cuts, ended_row, write_entries
from ratchet.materializer.record_hashes import Key, trace_key
from ratchet.runtime.collection import without_collection
from ratchet.runtime.secrets.pseudonyms import Subject


@dataclass
class Sorted:
    """Rows of one table, grouped by outcome."""

    fresh: list[Row] = field(default_factory=list)
    keys: list[RowKeys] = field(default_factory=list)
    """Those of `fresh`."""
    again: int = 0
    """Number of rows that an earlier attempt of this batch has written."""
    duplicate: int = 0

    def with_others(self, others: Sorted) -> Sorted:
        """Return these rows and others of the same table with other keys."""
        return Sorted(self.fresh + others.fresh, self.keys + others.keys, self.again + others.again, self.duplicate + others.duplicate)


@dataclass(frozen=True)
class Stored:
    """What the lake did with the decoded rows of a batch."""

    report: IngestReport
    fresh: int
    """Number of rows that this call has added to the lake, or would add."""
    refused: list[str]
    """Pseudonyms of the users who have refused their consent in this batch."""


def ingest_batch(
    lake: Lake,
    seen: DedupIndex,
    batch: RawBatch,
    limits: Limits,
    dialects: Mapping[str, Dialect] = BUILT_IN,
    *,
    is_signed: Callable[[bytes, str], bool],
    hide: Callable[[Subject, str], str],
    mask: Callable[[Row], Counter[str]],
    bulk: Bulk | None = None,
    keeping: Keeping,
) -> IngestReport:
    """Decode `batch`, then commit its rows. Safe to repeat at any point.

    The order is: statements about consent, so that a crash never leaves the rest of a batch in use without its refusals, then traces,
    feedback and quarantined records.

    `is_signed` verifies signatures of the router. `mask` replaces personal data in the texts of a row in place; `bulk` does
    so in many rows at once. `hide` returns the pseudonym of a user or session. `keeping` says which quarantined records keep bytes.
    """
    with without_collection():
        return _ingest(lake, seen, batch, limits, dialects, Admission(batch.sender, is_signed, hide, mask, bulk), keeping)


def _ingest(
    lake: Lake,
    seen: DedupIndex,
    batch: RawBatch,
    limits: Limits,
    dialects: Mapping[str, Dialect],
    admission: Admission,
    keeping: Keeping,
) -> IngestReport:
    decoded, plain = decode_in_columns(batch, limits, dialects, admission)
    return commit(lake, seen, batch, decoded, plain, limits, hide=admission.hide, keeping=keeping)


def commit(
    lake: Lake,
    seen: DedupIndex,
    batch: RawBatch,
    decoded: Decoded,
    plain: PlainTraces,
    limits: Limits,
    *,
    hide: Callable[[Subject, str], str],
    keeping: Keeping,
) -> IngestReport:
    """Commit the rows of a decoded batch, and its quarantined records. The arguments are those of `ingest_batch`, and what it decodes."""
    with lake.writing(), seen.held():
        stored = store(lake, seen, batch, decoded, limits, plain)
        kept = KeptRecords(lake.place)
        _quarantine(lake, seen, batch, decoded, limits, keeping, hide, kept)
        kept.expire(limits.now)
        kept.forget_users(stored.refused)
        window = limits.now - int(keeping.settings.alarm_window * 1_000_000)
        kept.count(batch.digest, limits.now, _alarm_counts(stored.report, decoded), window)
        for table in TABLES:
            tidy(lake, table, datetime.fromtimestamp(limits.now / 1_000_000, UTC).date())
    return stored.report


def store(
    lake: Lake,
    seen: DedupIndex,
    batch: RawBatch,
    decoded: Decoded,
    limits: Limits,
    plain: PlainTraces | None = None,
    write: bool = True,
) -> Stored:
    """Commit the decoded rows of a batch, all but the bad ones; rows in conflict with stored ones are added to these.

    `plain` has the traces of the plain records, which are stored together with the others. The caller holds the write lock. Without
    `write`, nothing is written, and the result says what would be.
    """
    seen.begin()
    common = take_common(lake, seen, batch, decoded, plain if plain is not None else PlainTraces(), limits)
    _leave_out_erased(decoded, lake)
    unsigned = common.unsigned + sum(row["model_version"] is not None and not row["verified"] for row in decoded.traces)
    statements = _complete(decoded.consents, batch, limits)
    complete = _complete(decoded.traces, batch, limits), _complete(decoded.halves, batch, limits)
    rows, halves, about_stored = apply_refusals(lake, statements, *complete)
    rows = without_refused(rows, halves, _refused(lake, decoded))
    traces = sort_traces(rows, decoded, seen, batch)
    sort_halves(halves, traces, seen)
    stated = sort_statements(traces, statements, seen, batch)
    repeated = {key_of("consent", row) for row in stated.fresh}
    more = sort_statements(SortedTraces(), [row for row in about_stored if key_of("consent", row) not in repeated], seen, batch)
    if write:
        fresh = [*stated.fresh, *more.fresh]
        seen.add("consent", fresh, _write(lake, seen, "consent", fresh, batch))
        rows = pa.concat_tables([arrow_table(traces.fresh, TRACES), common.rows])
        made = lake.append("traces", rows, batch.digest, seen.read("traces"))
        seen.add("traces", traces.fresh, made, traces.keys, common.entries, common.names)
    fresh_keys = {entry[0] for entry in common.entries} if write else frozenset[Key]()
    kept, parked = _admit(decoded.feedback, decoded, seen, batch, fresh_keys)
    feedback = _sort("feedback", kept, decoded, seen, batch, limits)
    answers = Sorted()
    if late := late_references(seen, traces, limits):
        answers = _sort("feedback", _admit(late, decoded, seen, batch, fresh_keys)[0], decoded, seen, batch, limits)
        feedback = feedback.with_others(answers)
    if write:
        seen.add("feedback", feedback.fresh, _write(lake, seen, "feedback", feedback.fresh, batch), feedback.keys)
    counted = _counts("traces", traces.kept + len(common.entries), traces.duplicate, decoded)
    counts = _counts("feedback", len(feedback.fresh) + feedback.again + stated.kept, feedback.duplicate + stated.duplicate, decoded)
    report = IngestReport(
        traces=TraceCounts(**counted.model_dump(), unsigned=unsigned),
        feedback=FeedbackCounts(**counts.model_dump(), parked=parked),
        consent_changed=traces.completed + stated.changed + more.changed,
        masked=dict(sorted(decoded.masked.items())),
        late_references=len(answers.fresh) + answers.again,
    )
    refused = [row["id"] for row in stated.fresh if row["subject"] == ConsentSubject.USER and not row["given"]]
    return Stored(report, len(common.entries) + len(traces.fresh) + len(feedback.fresh) + len(stated.fresh) + len(more.fresh), refused)


def _refused(lake: Lake, decoded: Decoded) -> list[tuple[str, str]]:
    """Return source and id of the traces for which the lake has a refusal, if the batch has content from log records."""
    if not any(row.get(OF_LOGS) and (row["messages"] is not None or row.get(DEFERRED)) for row in decoded.traces):
        return []
    said = lake.scan("consent", ("source", "subject", "id", "given"))
    said = said.filter((said["subject"] == ConsentSubject.TRACE.value) & ~said["given"])
    return list(said.select("source", "id").iter_rows())


def _leave_out_erased(decoded: Decoded, lake: Lake) -> None:
    """Count the records of erased people as skipped, so that nothing of them is stored again."""
    people = lake.erased_people()
    if not (people.users or people.sessions):
        return
    halves = [row for row in decoded.halves if not people.includes(row["user"], row["session"])]
    named = {row["id"] for row in decoded.halves} - {row["id"] for row in halves}  # log records do not name the user of their span
    traces = [
        row for row in decoded.traces if not people.includes(row["user"], row["session"]) and not (row.get(OF_LOGS) and row["id"] in named)
    ]
    feedback = [row for row in decoded.feedback if not people.includes(row["rater"])]
    decoded.skipped["traces"] += Counter({"erased": len(decoded.traces) - len(traces)})
    decoded.skipped["feedback"] += Counter({"erased": len(decoded.feedback) - len(feedback)})
    decoded.halves = halves
    decoded.traces, decoded.feedback = traces, feedback


def _write(lake: Lake, seen: DedupIndex, table: TableName, rows: list[Row], batch: RawBatch) -> Commit | None:
    return lake.append(table, arrow_table(rows, TABLES[table]), batch.digest, seen.read(table)) if rows else None


def _complete(rows: Iterable[Row], batch: RawBatch, limits: Limits) -> list[Row]:
    sender = batch.sender.label if batch.sender else None
    trusted = batch.sender is None or batch.sender.vouches
    operator = batch.sender is None or batch.sender.operates
    known = {"source": batch.source, "batch": batch.digest, "ingested": limits.now, "sender": sender, "trusted": trusted}
    known["operator"] = operator
    made = list(rows)
    for row in made:
        row.update(known)
    return made


def _sort(table: Kind, rows: list[Row], decoded: Decoded, seen: DedupIndex, batch: RawBatch, limits: Limits) -> Sorted:
    """Group rows by outcome. Of several rows with one key, the first is kept.

    A row with a known key and different content is quarantined, because it is unknown which of the two is correct.
    """
    seen.catch_up(table)
    keyed = [(key_of(table, row), row) for row in _complete(rows, batch, limits)]
    stored = seen.lookup(table, [key for key, _ in keyed])
    found = Sorted()
    here: dict[Key, bytes] = {}
    for key, row in keyed:
        content = content_of(table, row)
        known = stored.get(key)
        first = here.get(key, known.content if known else content)
        if first != content and batch.is_reread:
            found.duplicate += 1
        elif first != content:
            decoded.reject(
                table, row["position"], Rejected("id_conflict", "a record with the same id has different content"), row.get(PLACE)
            )
        elif key in here or (known and not known.is_of(batch.digest)):
            found.duplicate += 1
        elif known:
            found.again += 1
        else:
            found.fresh.append(row)
            found.keys.append(RowKeys(key, content))
        here.setdefault(key, first)
    return found


def _admit(rows: list[Row], decoded: Decoded, seen: DedupIndex, batch: RawBatch, fresh: Set[Key]) -> tuple[list[Row], int]:
    """Return (those `rows` of feedback that may be stored, number of stored records whose trace is unknown).

    `fresh` are keys of traces just stored. The text of a correction or reference is content. It is left out if the content of its trace
    was not kept, and so is a signal, which serves for nothing else than training.
    """
    subjects = [_subject(batch.source, row) for row in rows]
    known = seen.subjects(subjects, fresh)
    kept, waiting = [], set()
    for subject, row in zip(subjects, rows, strict=True):
        if row["kind"] != FeedbackKind.RATING and known.get(subject) is False:
            decoded.skip("feedback", "no_consent")
            continue
        kept.append(row)
        if subject not in known:
            waiting.add(key_of("feedback", row | {"source": batch.source, "sender": batch.sender.label if batch.sender else None}))
    return kept, len(waiting)


def _subject(source: str, row: Row) -> Key:
    return trace_key(source, row["trace_id"]) if row["trace_id"] is not None else response_key(source, row["response_id"])


def _quarantine(
    lake: Lake,
    seen: DedupIndex,
    batch: RawBatch,
    decoded: Decoded,
    limits: Limits,
    keeping: Keeping,
    hide: Callable[[Subject, str], str],
    kept: KeptRecords,
) -> None:
    """Write the quarantine rows that no earlier attempt has written, after the bytes that are kept of their records."""
    origin = batch.origin.removesuffix(".gz")
    ended = ended_cuts(kept.cut(batch.source, origin) if batch.sender is None else (), decoded, batch)
    if not (decoded.bad or ended):
        return
    seen.catch_up("quarantine")
    keys = {key_of("quarantine", {"batch": batch.digest, "position": bad.position, "reason": bad.reason}): bad for bad in decoded.bad}
    stored = seen.lookup("quarantine", list(keys))
    made = write_entries([bad for key, bad in keys.items() if key not in stored], batch, limits, keeping, hide)
    people = lake.erased_people()
    allowed = {identity: one for identity, one in made.kept.items() if not (people.includes(one.user) or people.are_named_in(one.content))}
    has = kept.keep(allowed, keeping.settings.max_total_bytes)
    rows = [row if row["id"] in has else {**row, "expires": None} for row in made.rows]
    rows += [ended_row(cut, state, detail, batch) for cut, state, detail in ended]
    kept.watch(batch.source, origin, made.cut)
    _write(lake, seen, "quarantine", _complete(rows, batch, limits), batch)
    kept.end([cut.id for cut, _, _ in ended])


def _alarm_counts(report: IngestReport, decoded: Decoded) -> QuarantineCounts:
    reasons: Counter[str] = Counter()
    for bad in decoded.bad:
        reasons[bad.reason] += bad.count
    both = report.traces + report.feedback
    return QuarantineCounts(read=both.read, quarantined=both.quarantined, reasons=dict(reasons))


def _counts(kind: Kind, kept: int, duplicate: int, decoded: Decoded) -> Counts:
    bad: Counter[str] = Counter()
    for item in decoded.bad:
        if item.kind == kind:
            bad[item.reason] += item.count
    skipped = decoded.skipped[kind]
    total = kept + duplicate + skipped.total() + bad.total()
    reasons = dict(sorted((skipped + bad).items()))
    return Counts(read=total, kept=kept, duplicate=duplicate, skipped=skipped.total(), quarantined=bad.total(), reasons=reasons)
