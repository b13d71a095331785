"""Reads the plain records of a block: known keys, messages of text and calls of tools, and an answer of text.

`jsonl.decode_record` is the definition: a plain record gives the same rows there, and every other one, also every bad one, is left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from types import NoneType
from typing import Any, NamedTuple

import orjson

from ratchet.contracts.data.decoding import Limits, Row
from ratchet.contracts.data.records import FeedbackKind
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.exchange import finish_of, is_stopped
from ratchet.materializer.dialects.canonical.reasoning import may_reason
from ratchet.materializer.dialects.canonical.tools import tools_of
from ratchet.materializer.dialects.conversations.plain_text import is_reply
from ratchet.materializer.dialects.otlp import ORIGINS
from ratchet.materializer.dialects.people.told import may_tell
from ratchet.materializer.dialects.plain.messages import plain_messages
from ratchet.materializer.dialects.screening.outcome import OUTCOMES, has_failed
from ratchet.materializer.dialects.values import (
    DAY_US,
    EARLIEST_US,
    MAX_NAME_BYTES,
    MAX_TEXT_BYTES,
    dump,
    name,
    number,
    person,
    rating,
    slug,
    start_time,
    stated,
    token_count,
)
from ratchet.materializer.privacy.masking import OF_DOCUMENTS
from ratchet.runtime.secrets.pseudonyms import Subject

_NEEDED = frozenset({"id", "timestamp", "messages", "response"})
_NAMES = ("model", "model_version", "region", "confidentiality")
_COUNTS = ("input_tokens", "output_tokens")
_READ = frozenset({*_NAMES, *_COUNTS, "finish_reason"}).union(
    ("user_id", "session_id", "response_id", "latency_ms", "consent", "consent_time", "feedback", "slice", "status", "origin", "tools")
)
_EMPTY = ("consent_for", "correction", "signals", "reference", "model_parameters", "optional_params", *OUTCOMES)
"""Keys of the format that a plain record has at most as null."""
_SPANS = frozenset({"info", "data", "spans", "context", "resource", "attributes"})
"""Keys by which other forms of records are recognised."""
_TEXT_OR_NULL = frozenset({str, NoneType})
_NUMBER_OR_NULL = frozenset({int, float, NoneType})
_WHOLE_BELOW = 1 << 53
_MOST_PEOPLE = 50_000
"""Ids of users, and of sessions, whose pseudonyms are remembered."""
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_ODD_BEGINNINGS = frozenset('{["dei:0f')
"""Beginnings of answers that may be JSON or a stream of events."""


class _Present(NamedTuple):
    """The keys of a record that may be plain."""

    read: frozenset[str]
    empty: tuple[str, ...]


@lru_cache(maxsize=4096)
def _present(keys: tuple[str, ...]) -> _Present | None:
    """Return which keys a record has; None if it lacks a needed one, or has others that may say something about the call."""
    others = set(keys).difference(_NEEDED, _READ, _EMPTY)
    if not _NEEDED.issubset(keys) or any(key in _SPANS or key.startswith("attributes.") or may_tell(key) for key in others):
        return None
    return _Present(_READ.intersection(keys), tuple(key for key in keys if key in _EMPTY))


class PlainBlock(NamedTuple):
    """The plain records of a block. All lists have one entry per plain record."""

    numbers: list[int]
    """Numbers of the plain records in the block."""
    columns: dict[str, list[Any]]
    """Column of a trace -> values. A column that no record has is left out."""
    texts: list[list[str]]
    """Texts of each record, and the arguments of its calls."""
    is_flat: list[bool]
    """Whether these are all texts of the row, all under the key `content`, without a document or an image."""
    ratings: list[float | None]

    def without(self, numbers: set[int]) -> PlainBlock:
        """Return the block without the records of these numbers."""
        if not numbers:
            return self
        kept = [at for at, number in enumerate(self.numbers) if number not in numbers]

        def chosen(values: list[Any]) -> list[Any]:
            return [values[at] for at in kept]

        columns = {key: chosen(values) for key, values in self.columns.items()}
        return PlainBlock(chosen(self.numbers), columns, chosen(self.texts), chosen(self.is_flat), chosen(self.ratings))

    @classmethod
    def empty(cls) -> PlainBlock:
        """Return a block without records."""
        return cls([], {"id": [], "messages": [], "answer": [], "tools": []}, [], [], [])


class _People(dict[str | None, str | None]):
    """Id of a user or a session -> its pseudonym. Each id of a batch is hidden once, as long as there are not too many."""

    def __init__(self, subject: Subject, hide: Callable[[Subject, str], str]) -> None:
        self._subject, self._hide = subject, hide

    def __missing__(self, value: str | None) -> str | None:
        read = None if value is None else person(value)
        found = self[value] = None if read is None else self._hide(self._subject, read)
        return found

    def of(self, values: Sequence[str | None]) -> list[str | None]:
        """Return the pseudonyms of ids. None stays None, and of an empty id, there is none."""
        if len(self) > _MOST_PEOPLE:
            self.clear()
        return [self[value] for value in values]


class PlainReader:
    """Reads the plain records of one batch."""

    def __init__(self, limits: Limits, hide: Callable[[Subject, str], str]) -> None:
        """`hide` returns the pseudonym of a user or session."""
        self._assumed, self._now, self._scale = limits.assume_consent, limits.now, limits.rating_scale
        self._people = {"user": _People("u", hide), "session": _People("s", hide)}
        self._tools = lru_cache(maxsize=200)(_tools)

    def read(self, records: Sequence[Any]) -> PlainBlock:
        """Return the plain ones of parsed records. Whether their texts are redacted is not checked."""
        found, keys, last, present = PlainBlock.empty(), set[str](), None, None
        del found.columns["id"]
        for at, raw in enumerate(records):
            if raw.__class__ is not dict:
                continue
            listed = tuple(raw)
            if listed != last:  # most records have the keys of the one before
                last, present = listed, _present(listed)
            if present is None or (present.empty and any(raw[key] is not None for key in present.empty)):
                continue
            if self._read_content(raw, found):
                found.numbers.append(at)
                keys |= present.read
        bad = self._describe([records[at] for at in found.numbers], keys, found)
        return found.without({found.numbers[at] for at in bad})

    def _read_content(self, raw: dict[str, Any], found: PlainBlock) -> bool:
        """Add messages, answer and tools of a record to `found`. Return whether they are plain; if not, nothing is added."""
        answer = raw["response"]
        try:
            if answer.__class__ is not str or not _is_plain_answer(answer) or (made := plain_messages(raw["messages"])) is None:
                return False
            tools = self._tools(orjson.dumps(raw["tools"])) if raw.get("tools") is not None else None
        except Rejected:
            return False
        messages, texts, calls = made
        texts.append(answer)
        size = sum(map(len, texts)) * 4
        if calls or tools:
            size += (len(tools) * 4 if tools else 0) + sum(len(orjson.dumps(one)) for one in calls)
        if size > MAX_TEXT_BYTES:  # a character has at most four bytes
            return False
        columns = found.columns
        columns["messages"].append(orjson.dumps(messages).decode())
        columns["answer"].append(answer)
        columns["tools"].append(tools)
        found.texts.append(texts)
        found.is_flat.append(not calls and tools is None and not any(map(_is_document, texts)))
        return True

    def _describe(self, raws: Sequence[dict[str, Any]], keys: set[str], found: PlainBlock) -> set[int]:
        """Add the other columns of records. Return the numbers of those that are not plain."""
        bad, columns = set[int](), found.columns

        def read(key: str, convert: Callable[[Any], Any]) -> list[Any]:
            return _converted([raw.get(key) for raw in raws], convert, bad)

        columns["id"] = _identities([raw["id"] for raw in raws], bad)
        columns["time"] = self._times(raws, bad)
        for key, column in (("user_id", "user"), ("session_id", "session")):
            if key in keys:
                values = [raw.get(key) for raw in raws]
                bad.update(at for at, value in enumerate(values) if value.__class__ not in _TEXT_OR_NULL)
                known = self._people[column]
                columns[column] = known.of([value if value.__class__ is str else None for value in values] if bad else values)
        for key in _NAMES:
            if key in keys:
                columns[key] = read(key, name)
        if "latency_ms" in keys:
            columns["latency_ms"] = [_latency(raw.get("latency_ms")) for raw in raws]
        for key, convert in _VALUES.items():
            if key in keys:
                columns[key] = read(key, convert)
        if "origin" in keys:
            columns["origin"] = ["traffic" if value is None else value for value in read("origin", _origin)]
        if "status" in keys:
            read("status", _succeeded)
        rated = [raw.get("feedback") for raw in raws] if "feedback" in keys else []
        found.ratings.extend(_ratings(rated, self._scale, bad) if rated else [None] * len(raws))
        self._consents(raws, keys, columns, bad)
        return bad

    def _times(self, raws: Sequence[dict[str, Any]], bad: set[int]) -> list[Any]:
        values, latest = [raw["timestamp"] for raw in raws], self._now + DAY_US
        try:
            if all("-" in value for value in values):  # text, and not digits
                found: list[Any] = [(parsed - _EPOCH) // _MICROSECOND for parsed in map(datetime.fromisoformat, values)]
                if not found or (min(found) >= EARLIEST_US and max(found) <= latest):
                    return found
        except (TypeError, ValueError, OverflowError):  # a value is not a text, has no time zone, or is not a time
            pass
        found = []
        for at, value in enumerate(values):
            try:
                found.append(start_time(value, self._now))
            except Rejected:
                found.append(None)
                bad.add(at)
        return found

    def _consents(self, raws: Sequence[dict[str, Any]], keys: set[str], columns: dict[str, list[Any]], bad: set[int]) -> None:
        given = [raw.get("consent") for raw in raws] if "consent" in keys else [None] * len(raws)
        if "consent_time" not in keys and all(value is True for value in given):
            columns["consent"], columns["consent_time"] = given, columns["time"]
            return
        columns["consent"], columns["consent_time"] = [False] * len(raws), [None] * len(raws)
        for at, (raw, value, begin) in enumerate(zip(raws, given, columns["time"], strict=True)):
            if at in bad:
                continue
            try:
                said = stated(value, raw.get("consent_time"), begin, self._now)
            except Rejected:
                bad.add(at)
                continue
            if said is not None and said.given:
                columns["consent"][at], columns["consent_time"][at] = True, said.time
            elif said is not None or not self._assumed:
                bad.add(at)


def _converted(values: list[Any], convert: Callable[[Any], Any], bad: set[int]) -> list[Any]:
    """Return converted values; null stays null. The numbers of those that are refused are added to `bad`.

    Each text is converted once.
    """
    if set(map(type, values)) <= {str, NoneType}:
        try:
            known = {value: None if value is None else convert(value) for value in set(values)}
        except Rejected:
            return _each(values, convert, bad)
        return [known[value] for value in values]
    return _each(values, convert, bad)


def _each(values: list[Any], convert: Callable[[Any], Any], bad: set[int]) -> list[Any]:
    found = list[Any]()
    for at, value in enumerate(values):
        try:
            found.append(None if value is None else convert(value))
        except Rejected:
            found.append(None)
            bad.add(at)
    return found


def _not_plain() -> Rejected:
    return Rejected("wrong_type", "the value is not plain")


def _is_document(text: str) -> bool:
    return text.startswith(OF_DOCUMENTS)


def _identities(values: list[Any], bad: set[int]) -> list[str | None]:
    """Return ids. The numbers of those that are missing or refused are added to `bad`."""
    if set(map(type, values)) == {str} and max(map(len, values)) * 4 <= MAX_NAME_BYTES and "\x00" not in "".join(values):
        found = [value.strip() or None for value in values]
    else:
        found = _each(values, _identity, bad)
    if None in found:
        bad.update(at for at, value in enumerate(found) if value is None)
    return found


def _ratings(values: list[Any], scale: tuple[float, float] | None, bad: set[int]) -> list[float | None]:
    """Return ratings; null stays null. The numbers of those that are refused are added to `bad`."""
    if scale is not None:
        return _each(values, partial(rating, scale=scale), bad)
    if set(map(type, values)) <= _NUMBER_OR_NULL:
        given = [value for value in values if value is not None]
        if not given or (min(given) >= 0 and max(given) <= 1):
            return [None if value is None else float(value) for value in values]
    return _each(values, _rating, bad)


def _latency(value: Any) -> float | None:
    if value.__class__ is int and 0 <= value < _WHOLE_BELOW:  # most are such
        return float(value)
    found = number(value)
    return found if found is not None and found >= 0 else None


def _response(value: Any) -> str | None:
    return _identity(value) if value.__class__ is str else name(value)


def _origin(value: Any) -> str | None:
    if value == "":
        return None
    if value.__class__ is not str or value not in ORIGINS:
        raise _not_plain()
    return str(value)


def _succeeded(value: Any) -> None:
    if value.__class__ is not str or has_failed(value):
        raise _not_plain()


def _rating(value: Any) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise _not_plain()
    return float(value)


def _identity(value: Any) -> str | None:
    if value.__class__ is str and len(value) * 4 <= MAX_NAME_BYTES and "\x00" not in value:
        return value.strip() or None
    return name(value)


def _finish(value: Any) -> str | None:
    found = finish_of(name(value))
    if is_stopped(found):
        raise _not_plain()
    return found


_VALUES: Mapping[str, Callable[[Any], Any]] = {
    "finish_reason": _finish,
    "response_id": _response,
    **dict.fromkeys(_COUNTS, token_count),
    "slice": slug,
}


def _is_plain_answer(text: str) -> bool:
    """Return whether a text is an answer as it is, without reasoning. Raises Rejected if it is the printed form of an object."""
    if text[:1].isspace() or text[:1] in _ODD_BEGINNINGS or may_reason(text) or "\x00" in text:
        return False
    return is_reply(text)


def _tools(value: bytes) -> str | None:
    """Return the column of the tools that a record lists. Raises Rejected `unknown_tool`."""
    found = tools_of(orjson.loads(value))
    return dump(found) if found else None


def rating_row(identity: str, response: str | None, rater: str | None, time: int, value: float, position: str) -> Row:
    """Return the row of the rating that a record has of its own answer. `time` is in microseconds since the epoch."""
    return {
        "trace_id": identity,
        "response_id": response,
        "rater": rater,
        "time": time,
        "kind": FeedbackKind.RATING.value,
        "value": value,
        "text": None,
        "signal": None,
        "position": f"{position}, feedback",
    }
