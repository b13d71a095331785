"""Decodes the records of a batch in blocks, because a search for personal data in many texts at once costs less than in one after another.

The order of rows and of bad parts is that of the records.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import Any, NamedTuple, TypeAlias

from ratchet.contracts.data.decoding import PLACE, Decoded, Kind, Limits, Place, Row
from ratchet.contracts.errors import Rejected
from ratchet.contracts.ports import Dialect
from ratchet.materializer.dialects.admission import Admission, Findings, Known
from ratchet.materializer.dialects.jsonl import JsonlDialect
from ratchet.materializer.dialects.plain.reader import PlainBlock, PlainReader, rating_row
from ratchet.materializer.dialects.plain.traces import PlainTraces, count_told
from ratchet.materializer.dialects.record_dialect import decoded_with, is_claimed, lacks, lacks_tools
from ratchet.materializer.dialects.screening.placeholders import is_redacted, may_be_redacted
from ratchet.materializer.privacy.masking import contents
from ratchet.materializer.privacy.search import Joined

_RECORDS, _BYTES = 1024, 2 << 20
"""A block ends with these."""


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


_Read: TypeAlias = Decoded | _Refused


class Blocks:
    """Decodes records with their dialects, block after block: plain ones into `plain`, and all others into `into`."""

    def __init__(self, named: Dialect, others: Sequence[Dialect], limits: Limits, admission: Admission, into: Decoded) -> None:
        self._named, self._others, self._limits, self._admission, self._into = named, others, limits, admission, into
        may_be_plain = type(named) is JsonlDialect and not limits.mapping and admission.sender is None
        self._reader = PlainReader(limits, admission.hide) if may_be_plain else None
        self._block: list[Found] = []
        self._size = 0
        self.plain = PlainTraces()

    def add(self, found: Found) -> None:
        """Add a record. Its rows follow at the end of its block."""
        self._block.append(found)
        self._size += len(found.data)
        if len(self._block) >= _RECORDS or self._size >= _BYTES:
            self.finish()

    def finish(self) -> None:
        """End the block: decode its records, complete and mask their rows, and add them to the result."""
        block, self._block, self._size = self._block, [], 0
        plain, others = self._read(block)
        known = self._known([others[number] for number in sorted(others)])
        if plain.numbers:
            self._add_plain(block, plain, known, others)
        else:
            for number, found in enumerate(block):
                self._add(found, others[number], known)

    def _read(self, block: Sequence[Found]) -> tuple[PlainBlock, dict[int, _Read]]:
        """Return the plain records of a block, and the others by their number."""
        others, reader = dict[int, _Read](), self._reader
        if reader is None:
            return PlainBlock.empty(), {number: self._parsed(found) for number, found in enumerate(block)}
        records = list[Any]()
        for number, found in enumerate(block):
            try:
                if found.error is not None:
                    raise found.error
                record = found.parse(found.data)
            except Rejected as error:
                record, others[number] = None, _Refused(found.kind, error)
            try:
                if self._others and number not in others and is_claimed(record, self._others):
                    record, others[number] = None, self._decoded(found, record)
            except Rejected as error:
                record, others[number] = None, _Refused("traces", error)
            records.append(record)
        plain = self._without_redacted(reader.read(records))
        if len(plain.numbers) < len(block):
            for number in set(range(len(block))).difference(plain.numbers, others):
                others[number] = self._decoded(block[number], records[number])
        return plain, others

    def _parsed(self, found: Found) -> _Read:
        if found.error is not None:
            return _Refused(found.kind, found.error)
        try:
            record = found.parse(found.data)
        except Rejected as error:
            return _Refused(found.kind, error)
        return self._decoded(found, record)

    def _decoded(self, found: Found, record: Any) -> _Read:
        try:
            return decoded_with(self._named, self._others, record, found.position, self._limits)
        except Rejected as error:
            return _Refused("traces", error)

    def _without_redacted(self, plain: PlainBlock) -> PlainBlock:
        """Leave a record with a text that a tool has redacted to the dialect, which says what is wrong."""
        texts = list(chain.from_iterable(plain.texts))
        self._joined, more = Joined(contents(texts)), self._limits.placeholders
        redacted = [at for at in may_be_redacted(texts, self._joined, more) if is_redacted(texts[at], more)]
        if not redacted:
            return plain
        ends = list(accumulate(map(len, plain.texts)))
        found = plain.without({plain.numbers[bisect_right(ends, at)] for at in redacted})
        self._joined = Joined(contents(chain.from_iterable(found.texts)))
        return found

    def _known(self, others: Sequence[_Read]) -> Known:
        """Search all texts of the other records of a block at once."""
        rows = [row for read in others if isinstance(read, Decoded) for row in (*read.traces, *read.halves, *read.feedback)]
        found = self._admission.bulk.search(rows) if rows and self._admission.bulk is not None else None
        return {id(row): one for row, one in zip(rows, found, strict=True)} if found is not None else {}

    def _masked(self, plain: PlainBlock) -> dict[int, Rejected]:
        """Mask the plain records. Return why some of them cannot be masked, by their number."""
        columns, failed, bulk = plain.columns, dict[int, Rejected](), self._admission.bulk
        found: Mapping[int, Findings] | None = None
        if bulk is not None:
            owners = list(chain.from_iterable([at] * len(its) for at, its in enumerate(plain.texts)))
            others = {at: _texts_of(columns, at) for at, is_flat in enumerate(plain.is_flat) if not is_flat}
            found = bulk.search_plain(self._joined, owners, others)
        for at in range(len(plain.numbers)) if found is None else sorted(found):  # without findings, there is nothing to mask
            row = _texts_of(columns, at)
            try:
                self._into.masked.update(self._admission.masked(row, at, {} if found is None else found))
            except Rejected as error:
                failed[plain.numbers[at]] = error
            else:
                for column, text in row.items():
                    columns[column][at] = text
        return failed

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

    def _add_plain(self, block: Sequence[Found], plain: PlainBlock, known: Known, others: Mapping[int, _Read]) -> None:
        """Mask the plain records. Add all records in the order of the block."""
        into, columns, traces, at = self._into, plain.columns, self.plain, 0
        count_told(into.told, columns)
        failed = self._masked(plain)
        if not others and not failed:
            traces.positions += [found.position for found in block]
            traces.places += [found.place for found in block]
            traces.before += [len(into.traces)] * len(block)
            for at, value in enumerate(plain.ratings):
                if value is not None:
                    into.feedback.append(_rating_of(plain, at, value, block[at]))
        else:
            for number, found in enumerate(block):
                if number in others:
                    self._add(found, others[number], known)
                    continue
                if number in failed:
                    into.reject("traces", found.position, failed[number], _with_digest(found))
                else:
                    traces.positions.append(found.position)
                    traces.places.append(found.place)
                    traces.before.append(len(into.traces))
                if (value := plain.ratings[at]) is not None:
                    into.feedback.append(_rating_of(plain, at, value, found))
                at += 1
        rest = plain.without(set(failed)).columns
        if lacking := sum(map(lacks, rest["messages"], rest["answer"], rest["tools"])):
            into.told["call without tools", ""] += lacking
        traces.extend(rest)


def _rating_of(plain: PlainBlock, at: int, value: float, found: Found) -> Row:
    columns = plain.columns
    response, user = columns.get("response_id"), columns.get("user")
    its = columns["id"][at], response[at] if response else None, user[at] if user else None, columns["time"][at]
    return rating_row(*its, value, found.position) | {PLACE: found.place}


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
