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
_NAMES = ("response_id", "model", "model_version", "finish_reason", "region", "confidentiality")
_READ = _NEEDED.union(
    ("user_id", "session_id", "latency_ms", "input_tokens", "output_tokens", "consent", "consent_time", "feedback", "slice", "status"),
    ("origin", *_NAMES),
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


@lru_cache(maxsize=4096)
def _are_plain(keys: tuple[str, ...]) -> bool:
    """Return whether a record with these keys may be plain: it has the needed ones, and others say nothing about the call."""
    others = set(keys).difference(_READ, _EMPTY)
    return _NEEDED.issubset(keys) and not any(key in _SPANS or key.startswith("attributes.") or may_tell(key) for key in others)


class PlainReader:
    """Reads the plain records of one batch."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._person = lru_cache(maxsize=50_000)(person)
        self._now = limits.now

    def read(self, raw: Any, position: str) -> Plain | None:
        """Return the rows of a record; None if it is not plain. Whether its texts are redacted is not checked."""
        if raw.__class__ is not dict or not _are_plain(tuple(raw)):
            return None
        try:
            return self._read(raw, position)
        except Rejected:
            return None

    def _read(self, raw: dict[str, Any], position: str) -> Plain | None:
        get = raw.get
        for key in _EMPTY:
            if key in raw and raw[key] is not None:
                return None
        messages = _messages(raw["messages"])
        answer, rating, origin = raw["response"], get("feedback"), get("origin")
        user, session, status = get("user_id"), get("session_id"), get("status")
        if messages is None or answer.__class__ is not str or (rating is not None and not _is_rating(rating)):
            return None
        if answer.lstrip()[:1] in _ODD_BEGINNINGS or "think" in answer or "<reasoning>" in answer or "\x00" in answer:
            return None
        if (user is not None and user.__class__ is not str) or (session is not None and session.__class__ is not str):
            return None
        if status is not None and (status.__class__ is not str or has_failed(status)):
            return None
        if origin is None or origin == "":
            origin = "traffic"
        elif origin.__class__ is not str or origin not in ORIGINS:
            return None
        begin = start_time(raw["timestamp"], self._now)
        said = stated(get("consent"), get("consent_time"), begin, self._now)
        contents = [message["content"] for message in messages]
        if not (said.given if said else self._limits.assume_consent) or not _fit(contents, answer) or text_reply(answer) is None:
            return None
        identity = _name(raw["id"])
        latency, group = get("latency_ms"), get("slice")
        if identity is None or isinstance(group, dict):
            return None
        latency = None if latency is None else number(latency)
        user, session = user and self._person(user), session and self._person(session)
        named = [None if (value := get(key)) is None else _name(value) for key in _NAMES]
        asked, answered = get("input_tokens"), get("output_tokens")
        trace: Row = {
            "id": identity,
            "time": begin,
            "origin": origin,
            "user": user or None,
            "session": session or None,
            "response_id": named[0],
            "messages": orjson.dumps(messages).decode(),
            "answer": answer,
            "tools": None,
            "model": named[1],
            "model_version": named[2],
            "status": "ok",
            "finish_reason": named[3],
            "latency_ms": latency if latency is not None and latency >= 0 else None,
            "input_tokens": None if asked is None else token_count(asked),
            "output_tokens": None if answered is None else token_count(answered),
            "region": named[4],
            "confidentiality": named[5],
            "consent": said is not None,
            STATED: said,
            "consent_time": said.time if said else None,
            "reference": None,
            "slice": None if group is None else slug(group),
            "position": position,
        }
        feedback = None if rating is None else _rating(trace, float(rating), position)
        contents.append(answer)
        return Plain(trace, feedback, contents)


def _messages(value: Any) -> list[dict[str, str]] | None:
    """Return messages of text in the canonical form; None if they have more than that."""
    if value.__class__ is not list or not value:
        return None
    made, has_text = [], False
    for item in value:
        if item.__class__ is not dict or len(item) != 2:
            return None
        content, role = item.get("content"), item.get("role")
        if content.__class__ is not str or role.__class__ is not str or role not in _ROLES or "\x00" in content:
            return None
        if role == "assistant" and (not content.strip() or "think" in content or "<reasoning>" in content):
            return None
        has_text = has_text or bool(content.strip())
        made.append({"role": role, "content": content})
    return made if has_text else None


def _is_rating(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


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


def _name(value: Any) -> str | None:
    if value.__class__ is str and len(value) * 4 <= MAX_NAME_BYTES and "\x00" not in value:
        return value.strip() or None
    return name(value)


def _fit(contents: list[str], answer: str) -> bool:
    """Return whether the texts are surely small enough: a character has at most four bytes."""
    return (len(answer) + sum(map(len, contents))) * 4 <= MAX_TEXT_BYTES


def count_plain(told: Counter[tuple[str, str]], traces: list[Row]) -> None:
    """Count in `told` what plain records say, as `people.told.count_told` does."""
    users = sum(1 for row in traces if row["user"] is not None)
    sessions = sum(1 for row in traces if row["session"] is not None)
    agreed = sum(1 for row in traces if row[STATED] is not None)
    facts = (("user", "user_id", users), ("session", "session_id", sessions), ("consent", MAPPED, agreed))
    for fact, place, count in (*facts, ("call", "", len(traces))):
        if count:
            told.update({(fact, place): count} if place == "" else {(fact, place): count, (fact, ""): count})
