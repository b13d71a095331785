"""Decodes records of Ratchet's JSON Lines format: one JSON object per line. A mapping translates the application's key names.

Observations of Langfuse are recognised and decoded as such (`langfuse`).

Keys: id, timestamp, user_id, session_id, messages, tools, response, model, latency_ms, input_tokens, output_tokens, region, consent;
optional: confidentiality, feedback (a rating), correction, reference, slice, response_id, finish_reason, status, model_version, origin,
consent_time.

A record with the key consent_for (trace, response, session or user) is no trace. It only states consent, from `timestamp` on, for
everything of that trace, response, session or user.
"""

from __future__ import annotations

from typing import Any

from ratchet.contracts.conversation import Conversation
from ratchet.contracts.data.decoding import Decoded, Limits, Row
from ratchet.contracts.data.records import FeedbackKind
from ratchet.contracts.errors import Rejected
from ratchet.contracts.ports import Dialect
from ratchet.materializer.dialects.canonical.exchange import Reply, conversation
from ratchet.materializer.dialects.canonical.tools import tools_of
from ratchet.materializer.dialects.conversation import checked
from ratchet.materializer.dialects.conversations.bodies import reply_of, request_of
from ratchet.materializer.dialects.conversations.plain_text import unwrapped_text
from ratchet.materializer.dialects.langfuse import decode_observation, is_observation
from ratchet.materializer.dialects.otlp import ORIGINS, content_columns
from ratchet.materializer.dialects.values import (
    clean,
    consent,
    name,
    number,
    person,
    rating,
    short_text,
    slug,
    start_time,
    stated,
    statement_columns,
    token_count,
)

_PERSONS = ("session", "user")
CONSENT_KEYS = {"trace": "id", "response": "response_id", "session": "session_id", "user": "user_id"}
"""Value of consent_for -> the key that names its subject."""


class Record:
    """One record with its mapping: Ratchet's key -> dotted key in the record."""

    def __init__(self, raw: dict[str, Any], mapping: dict[str, str]) -> None:
        self._raw = raw
        self._mapping = mapping

    def get(self, key: str) -> Any:
        """Return the value of Ratchet's `key` after mapping; None if the record does not have it."""
        value: Any = self._raw
        for part in self._mapping.get(key, key).split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value


class JsonlDialect(Dialect):
    """Records of Ratchet's JSON Lines format. Batches in the format jsonl name this dialect."""

    name = "jsonl"

    def decode(self, record: Any, position: str, limits: Limits, into: Decoded) -> None:
        """Decode one record into `into`."""
        decode_record(record, position, limits, into)


def decode_record(raw: Any, position: str, limits: Limits, into: Decoded) -> None:
    """Decode one record into `into`: its trace, and its rating and correction if it has them."""
    try:
        if not isinstance(raw, dict):
            raise Rejected("wrong_type", f"a record must be an object, not {type(raw).__name__}")
        if is_observation(raw):
            decode_observation(raw, position, limits, into)
            return
        record = Record(raw, limits.mapping)
        if record.get("consent_for") is not None:
            _decode_consent(record, position, limits, into)
            return
        row = _trace(record, limits)
    except Rejected as error:
        into.reject("traces", position, error)
        return
    into.traces.append(row | {"position": position})
    for key, kind in (("feedback", FeedbackKind.RATING), ("correction", FeedbackKind.CORRECTION)):
        if record.get(key) is not None:
            _decode_feedback(record, key, kind, row, position, into)


def _decode_consent(record: Record, position: str, limits: Limits, into: Decoded) -> None:
    """Decode a record that only states consent. Everything but a clear consent is a refusal."""
    try:
        subject = record.get("consent_for")
        key = CONSENT_KEYS.get(subject) if isinstance(subject, str) else None
        if key is None:
            raise Rejected("bad_value", f"consent_for must be one of {', '.join(CONSENT_KEYS)}")
        identity = (person if subject in _PERSONS else name)(record.get(key))
        if identity is None:
            raise Rejected("missing_id", f"a statement about consent names no {key}")
        time = start_time(record.get("timestamp"), limits.now)
    except Rejected as error:
        into.reject("feedback", position, error)
        return
    given = consent(record.get("consent")) is True
    into.consents.append({"subject": subject, "id": identity, "given": given, "time": time, "position": position})


def _trace(record: Record, limits: Limits) -> Row:
    identity = name(record.get("id"))
    if identity is None:
        raise Rejected("missing_id", "the record has no id")
    begin = start_time(record.get("timestamp"), limits.now)
    said = stated(record.get("consent"), record.get("consent_time"), begin, limits.now)
    agreed = said.given if said else None
    keep = agreed or (agreed is None and limits.assume_consent)
    failed = record.get("status") in ("error", "failed")
    content = _content(record, failed) if keep else None
    origin = record.get("origin")
    origin = "traffic" if origin in (None, "") else origin
    if not isinstance(origin, str) or origin not in ORIGINS:
        raise Rejected("bad_origin", f"origin must be one of {', '.join(sorted(ORIGINS))}")
    latency = number(record.get("latency_ms"))
    return {
        "id": identity,
        "time": begin,
        "origin": origin,
        "user": person(record.get("user_id")),
        "session": person(record.get("session_id")),
        "response_id": name(record.get("response_id")),
        **content_columns(content),
        "model": name(record.get("model")),
        "model_version": name(record.get("model_version")),
        "status": "error" if failed else "ok",
        "finish_reason": name(record.get("finish_reason")) or (name(content.finish) if content else None),
        "latency_ms": latency if latency is not None and latency >= 0 else None,
        "input_tokens": token_count(record.get("input_tokens")),
        "output_tokens": token_count(record.get("output_tokens")),
        "region": name(record.get("region")),
        "confidentiality": name(record.get("confidentiality")),
        "consent": agreed is True,
        **statement_columns(said),
        "reference": short_text(record.get("reference")) if keep else None,
        "slice": slug(record.get("slice")),
    }


_OF_WRAPPERS = frozenset(
    ("role", "choices", "candidates", "generations", "tool_calls", "toolCalls", "toolCallId", "function_call", "functionCall", "lc")
)
"""Keys by which a response that is JSON is recognised as the reply of an API. Other JSON is the answer itself, as text."""


def _content(record: Record, failed: bool) -> Conversation:
    request = request_of(record.get("messages"))
    found = conversation(request, _reply(record.get("response")), tools_of(record.get("tools")))
    return checked(found or Conversation([], None), answered=not failed)


def _reply(value: Any) -> Reply | None:
    if value is not None and not isinstance(value, str | dict | list):
        raise Rejected("wrong_type", f"a response must be text or a message, not {type(value).__name__}")
    if isinstance(value, str):
        parsed = unwrapped_text(value)
        items = parsed if isinstance(parsed, list) else [parsed]
        if not any(isinstance(item, dict) and _OF_WRAPPERS & item.keys() for item in items):
            return Reply({"role": "assistant", "content": clean(value)}) if value.strip() else None
    return reply_of(value)


def _decode_feedback(record: Record, key: str, kind: FeedbackKind, trace: Row, position: str, into: Decoded) -> None:
    at = f"{position}, {key}"
    if kind == FeedbackKind.CORRECTION and trace["messages"] is None:
        into.skip("feedback", "no_consent")
        return
    try:
        value = rating(record.get(key)) if kind == FeedbackKind.RATING else None
        text = None if kind == FeedbackKind.RATING else short_text(record.get(key))
        if value is None and text is None:
            raise Rejected("bad_value", f"{key} has no text")
    except Rejected as error:
        into.reject("feedback", at, error)
        return
    known = {"trace_id": trace["id"], "response_id": trace["response_id"], "rater": trace["user"], "time": trace["time"]}
    into.feedback.append(known | {"kind": kind.value, "value": value, "text": text, "position": at})
