"""Reads the plain record of JSON Lines in one pass: known keys, messages of text and calls of tools, and an answer of text.

Most records are plain. `jsonl.decode_record` is the definition: a plain record gives the same rows there, and every other one, also every
bad one, is left to it.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from ratchet.contracts.conversation import Message
from ratchet.contracts.data.decoding import Limits, Row
from ratchet.contracts.data.records import FeedbackKind
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.tools import tools_of
from ratchet.materializer.dialects.canonical.turns import paired
from ratchet.materializer.dialects.conversations.plain_text import reply as text_reply
from ratchet.materializer.dialects.otlp import ORIGINS
from ratchet.materializer.dialects.people.told import MAPPED, may_tell
from ratchet.materializer.dialects.screening.outcome import has_failed
from ratchet.materializer.dialects.statement import STATED
from ratchet.materializer.dialects.values import (
    MAX_NAME_BYTES,
    MAX_TEXT_BYTES,
    dump,
    name,
    number,
    person,
    slug,
    start_time,
    stated,
    token_count,
)

_NEEDED = frozenset({"id", "timestamp", "messages", "response"})
_NAMES = frozenset({"model", "model_version", "finish_reason", "region", "confidentiality"})
_READ = _NAMES.union(
    ("user_id", "session_id", "response_id", "latency_ms", "input_tokens", "output_tokens"),
    ("consent", "consent_time", "feedback", "slice", "status", "origin", "tools"),
)
_EMPTY = ("consent_for", "correction", "signals", "reference", "model_parameters", "optional_params", "error")
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
    """Its texts, and the arguments of its calls."""
    is_flat: bool
    """Whether these are all texts of the row, all under the key `content`."""


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
        self._tools = lru_cache(maxsize=200)(_tools)

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
        messages, texts, calls = made
        texts.append(answer)
        tools = self._tools(orjson.dumps(raw["tools"])) if raw.get("tools") is not None else None
        size = sum(map(len, texts)) * 4 + (len(tools) * 4 if tools else 0) + sum(len(orjson.dumps(one)) for one in calls)
        if size > MAX_TEXT_BYTES:  # a character has at most four bytes
            return None
        begin = start_time(raw["timestamp"], self._now)
        trace: Row = {
            **_EMPTY_TRACE,
            "id": _identity(raw["id"]),
            "time": begin,
            "messages": orjson.dumps(messages).decode(),
            "answer": answer,
            "tools": tools,
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
        is_flat = not calls and tools is None
        return Plain(trace, None if rating is None else _rating(trace, rating, position), texts, is_flat)


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


def _messages(value: Any) -> tuple[list[Message], list[str], list[Any]] | None:
    """Return messages in the canonical form, their texts with the arguments of calls, and the calls; None if they have more than that."""
    if value.__class__ is not list:
        return None
    made, texts, calls, has_text, has_results = list[Message](), list[str](), list[Any](), False, False
    for item in value:
        if item.__class__ is not dict:
            return None
        content, role = item.get("content"), item.get("role")
        if role.__class__ is not str:
            return None
        if len(item) == 2 and role in _ROLES:
            if content.__class__ is not str or "\x00" in content:
                return None
            is_blank = not content or content.isspace()
            if role == "assistant" and (is_blank or "think" in content or "<reasoning>" in content):
                return None
            made.append({"role": role, "content": content})
        else:
            message = _with_calls(item, content) if role == "assistant" else _result(item, content) if role == "tool" else None
            if message is None:
                return None
            content = message["content"]
            is_blank = not content or content.isspace()
            if role == "tool":
                has_results = True
            else:
                calls.append(message["tool_calls"])
                texts += [call["function"]["arguments"] for call in message["tool_calls"]]
            made.append(message)
        has_text = has_text or not is_blank
        texts.append(content)
    if not has_text:
        return None
    return (paired(made) if calls or has_results else made), texts, calls


def _with_calls(item: dict[str, Any], content: Any) -> Message | None:
    """Return a message of the assistant with calls of tools in the form of OpenAI; None for another form."""
    listed = item.get("tool_calls")
    if listed.__class__ is not list or not listed or item.keys() != _KEYS_WITH_CALLS:
        return None
    if content is not None and (content.__class__ is not str or "\x00" in content or "think" in content or "<reasoning>" in content):
        return None
    calls = [_call(one) for one in listed]
    return None if any(one is None for one in calls) else {"role": "assistant", "content": content or "", "tool_calls": calls}


_KEYS_WITH_CALLS = frozenset({"role", "content", "tool_calls"})
_KEYS_OF_RESULT = frozenset({"role", "content", "tool_call_id"})
_KEYS_OF_CALL = frozenset({"id", "type", "function"})
_KEYS_OF_FUNCTION = frozenset({"name", "arguments"})


def _call(one: Any) -> dict[str, Any] | None:
    if one.__class__ is not dict or one.keys() != _KEYS_OF_CALL or one["type"] != "function":
        return None
    function, identity = one["function"], one["id"]
    if function.__class__ is not dict or function.keys() != _KEYS_OF_FUNCTION or not _is_short(identity):
        return None
    named, arguments = function["name"], function["arguments"]
    if not _is_short(named) or named.isspace() or arguments.__class__ is not str or arguments[:1] != "{":
        return None
    try:
        orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return None
    return {"id": identity, "type": "function", "function": {"name": named, "arguments": arguments}}


def _is_short(value: Any) -> bool:
    return value.__class__ is str and 0 < len(value) * 4 <= MAX_NAME_BYTES and "\x00" not in value


def _result(item: dict[str, Any], content: Any) -> Message | None:
    """Return the result of a tool as text; None for another form."""
    if item.keys() != _KEYS_OF_RESULT or content.__class__ is not str or "\x00" in content or not _is_short(item["tool_call_id"]):
        return None
    return {"role": "tool", "content": content, "tool_call_id": item["tool_call_id"]}


def _tools(value: bytes) -> str | None:
    """Return the column of the tools that a record lists. Raises Rejected `unknown_tool`."""
    found = tools_of(orjson.loads(value))
    return dump(found) if found else None


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
