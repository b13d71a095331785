"""Decodes the records of a batch in blocks, because a search for personal data in many texts at once costs less than in one after another.

The order of rows and of bad parts is that of the records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from ratchet.contracts.data.decoding import PLACE, Decoded, Kind, Limits, Place, Row
from ratchet.contracts.errors import Rejected
from ratchet.contracts.ports import Dialect
from ratchet.materializer.dialects.admission import Admission, Findings, Known
from ratchet.materializer.dialects.jsonl import JsonlDialect
from ratchet.materializer.dialects.plain.reader import PlainBlock, PlainReader, rating_row
from ratchet.materializer.dialects.plain.traces import PlainTraces, count_told
from ratchet.materializer.dialects.record_dialect import decoded_with, is_claimed, lacks_tools
from ratchet.materializer.dialects.screening.placeholders import is_redacted, may_be_redacted
from ratchet.runtime.secrets.pseudonyms import Subject

_RECORDS, _BYTES = 256, 2 << 20
"""A block ends with these."""


_HIDDEN: Mapping[str, Subject] = {"user": "u", "session": "s"}
"""Columns whose ids become pseudonyms."""
_SEARCHED_ALONE: Findings = {"": []}
"""Stands for the findings of a row that was not searched with others."""


class Found(NamedTuple):
    """The bytes of one record."""

    position: str
    place: Place
    data: bytes
    parse: Callable[[bytes], Any]
    """Returns the record. Raises Rejected if it cannot be parsed."""
    kind: Kind = "traces"
    """Kind under which the record is counted if it cannot be parsed."""
    error: Rejected | None = None
    """Why its bytes cannot be read; `place` is complete then."""


class _Refused(NamedTuple):
    """A record that cannot be read."""

    kind: Kind
    error: Rejected


class _Parsed(NamedTuple):
    """A record that may be plain."""

    record: Any


_Read: TypeAlias = _Parsed | Decoded | _Refused


class Blocks:
    """Decodes records with their dialects, block after block: plain ones into `plain`, and all others into `into`."""

    def __init__(self, named: Dialect, others: Sequence[Dialect], limits: Limits, admission: Admission, into: Decoded) -> None:
        self._named, self._others, self._limits, self._admission, self._into = named, others, limits, admission, into
        may_be_plain = type(named) is JsonlDialect and not limits.mapping and admission.sender is None
        self._reader = PlainReader(limits) if may_be_plain else None
        self._block: list[tuple[Found, _Read]] = []
        self._size = 0
        self.plain = PlainTraces()

    def add(self, found: Found) -> None:
        """Decode a record. Its rows follow at the end of its block."""
        self._block.append((found, self._read(found)))
        self._size += len(found.data)
        if len(self._block) >= _RECORDS or self._size >= _BYTES:
            self.finish()

    def finish(self) -> None:
        """End the block: complete and mask its rows, and add them to the result."""
        block, self._block, self._size = self._block, [], 0
        plain = self._plain(block)
        others = {number: self._other(*block[number]) for number in set(range(len(block))).difference(plain.numbers)}
        small = [_texts_of(plain.columns, at) for at in range(len(plain.numbers))]
        known = self._known(small, plain, [others[number] for number in sorted(others)])
        self._add_plain(block, plain, small, known, others)

    def _read(self, found: Found) -> _Read:
        if found.error is not None:
            return _Refused(found.kind, found.error)
        try:
            record = found.parse(found.data)
        except Rejected as error:
            return _Refused(found.kind, error)
        try:
            if self._reader is not None and not (self._others and is_claimed(record, self._others)):
                return _Parsed(record)
        except Rejected as error:
            return _Refused("traces", error)
        return self._decoded(found, record)

    def _decoded(self, found: Found, record: Any) -> Decoded | _Refused:
        try:
            return decoded_with(self._named, self._others, record, found.position, self._limits)
        except Rejected as error:
            return _Refused("traces", error)

    def _other(self, found: Found, read: _Read) -> Decoded | _Refused:
        return self._decoded(found, read.record) if isinstance(read, _Parsed) else read

    def _plain(self, block: Sequence[tuple[Found, _Read]]) -> PlainBlock:
        """Return the plain records. One with a text that a tool has redacted is left to the dialect, which says what is wrong."""
        if self._reader is None:
            return PlainBlock([], {"id": []}, [], [], [])
        plain = self._reader.read([read.record if isinstance(read, _Parsed) else None for _, read in block])
        texts, owners = list[str](), list[int]()
        for number, its in zip(plain.numbers, plain.texts, strict=True):
            texts += its
            owners += [number] * len(its)
        more = self._limits.placeholders
        return plain.without({owners[at] for at in may_be_redacted(texts, more) if is_redacted(texts[at], more)} if texts else set())

    def _known(self, small: list[Row], plain: PlainBlock, others: Sequence[Decoded | _Refused]) -> Known:
        """Search all texts of the block at once."""
        if self._admission.bulk is None:
            return {}
        rows = list(small)
        texts: list[Sequence[str] | None] = [its if flat else None for its, flat in zip(plain.texts, plain.is_flat, strict=True)]
        for read in others:
            if isinstance(read, Decoded):
                more = [*read.traces, *read.halves, *read.feedback]
                rows += more
                texts += [None] * len(more)
        found = self._admission.bulk.search(rows, texts)
        return {id(row): one for row, one in zip(rows, found, strict=True)} if found is not None else {}

    def _add(self, found: Found, read: Decoded | _Refused, known: Known) -> None:
        into = self._into
        before = len(into.bad), len(into.traces), len(into.feedback), len(into.consents)
        try:
            if isinstance(read, _Refused):
                into.reject(read.kind, found.position, read.error, found.place if found.error else None)
            else:
                self._admission.admit(read, known)
                read.told["call without tools", ""] += sum(map(lacks_tools, read.traces))
                into.merge(read, found.position)
        except Rejected as error:
            into.reject("traces", found.position, error)
        if not found.error:
            _mark(into, before, found)

    def _add_plain(
        self,
        block: Sequence[tuple[Found, _Read]],
        plain: PlainBlock,
        small: Sequence[Row],
        known: Known,
        others: Mapping[int, Decoded | _Refused],
    ) -> None:
        """Mask the plain records. Add all records in the order of the block."""
        into, columns, traces, at = self._into, plain.columns, self.plain, 0
        count_told(into.told, columns)
        for column, subject in _HIDDEN.items():
            if column in columns:
                columns[column] = self._admission.hidden(subject, columns[column])
        users, responses, failed = columns.get("user"), columns.get("response_id"), set[int]()
        for number, (found, _) in enumerate(block):
            if number in others:
                self._add(found, others[number], known)
                continue
            if known.get(id(small[at]), _SEARCHED_ALONE):  # without findings, there is nothing to mask
                try:
                    into.masked.update(self._admission.masked(small[at], id(small[at]), known))
                    for column, text in small[at].items():
                        columns[column][at] = text
                except Rejected as error:
                    into.reject("traces", found.position, error, _with_digest(found))
                    failed.add(number)
            if number not in failed:
                traces.positions.append(found.position)
                traces.places.append(found.place)
                traces.before.append(len(into.traces))
            if (value := plain.ratings[at]) is not None:
                its = columns["id"][at], responses[at] if responses else None, users[at] if users else None, columns["time"][at]
                into.feedback.append(rating_row(*its, value, found.position) | {PLACE: found.place})
            at += 1
        rest = plain.without(failed)
        if lacking := sum(lacks_tools(_texts_of(rest.columns, one)) for one in range(len(rest.numbers))):
            into.told["call without tools", ""] += lacking
        traces.extend(rest.columns)


def _texts_of(columns: Mapping[str, Sequence[Any]], at: int) -> Row:
    return {"messages": columns["messages"][at], "answer": columns["answer"][at], "tools": columns["tools"][at]}


def _mark(into: Decoded, before: tuple[int, int, int, int], found: Found) -> None:
    """Add the place of the record to its rows and to its bad parts, which come after the numbers in `before`."""
    if len(into.bad) > before[0]:
        place = _with_digest(found)
        into.bad[before[0] :] = [replace(bad, place=place) for bad in into.bad[before[0] :]]
    for rows, begin in zip((into.traces, into.feedback, into.consents), before[1:], strict=True):
        for row in rows[begin:]:
            row[PLACE] = found.place


def _with_digest(found: Found) -> Place:
    return found.place._replace(digest=hashlib.sha256(found.data).hexdigest())
