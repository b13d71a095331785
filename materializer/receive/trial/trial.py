"""Decodes the records of a place as ingest would, and counts and shows what was read. Nothing is stored."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, cast

from ratchet.contracts.data.datasets import RawBatch, Unread
from ratchet.contracts.data.decoding import PLACE, Decoded, Limits, Row
from ratchet.contracts.errors import Rejected
from ratchet.contracts.ports import TraceSource
from ratchet.materializer.dialects.admission import Admission, unmasked
from ratchet.materializer.dialects.decode import BUILT_IN, decode, record_of
from ratchet.materializer.dialects.people.told import shares
from ratchet.materializer.dialects.screening.sample import repeated_answer
from ratchet.materializer.dialects.statement import STATED

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
    """Ratings and corrections."""
    reference: int = 0
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
class Trial:
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
    complete: bool = True
    """Whether everything was read. Large places are tried in part."""


def try_source(
    source: TraceSource,
    limits: Limits,
    mask: Callable[[Row], Counter[str]] = unmasked,
    mask_record: Callable[[], Callable[[Any], Any]] = lambda: lambda value: value,
) -> Trial:
    """Decode what the source has, up to RECORDS records. `mask` and `mask_record` mask rows and records. Raises like the source."""
    found, rows, feedback = Trial(), list[Row](), 0
    details: dict[str, str] = {}
    told: Counter[tuple[str, str]] = Counter()
    for batch in source.batches():
        part, cut = _part_of(batch)
        decoded = decode(part, limits, BUILT_IN, Admission(mask=mask))
        found.complete = found.complete and not cut
        for kind, reasons in decoded.skipped.items():
            found.skipped.update({f"feedback {reason}" if kind == "feedback" else reason: n for reason, n in reasons.items()})
        for bad in decoded.bad:
            found.quarantined[bad.reason, details.setdefault(bad.reason, bad.detail)] += bad.count
        if len(found.examples) < EXAMPLES:
            found.examples += _examples(part, decoded, EXAMPLES - len(found.examples), mask_record)
        told += decoded.told
        rows += [_counted(row) for row in decoded.traces]
        feedback += len(decoded.feedback)
        found.kept += len(decoded.traces) + len(decoded.feedback) + len(decoded.consents)
        if found.kept + found.skipped.total() + found.quarantined.total() >= RECORDS:
            found.complete = False
            break
    repeated = repeated_answer(rows)
    found.repeated = repeated.sentence if repeated else None
    found.coverage = coverage_of(rows, feedback, {share.fact: share.where for share in shares(told) if share.places})
    found.unread = list(getattr(source, "unread", ()))
    return found


_COUNTED = ("user", "session", "tools", "reference", "status", "consent", STATED)
_KEPT = 300
"""Characters of an answer that are kept while a trial reads. Only short answers are compared."""


def _counted(row: Row) -> dict[str, Any]:
    """Return what is counted of a row, without its long texts."""
    messages = None if row["messages"] is None else hash(row["messages"])
    answer = None if row["answer"] is None else row["answer"][:_KEPT]
    return {key: row.get(key) for key in _COUNTED} | {"messages": messages, "answer": answer}


def coverage_of(rows: Sequence[Mapping[str, Any]], feedback: int, places: Mapping[str, str]) -> Coverage:
    """Count what the rows of calls have. `places` are those of `Coverage`."""
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
        places=places,
    )


class _Part(io.RawIOBase):
    """The first bytes of a stream, up to the end of a line after MOST_BYTES."""

    def __init__(self, stream: BinaryIO, cut: list[bool]) -> None:
        self._stream, self._left, self._cut = stream, MOST_BYTES, cut

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left <= 0:
            self._cut.append(True)
            return 0
        data = self._stream.read(min(len(buffer), self._left))
        self._left -= len(data)
        if data and self._left <= 0 and not data.endswith(b"\n"):
            data += self._stream.readline(len(buffer) - len(data))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def _part_of(batch: RawBatch) -> tuple[RawBatch, list[bool]]:
    """Return the batch with a stream that ends early, and a list that has an element as soon as it has done so.

    Framed batches are read whole, because a cut frame would count as damaged.
    """
    cut: list[bool] = []

    def opened() -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(_Part(batch.open(), cut), 1 << 20))

    return (batch if batch.format == "otlp-proto" else replace(batch, open=opened)), cut


def _examples(batch: RawBatch, decoded: Decoded, count: int, mask_record: Callable[[], Callable[[Any], Any]]) -> Iterator[Example]:
    """Yield the first rows of calls with their masked records. A record that cannot be masked is left out."""
    with batch.open() as stream:
        at = 0
        for row in sorted(decoded.traces, key=lambda row: row[PLACE].offset)[:count]:
            place = row[PLACE]
            if place.offset < at:
                continue  # a second call of the same record
            stream.read(place.offset - at)
            data = stream.read(place.length)
            at = place.offset + place.length
            try:
                record = mask_record()(record_of(batch.format, data))
                yield _example(f"{batch.origin}, {row['position']}", record, row)
            except Rejected:
                continue


def _example(position: str, record: Any, row: Row) -> Example:
    """Return an example without the ids of people. Ingest stores pseudonyms in their place."""
    people = {row[key]: f"[{key.upper()}]" for key in ("user", "session") if row[key] is not None}
    shown = row | {key: people[row[key]] for key in ("user", "session") if row[key] is not None}
    said = row[STATED]
    return Example(position, _without(record, people), shown, "not stated" if said is None else "yes" if said.given else "refused")


def _without(value: Any, people: Mapping[str, str]) -> Any:
    """Return a value without the ids of people, which are whole texts or numbers in it, also in JSON as text."""
    if isinstance(value, dict):
        return {key: _without(item, people) for key, item in value.items()}
    if isinstance(value, list):
        return [_without(item, people) for item in value]
    if isinstance(value, bool) or not isinstance(value, str | int):
        return value
    return people.get(str(value).strip(), value)
