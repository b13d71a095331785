"""Decodes the records of a place as ingest would, and counts and shows what was read. Nothing is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from ratchet.contracts.data.datasets import RawBatch, Unread
from ratchet.contracts.data.decoding import PLACE, Decoded, Limits, Row
from ratchet.contracts.errors import Rejected
from ratchet.contracts.ids import SkippedTexts
from ratchet.contracts.ports import TraceSource
from ratchet.materializer.dialects.admission import Admission, unmasked
from ratchet.materializer.dialects.decode import BUILT_IN, MAX_RECORD, decode, record_of
from ratchet.materializer.dialects.otlp import OF_LOGS
from ratchet.materializer.dialects.otlp_attributes import Attributes
from ratchet.materializer.dialects.people.told import as_object, shares, told
from ratchet.materializer.dialects.screening.sample import asked_in, opening_sentence, repeated_answer
from ratchet.materializer.dialects.statement import STATED
from ratchet.materializer.dialects.values import dump, parse_json
from ratchet.materializer.lake.storing.dedup_index import content_of
from ratchet.materializer.lake.storing.statements import conflict
from ratchet.materializer.receive.files.streams import stream_of

RECORDS = 20_000
"""Records after which a trial ends."""
MOST_BYTES = 32 << 20
"""Bytes of one batch that are read."""
EXAMPLES = 3


@dataclass(frozen=True)
class Coverage:
    """How many of the kept calls have what later steps need."""

    calls: int = 0
    consent: int = 0
    refused: int = 0
    unstated: int = 0
    """Calls that do not say anything about consent."""
    user: int = 0
    session: int = 0
    tools: int = 0
    feedback: int = 0
    """Ratings, corrections and signals."""
    reference: int = 0
    late_reference: int = 0
    """Right answers that come with a later record of a call. Ingest adds them to the call. They are not part of `reference`."""
    places: Mapping[str, str] = field(default_factory=dict)
    """consent, refusal, user or session -> the places that name it, with numbers of calls."""


@dataclass(frozen=True)
class Example:
    """One record beside what was read from it. Texts are masked, and the ids of user and session are replaced."""

    position: str
    record: Any
    row: Row
    consent: str
    """What the record states: yes, refused or not stated."""


@dataclass
class SourceTrial:
    """What a trial found."""

    kept: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    quarantined: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(reason, first detail with it) -> number."""
    coverage: Coverage = field(default_factory=Coverage)
    examples: list[Example] = field(default_factory=list)
    unread: Sequence[Unread] = ()
    repeated: str | None = None
    """What is doubtful about a text that answers many prompts."""
    opening: str | None = None
    """What is doubtful about user messages with which many prompts begin."""
    complete: bool = True
    """Whether everything was read. Large places are tried in part."""


def try_source(
    source: TraceSource,
    limits: Limits,
    mask: Callable[[Row], Counter[str]] = unmasked,
    mask_record: Callable[[], Callable[[Any], Any]] = lambda: lambda value: value,
    skipped: SkippedTexts = (),
) -> SourceTrial:
    """Decode what the source has, up to RECORDS records. `mask` and `mask_record` mask rows and records. Raises like the source.

    `skipped` are the beginnings of user messages that are no question.
    """
    found, rows, feedback = SourceTrial(), list[Row](), 0
    details: dict[str, str] = {}
    counts: Counter[tuple[str, str]] = Counter()
    contents: dict[str, bytes] = {}
    answers = _Answers()
    for batch in source.batches():
        part, cut = _part_of(batch)
        decoded = decode(part, limits, BUILT_IN, Admission(mask=mask))
        found.complete = found.complete and not cut
        _sort_repeated(decoded, contents, answers, batch.format)
        for kind, reasons in decoded.skipped.items():
            found.skipped.update({f"feedback {reason}" if kind == "feedback" else reason: n for reason, n in reasons.items()})
        for bad in decoded.bad:
            found.quarantined[bad.reason, details.setdefault(bad.reason, bad.detail)] += bad.count
        if len(found.examples) < EXAMPLES:
            found.examples += _examples(part, decoded, EXAMPLES - len(found.examples), mask_record)
        counts += decoded.told
        rows += [_counted(row, skipped) for row in decoded.traces]
        feedback += len(decoded.feedback)
        found.kept += len(decoded.traces) + len(decoded.feedback) + len(decoded.consents)
        if found.kept + found.skipped.total() + found.quarantined.total() >= RECORDS:
            found.complete = False
            break
    found.kept += answers.late
    repeated = repeated_answer(rows)
    found.repeated = repeated.sentence if repeated else None
    found.opening = opening_sentence([row["asked"] for row in rows if row["messages"] is not None])
    found.coverage = coverage_of(rows, feedback, answers.late, {share.fact: share.where for share in shares(counts) if share.places})
    found.unread = list(getattr(source, "unread", ()))
    return found


@dataclass
class _Answers:
    """Right answers of calls, and how many came later than their call."""

    known: set[tuple[str, str]] = field(default_factory=set)
    """(id of the call, right answer)."""
    late: int = 0

    def add(self, row: Row, is_late: bool) -> None:
        """Add the right answer of a row, if it has one."""
        if (text := row.get("reference")) is not None and (row["id"], text) not in self.known:
            self.known.add((row["id"], text))
            self.late += is_late


def _sort_repeated(decoded: Decoded, contents: dict[str, bytes], answers: _Answers, form: str) -> None:
    """Sort out the calls whose id was read before, as ingest does: the same again, or with other content. `contents` is id -> content."""
    rows, decoded.traces = decoded.traces, []
    for row in rows:
        if row["messages"] is None or row.get(OF_LOGS):  # the content may be in another record
            decoded.traces.append(row)
            continue
        content = content_of("traces", row)
        if row["id"] not in contents:
            contents[row["id"]] = content
            decoded.traces.append(row)
            answers.add(row, is_late=False)
        elif contents[row["id"]] == content:
            decoded.skip("traces", "duplicate")
            answers.add(row, is_late=True)
        else:
            decoded.reject("traces", row["position"], conflict(form), row.get(PLACE))


_COUNTED = ("user", "session", "tools", "reference", "status", "consent", STATED)
_KEPT = 300
"""Characters of an answer that are kept while a trial reads. Only short answers are compared."""


def _counted(row: Row, skipped: SkippedTexts) -> dict[str, Any]:
    """Return what is counted of a row, without its long texts."""
    asked = () if row["messages"] is None else asked_in(row["messages"], skipped)
    messages = None if row["messages"] is None else hash(row["messages"])
    answer = None if row["answer"] is None else row["answer"][:_KEPT]
    return {key: row.get(key) for key in _COUNTED} | {"messages": messages, "asked": asked, "answer": answer}


def coverage_of(rows: Sequence[Mapping[str, Any]], feedback: int, late: int, places: Mapping[str, str]) -> Coverage:
    """Count what the rows of calls have. `late` and `places` are `late_reference` and `places` of `Coverage`."""
    said = [row[STATED] for row in rows]
    return Coverage(
        calls=len(rows),
        consent=sum(row["consent"] is True for row in rows),
        refused=sum(one is not None and not one.given for one in said),
        unstated=sum(one is None for one in said),
        user=sum(row["user"] is not None for row in rows),
        session=sum(row["session"] is not None for row in rows),
        tools=sum(row["tools"] is not None for row in rows),
        feedback=feedback,
        reference=sum(row["reference"] is not None for row in rows),
        late_reference=late,
        places=places,
    )


def _begin(stream: BinaryIO, cut: list[bool]) -> Iterator[bytes]:
    """Yield the first MOST_BYTES of a stream, up to the end of a line. Then `cut` gets an element."""
    left, last = MOST_BYTES, b""
    while left > 0 and (piece := stream.read(min(left, 1 << 20))):
        left -= len(piece)
        last = piece
        yield piece
    if left <= 0:
        cut.append(True)
        if not last.endswith(b"\n"):
            yield stream.readline(MAX_RECORD + 1)


def _part_of(batch: RawBatch) -> tuple[RawBatch, list[bool]]:
    """Return the batch with a stream that ends early, and a list that has an element as soon as it has done so.

    Framed batches are read whole, because a cut frame would count as damaged.
    """
    cut: list[bool] = []

    def opened() -> BinaryIO:
        stream = batch.open()
        return stream_of(_begin(stream, cut), stream.close)

    return (batch if batch.format == "otlp-proto" else replace(batch, open=opened)), cut


def _examples(batch: RawBatch, decoded: Decoded, count: int, mask_record: Callable[[], Callable[[Any], Any]]) -> Iterator[Example]:
    """Yield the first call of each of the first `count` records, with the masked record.

    A record in which a person refuses is left out, because it has the person's texts. So is one that cannot be masked.
    """
    records: dict[int, list[Row]] = {}
    for row in sorted(decoded.traces, key=lambda row: row[PLACE].offset):
        records.setdefault(row[PLACE].offset, []).append(row)
    refusing = {_record_at(row["position"]) for row in decoded.consents if row["given"] is False}
    with batch.open() as stream:
        at = batch.offset  # places count from the beginning of the file
        for offset, rows in records.items():
            if count <= 0:
                break
            row = rows[0]
            said = [one[STATED] for one in rows]
            if any(one is not None and not one.given for one in said) or _record_at(row["position"]) in refusing:
                continue
            stream.read(offset - at)
            data = stream.read(row[PLACE].length)
            at = offset + len(data)
            people = {one[key]: f"[{key.upper()}]" for one in rows for key in ("session", "user") if one[key] is not None}
            try:
                record = record_of(batch.format, data)
                if _refuses(record):
                    continue
                record = mask_record()(_without(record, people))
                shown = row | {key: _without(row[key], people) for key in _TEXTS if row.get(key) is not None}
            except (Rejected, RecursionError):
                continue
            count -= 1
            yield Example(f"{batch.origin}, {row['position']}", record, shown, "not stated" if said[0] is None else "yes")


_TEXTS = ("user", "session", "messages", "answer", "tools", "reference")
"""Columns of an example in which the ids of people are replaced."""
_SHORT = 4
"""Characters of an id from which it is replaced inside of a text. A shorter one is part of many words."""


def _record_at(position: str) -> str:
    """Return the place of a record, of the position of a part of it: `line 3` of `line 3, span 2`."""
    return position.partition(", ")[0]


def _refuses(record: Any) -> bool:
    """Return whether any OTLP attributes in a record refuse: also of a span without a row, whose texts would be shown too."""
    left = [record]
    while left:
        at = left.pop()
        if isinstance(at, dict):
            if isinstance(at.get("attributes"), list) and told(Attributes(at["attributes"])).refuses():
                return True
            left += at.values()
        elif isinstance(at, list):
            left += at
    return False


def _without(value: Any, people: Mapping[str, str]) -> Any:
    """Return a value without the ids of people, where ingest stores pseudonyms.

    An id is a whole text or number, also in JSON as text, or a part of a text if it has at least _SHORT characters.
    """
    if isinstance(value, dict):
        return {_without(key, people): _without(item, people) for key, item in value.items()}
    if isinstance(value, list):
        return [_without(item, people) for item in value]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    whole = people.get(str(value).strip())
    if whole is not None or not isinstance(value, str):
        return value if whole is None else whole
    inner = _parsed(value)
    if inner is not None and (hidden := _without(inner, people)) != inner:
        value = dump(hidden)
    for person in sorted((one for one in people if len(one) >= _SHORT), key=len, reverse=True):
        value = value.replace(person, people[person])
    return value


def _parsed(text: str) -> Any:
    """Return what a text has as JSON or as Python's printed form: an object, a list or a text; None for any other text."""
    if text.lstrip()[:1] not in ("{", "[", '"'):
        return None
    try:
        return parse_json(text)
    except Rejected:
        return as_object(text) or None
