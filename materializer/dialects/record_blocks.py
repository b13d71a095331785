"""Decodes the records of a batch in blocks, because a search for personal data in many texts at once costs less than in one after another.

The order of rows and of bad parts is that of the records.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from ratchet.contracts.data.decoding import PLACE, Decoded, Kind, Limits, Place, Row
from ratchet.contracts.errors import Rejected
from ratchet.contracts.ports import Dialect
from ratchet.materializer.dialects.admission import Admission, Findings, Known
from ratchet.materializer.dialects.jsonl import JsonlDialect
from ratchet.materializer.dialects.plain_record import Plain, PlainReader, count_plain
from ratchet.materializer.dialects.record_dialect import decoded_with, is_claimed, lacks_tools
from ratchet.materializer.dialects.screening.placeholders import is_redacted, may_be_redacted

_RECORDS, _BYTES = 256, 2 << 20
"""A block ends with these."""


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


_Read: TypeAlias = Plain | Decoded | _Refused


class Blocks:
    """Decodes records with their dialects into `into`, block after block."""

    def __init__(self, named: Dialect, others: Sequence[Dialect], limits: Limits, admission: Admission, into: Decoded) -> None:
        self._named, self._others, self._limits, self._admission, self._into = named, others, limits, admission, into
        may_be_plain = type(named) is JsonlDialect and not limits.mapping and admission.sender is None
        self._plain = PlainReader(limits) if may_be_plain else None
        self._block: list[tuple[Found, _Read]] = []
        self._size = 0

    def add(self, found: Found) -> None:
        """Decode a record. Its rows follow at the end of its block."""
        self._block.append((found, self._read(found)))
        self._size += len(found.data)
        if len(self._block) >= _RECORDS or self._size >= _BYTES:
            self.finish()

    def finish(self) -> None:
        """End the block: complete and mask its rows, and add them to the result."""
        block, self._block, self._size = self._without_redacted(self._block), [], 0
        known, into = self._known(block), self._into
        plain = list[Row]()
        for found, read in block:
            if isinstance(read, Plain):
                plain.append(read.trace)
                self._add_plain(found, read, known)
                continue
            before = len(into.bad), len(into.traces), len(into.feedback), len(into.consents)
            if isinstance(read, _Refused):
                into.reject(read.kind, found.position, read.error, found.place if found.error else None)
            else:
                self._add(found, read, known)
            if not found.error:
                _mark(into, before, found)
        count_plain(into.told, plain)

    def _read(self, found: Found) -> _Read:
        if found.error is not None:
            return _Refused(found.kind, found.error)
        try:
            record = found.parse(found.data)
        except Rejected as error:
            return _Refused(found.kind, error)
        try:
            if self._plain is not None and not (self._others and is_claimed(record, self._others)):
                plain = self._plain.read(record, found.position)
                if plain is not None:
                    return plain
        except Rejected as error:
            return _Refused("traces", error)
        return self._decoded(found, record)

    def _decoded(self, found: Found, record: Any) -> Decoded | _Refused:
        try:
            return decoded_with(self._named, self._others, record, found.position, self._limits)
        except Rejected as error:
            return _Refused("traces", error)

    def _without_redacted(self, block: list[tuple[Found, _Read]]) -> list[tuple[Found, _Read]]:
        """Return the block. The dialect decodes the plain records with a text that a tool has redacted once more, to say what is wrong."""
        texts, owners = list[str](), list[int]()
        for number, (_, read) in enumerate(block):
            if isinstance(read, Plain):
                texts += read.texts
                owners += [number] * len(read.texts)
        more = self._limits.placeholders
        for number in may_be_redacted(texts, more):
            found, read = block[owners[number]]
            if isinstance(read, Plain) and is_redacted(texts[number], more):
                block[owners[number]] = found, self._decoded(found, found.parse(found.data))
        return block

    def _known(self, block: Sequence[tuple[Found, _Read]]) -> Known:
        """Search all texts of the block at once."""
        if self._admission.bulk is None:
            return {}
        rows, texts = list[Row](), list[Sequence[str] | None]()
        for _, read in block:
            if isinstance(read, Plain):
                rows.append(read.trace)
                texts.append(read.texts if read.is_flat else None)
            elif isinstance(read, Decoded):
                more = [*read.traces, *read.halves, *read.feedback]
                rows += more
                texts += [None] * len(more)
        found = self._admission.bulk.search(rows, texts)
        return {id(row): one for row, one in zip(rows, found, strict=True)} if found is not None else {}

    def _add(self, found: Found, read: Decoded, known: Known) -> None:
        try:
            self._admission.admit(read, known)
            read.told["call without tools", ""] += sum(map(lacks_tools, read.traces))
            self._into.merge(read, found.position)
        except Rejected as error:
            self._into.reject("traces", found.position, error)

    def _add_plain(self, found: Found, read: Plain, known: Known) -> None:
        into, row = self._into, read.trace
        self._admission.admit_plain(row)
        row[PLACE] = found.place
        try:
            if known.get(id(row), _SEARCHED_ALONE):  # without findings, there is nothing to mask
                into.masked.update(self._admission.masked(row, id(row), known))
        except Rejected as error:
            into.reject("traces", found.position, error, _with_digest(found))
        else:
            into.traces.append(row)
            if lacks_tools(row):
                into.told["call without tools", ""] += 1
        if read.rating is not None:
            read.rating["rater"] = row["user"]
            read.rating[PLACE] = found.place
            into.feedback.append(read.rating)


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
