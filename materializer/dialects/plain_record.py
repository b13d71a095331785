"""Reads the plain record of JSON Lines in one pass: known keys, messages of text and an answer of text.

Most records are plain. `jsonl.decode_record` is the definition: a plain record gives the same rows there, and every other one, also every
bad one, is left to it.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from ratchet.contracts.data.decoding import Limits, Row
from ratchet.contracts.data.records import FeedbackKind
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.conversations.plain_text import reply as text_reply
from ratchet.materializer.dialects.otlp import ORIGINS
from ratchet.materializer.dialects.people.told import MAPPED, may_tell
from ratchet.materializer.dialects.screening.outcome import has_failed
from ratchet.materializer.dialects.statement import STATED
from ratchet.materializer.dialects.values import MAX_NAME_BYTES, MAX_TEXT_BYTES, name, number, person, slug, start_time, stated, token_count

_NEEDED = frozenset({"id", "timestamp", "messages", "response"})
_NAMES = frozenset({"model", "model_version", "finish_reason", "region", "confidentiality"})
_READ = _NAMES.union(
    ("user_id", "session_id", "response_id", "latency_ms", "input_tokens", "output_tokens"),
    ("consent", "consent_time", "feedback", "slice", "status", "origin"),
)
_EMPTY = ("consent_for", "tools", "correction", "signals", "reference", "model_parameters", "optional_params", "error")
"""Keys of the format that a plain record has at most as null."""
_SPANS = frozenset({"info", "data", "spans", "context", "resource", "attributes"})
"""Keys by which other forms of records are recognised."""
_ROLES = frozenset({"system", "developer", "user", "assistant"})
_ODD_BEGINNINGS = frozenset('{["dei:')
"""Beginnings of answers that may be JSON or a stream of events."""


class Plain(NamedTuple):
    """The rows of a plain record."""

    trace: Row
    rating: Row | None
    texts: list[str]
    """Its texts, all under the key `content`."""


class _Present(NamedTuple):
    """The keys of a record that may be plain."""

    read: tuple[str, ...]
    empty: tuple[str, ...]


@lru_cache(maxsize=4096)
def _present(keys: tuple[str, ...]) -> _Present | None:
    """Return which keys a record has; None if it lacks a needed one, or has others that may say something about the call."""
    others = set(keys).difference(_NEEDED, _READ, _EMPTY)
    if not _NEEDED.issubset(keys) or any(key in _SPANS or key.startswith("attributes.") or may_tell(key) for key in others):
        return None
    return _Present(tuple(key for key in keys if key in _READ), tuple(key for key in keys if key in _EMPTY))


class PlainReader:
    """Reads the plain records of one batch."""

    def __init__(self, limits: Limits) -> None:
        self._assumed, self._now = limits.assume_consent, limits.now
        self._person = lru_cache(maxsize=50_000)(person)
        self._name = lru_cache(maxsize=1_000)(name)

    def read(self, raw: Any, position: str) -> Plain | None:
        """Return the rows of a record; None if it is not plain. Whether its texts are redacted is not checked."""
        if raw.__class__ is not dict:
            return None
        present = _present(tuple(raw))
        if present is None:
            return None
        try:
            return self._read(raw, present, position)
        except Rejected:
            return None

    def _read(self, raw: dict[str, Any], present: _Present, position: str) -> Plain | None:
        for key in present.empty:
            if raw[key] is not None:
                return None
        answer, made = raw["response"], _messages(raw["messages"])
        if made is None or answer.__class__ is not str or not _is_plain_answer(answer):
            return None
        messages, contents = made
        contents.append(answer)
        if sum(map(len, contents)) * 4 > MAX_TEXT_BYTES:  # a character has at most four bytes
            return None
        begin = start_time(raw["timestamp"], self._now)
        trace: Row = {
            **_EMPTY_TRACE,
            "id": _identity(raw["id"]),
            "time": begin,
            "messages": orjson.dumps(messages).decode(),
            "answer": answer,
            "position": position,
        }
        rating = None
        for key in present.read:
            value = raw[key]
            if value is None:
                continue
            if key == "user_id" or key == "session_id":
                if value.__class__ is not str:
                    return None
                trace["user" if key == "user_id" else "session"] = self._person(value)
            elif key == "consent":
                said = stated(value, raw.get("consent_time"), begin, self._now)
                if said is None or not said.given:
                    return None
                trace["consent"], trace[STATED], trace["consent_time"] = True, said, said.time
            elif key == "latency_ms":
                found = number(value)
                trace[key] = found if found is not None and found >= 0 else None
            elif key in _NAMES:
                trace[key] = self._name(value) if value.__class__ is str else name(value)
            elif key == "response_id":
                trace[key] = _identity(value) if value.__class__ is str else name(value)
            elif key in _COUNTS:
                trace[key] = token_count(value)
            elif key == "feedback":
                if not isinstance(value, int | float) or not 0 <= value <= 1:
                    return None
                rating = float(value)
            elif key == "status":
                if value.__class__ is not str or has_failed(value):
                    return None
            elif key == "slice":
                trace[key] = slug(value)
            elif key == "origin" and value != "":
                if value.__class__ is not str or value not in ORIGINS:
                    return None
                trace[key] = value
        if trace["id"] is None or not (trace["consent"] or self._assumed):
            return None
        return Plain(trace, None if rating is None else _rating(trace, rating, position), contents)


_EMPTY_TRACE: Row = {
    **dict.fromkeys(("user", "session", "response_id", "tools", "model", "model_version", "finish_reason", "latency_ms", "input_tokens")),
    **dict.fromkeys(("output_tokens", "region", "confidentiality", STATED, "consent_time", "reference", "slice")),
    "origin": "traffic",
    "status": "ok",
    "consent": False,
}
_COUNTS = frozenset({"input_tokens", "output_tokens"})


def _is_plain_answer(text: str) -> bool:
    """Return whether a text is an answer as it is, without reasoning. Raises Rejected if it is the printed form of an object."""
    if text[:1].isspace() or text[:1] in _ODD_BEGINNINGS or "think" in text or "<reasoning>" in text or "\x00" in text:
        return False
    return text_reply(text) is not None


def _identity(value: Any) -> str | None:
    if value.__class__ is str and len(value) * 4 <= MAX_NAME_BYTES and "\x00" not in value:
        return value.strip() or None
    return name(value)


def _messages(value: Any) -> tuple[list[dict[str, str]], list[str]] | None:
    """Return messages of text in the canonical form, and their texts; None if they have more than that."""
    if value.__class__ is not list:
        return None
    made, contents, has_text = [], [], False
    for item in value:
        if item.__class__ is not dict or len(item) != 2:
            return None
        content, role = item.get("content"), item.get("role")
        if content.__class__ is not str or role.__class__ is not str or role not in _ROLES or "\x00" in content:
            return None
        is_blank = not content or content.isspace()
        if role == "assistant" and (is_blank or "think" in content or "<reasoning>" in content):
            return None
        has_text = has_text or not is_blank
        made.append({"role": role, "content": content})
        contents.append(content)
    return (made, contents) if has_text else None


def _rating(trace: Row, value: float, position: str) -> Row:
    return {
        "trace_id": trace["id"],
        "response_id": trace["response_id"],
        "rater": trace["user"],
        "time": trace["time"],
        "kind": FeedbackKind.RATING.value,
        "value": value,
        "text": None,
        "signal": None,
        "position": f"{position}, feedback",
    }


def count_plain(told: Counter[tuple[str, str]], traces: list[Row]) -> None:
    """Count in `told` what plain records say, as `people.told.count_told` does."""
    users = sum(1 for row in traces if row["user"] is not None)
    sessions = sum(1 for row in traces if row["session"] is not None)
    agreed = sum(1 for row in traces if row[STATED] is not None)
    facts = (("user", "user_id", users), ("session", "session_id", sessions), ("consent", MAPPED, agreed))
    for fact, place, count in (*facts, ("call", "", len(traces))):
        if count:
            told.update({(fact, place): count} if place == "" else {(fact, place): count, (fact, ""): count})
