"""Decodes records of Ratchet's JSON Lines format: one JSON object per line. A mapping translates the application's key names.

Observations of Langfuse are recognised and decoded as such (`langfuse`). Without a mapping, so are spans that are not in OTLP
(`exports/plain_spans.py`).

Keys: id, timestamp, user_id, session_id, messages, tools, response, model, latency_ms, input_tokens, output_tokens, region, consent;
optional: confidentiality, feedback (a rating), correction, signals (a list of names), reference, slice, response_id, finish_reason, status,
model_version, origin, consent_time.

Consent, user, session, region, confidentiality and slice are also read from the places where libraries write them (people/places.py).

A record with the key consent_for (trace, response, session or user) is no trace. It only states consent, from `timestamp` on, for
everything of that trace, response, session or user.
"""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from ratchet.contracts.conversation import Conversation
from ratchet.contracts.data.decoding import Decoded, Limits, Row
from ratchet.contracts.data.records import SENT_SIGNALS, FeedbackKind
from ratchet.contracts.errors import Rejected
from ratchet.contracts.loop.traces import CONSTANT, DIGEST
from ratchet.contracts.ports import Dialect
from ratchet.materializer.dialects.canonical.exchange import (
    Reply,
    Request,
    conversation,
    finish_of,
    finish_reason,
    has_stopped,
    is_stopped,
    with_instructions,
)
from ratchet.materializer.dialects.canonical.tools import tools_of
from ratchet.materializer.dialects.conversation import checked
from ratchet.materializer.dialects.conversations import openai_chat
from ratchet.materializer.dialects.conversations.bodies import reply_of, request_of
from ratchet.materializer.dialects.conversations.plain_text import unwrapped_text
from ratchet.materializer.dialects.exports.plain_spans import decode_plain_spans, is_plain_spans
from ratchet.materializer.dialects.langfuse import at_path, decode_observation, is_observation, is_trace
from ratchet.materializer.dialects.otlp import ORIGINS, answer_text, content_columns
from ratchet.materializer.dialects.people.told import MAPPED, REFUSED, Told, consent_at, count_told, statement, third_party, told_in_record
from ratchet.materializer.dialects.screening.outcome import record_has_failed
from ratchet.materializer.dialects.values import (
    consent,
    held_rating,
    name,
    number,
    person,
    rating,
    slug,
    start_time,
    statement_columns,
    token_count,
)

_CONSENTS = ("consent", "consent_time", "consent_third_party")
_LATER = ("reference", "correction", "feedback", "signals")
"""Keys of what an application may know later than the call. The first two are content."""
_CONTENT = ("messages", "tools", "response", "correction", "reference")
_PERSONS = ("session", "user", "user_third_party")
CONSENT_KEYS = {
    **{"trace": "id", "response": "response_id", "session": "session_id", "user": "user_id"},
    **{"trace_third_party": "id", "user_third_party": "user_id"},
}
"""Value of consent_for -> the key that names its subject."""


class Record:
    """One record with its mapping: Ratchet's key -> dotted key in the record."""

    def __init__(self, raw: dict[str, Any], mapping: dict[str, str]) -> None:
        self._raw = raw
        self._mapping = mapping

    def told(self) -> Told:
        """Return what the record says about its user: at the mapped keys first, then in every place of the table."""
        own = {path.partition(".")[0] for key in _CONTENT for path in (self._mapping.get(key, key),)}
        main = {key for key in ("consent", "consent_time") if self._mapping.get(key, key).partition(".")[0] == key}
        found = told_in_record(self._raw, content=own | main)
        found.consents.insert(0, (MAPPED, self.get("consent")))
        found.times[MAPPED] = self.get("consent_time")
        if (agreed := self.get("consent_third_party")) is not None and found.facts.get("third_party", (0,))[0] > REFUSED:
            found.facts["third_party"] = (REFUSED, MAPPED, agreed)
        for fact, key in (("user", "user_id"), ("session", "session_id")):
            if (identity := person(self.get(key))) is not None:
                found.facts[fact] = (-2, self._mapping.get(key, key), identity)  # type: ignore[index]
        return found

    def get(self, key: str) -> Any:
        """Return the value of Ratchet's `key` after mapping; None if the record does not have it. An object inside may be JSON text."""
        path = self._mapping.get(key, key)
        if path == DIGEST:
            return self._digest()
        if path.startswith(CONSTANT):
            own = self._raw.get(key)
            return path.removeprefix(CONSTANT) if own in (None, "") else own
        return (consent_at if key in _CONSENTS else at_path)(self._raw, path)

    def _digest(self) -> str:
        try:
            return hashlib.sha256(orjson.dumps(self._raw, default=str, option=orjson.OPT_SORT_KEYS)).hexdigest()
        except orjson.JSONEncodeError:
            raise Rejected("too_deep", "the record nests too deeply for a digest") from None

    def is_made_up(self, key: str) -> bool:
        """Return whether the record lacks a value for `key`, so that the mapping makes one up."""
        path = self._mapping.get(key, key)
        return path == DIGEST or (path.startswith(CONSTANT) and self._raw.get(key) in (None, ""))

    def maps(self, key: str) -> bool:
        """Return whether the mapping of the source names a key of its own for `key`."""
        return key in self._mapping

    def has(self, key: str) -> bool:
        """Return whether the record itself has `key`."""
        return key in self._raw


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
        if not limits.mapping and is_trace(raw):
            into.skip("traces", "not_a_generation")
            return
        if not limits.mapping and is_plain_spans(raw):
            decode_plain_spans(raw, position, limits, into)
            return
        record = Record(raw, limits.mapping)
        if record.get("consent_for") is not None:
            _decode_consent(record, position, limits, into)
            return
        row = _trace(record, limits, into)
    except Rejected as error:
        into.reject("traces", position, error)
        return
    into.traces.append(row | {"position": position})
    told = (("feedback", FeedbackKind.RATING, held_rating(record.get("feedback"))),)
    for key, kind, value in (*told, ("correction", FeedbackKind.CORRECTION, record.get("correction"))):
        if value is not None:
            _decode_feedback(value, key, kind, row, position, into, limits)
    _decode_signals(record.get("signals"), row, f"{position}, signals", into)


def _decode_consent(record: Record, position: str, limits: Limits, into: Decoded) -> None:
    """Decode a record that only states consent. Everything but a clear consent is a refusal."""
    try:
        subject = record.get("consent_for")
        key = CONSENT_KEYS.get(subject) if isinstance(subject, str) else None
        if key is None:
            raise Rejected("bad_value", f"consent_for must be one of {', '.join(CONSENT_KEYS)}")
        if record.is_made_up(key) or record.is_made_up("timestamp"):
            raise Rejected("missing_id", f"a statement about consent needs a {key} and a timestamp of its own")
        identity = (person if subject in _PERSONS else name)(record.get(key))
        if identity is None:
            raise Rejected("missing_id", f"a statement about consent names no {key}")
        time = start_time(record.get("timestamp"), limits.now)
    except Rejected as error:
        into.reject("feedback", position, error)
        return
    given = consent(record.get("consent")) is True
    into.consents.append({"subject": subject, "id": identity, "given": given, "time": time, "position": position})


def _trace(record: Record, limits: Limits, into: Decoded) -> Row:
    identity = name(record.get("id"))
    if identity is None:
        raise Rejected("missing_id", "the record has no id")
    begin = start_time(record.get("timestamp"), limits.now)
    facts = record.told()
    said = statement(facts, None, begin, limits, default=())
    count_told(into, facts)
    agreed = said.given if said else None
    keep = agreed or (agreed is None and limits.assume_consent)
    failed, ended = record_has_failed(record.get), finish_of(name(record.get("finish_reason")))
    failed = failed or is_stopped(ended)
    if not failed and agreed is not False:
        _has_call(record, keep)
    content = _content(record, failed, limits) if keep else None
    failed = failed or has_stopped(content)
    origin = record.get("origin")
    origin = "traffic" if origin in (None, "") else origin
    if not isinstance(origin, str) or origin not in ORIGINS:
        raise Rejected("bad_origin", f"origin must be one of {', '.join(sorted(ORIGINS))}")
    latency = number(record.get("latency_ms"))
    return {
        "id": identity,
        "time": begin,
        "origin": origin,
        "user": facts.value("user"),
        "session": facts.value("session"),
        "response_id": name(record.get("response_id")),
        **content_columns(content, keep_answer=not failed),  # the text of a failed call is no answer of the model
        "model": name(record.get("model")),
        "model_version": name(record.get("model_version")),
        "status": "error" if failed else "ok",
        "finish_reason": finish_reason(ended, content),
        "latency_ms": latency if latency is not None and latency >= 0 else None,
        "input_tokens": token_count(record.get("input_tokens")),
        "output_tokens": token_count(record.get("output_tokens")),
        "region": name(record.get("region")) or name(facts.value("region")),
        "confidentiality": name(record.get("confidentiality")) or name(facts.value("confidentiality")),
        "consent": agreed is True,
        **statement_columns(said),
        "reference": answer_text(record.get("reference"), limits) if keep else None,
        "slice": slug(record.get("slice")) or slug(facts.value("slice")),
        "third_party": third_party(facts, None, limits, default=()),
    }


def _has_call(record: Record, keep: bool) -> None:
    """Raise Rejected for a record with later information about a call, and without the call. Without consent, a rating needs no call."""
    if record.get("messages") is None and record.get("response") is None:
        later = [key for key in (_LATER if keep else _LATER[:2]) if record.get(key) not in (None, "", [])]
        if later:
            detail = "but not the call; send the whole record again, with messages and response"
            raise Rejected("incomplete_record", f"the record has {' and '.join(later)}, {detail}")


def _content(record: Record, failed: bool, limits: Limits) -> Conversation | None:
    """Return the content of a record. A failed call may lack it."""
    try:
        request = request_of(record.get("messages"))
        reply = _reply(record.get("response"), failed)
        repeated = {"instructions": reply.instructions} if reply else None
        request = with_parameters(request, record.get("model_parameters"), record.get("optional_params"), repeated)
        if reply is None and not (failed or record.maps("response") or record.has("response")):
            request, reply = _ended(request, record.get("messages"))
        found = conversation(request, reply, tools_of(record.get("tools")))
        found = found or Conversation([], None)
        return checked(found, not (failed or has_stopped(found)), limits.placeholders)
    except Rejected as error:
        if failed and error.reason in ("empty_prompt", "empty_response"):
            return None
        raise


def _ended(request: Request | None, given: Any) -> tuple[Request | None, Reply | None]:
    """Return the messages of a conversation without its last one, and that one as the answer, if it is one of the model.

    `given` are the messages as the record has them. Two answers after one another are not taken apart.
    """
    listed = unwrapped_text(given)
    last = listed[-1] if isinstance(listed, list) and listed else None
    if request is None or len(request.messages) < 2 or not isinstance(last, dict) or last.get("prefix") is True:
        return request, None
    *asked, answer = request.messages
    if answer["role"] != "assistant" or asked[-1]["role"] == "assistant":
        return request, None
    return Request(asked, request.tools), openai_chat.reply([last])


def with_parameters(request: Request | None, *parameters: Any) -> Request | None:
    """Return a request with the system instructions that its parameters name, as LiteLLM logs those of the Responses API."""
    for given in parameters:
        for key in ("instructions", "system", "system_instruction"):
            if request is not None and request.messages and isinstance(given, dict) and isinstance(given.get(key), str | list):
                request = Request(with_instructions(request.messages, given[key]), request.tools)
    return request


def _reply(value: Any, failed: bool) -> Reply | None:
    if failed:
        return None
    if value is not None and not isinstance(value, str | dict | list):
        raise Rejected("wrong_type", f"a response must be text or a message, not {type(value).__name__}")
    return reply_of(value)


def _decode_feedback(stated: Any, key: str, kind: FeedbackKind, trace: Row, position: str, into: Decoded, limits: Limits) -> None:
    at = f"{position}, {key}"
    if kind == FeedbackKind.CORRECTION and trace["messages"] is None:
        into.skip("feedback", "no_consent")
        return
    try:
        value = rating(stated, limits.rating_scale) if kind == FeedbackKind.RATING else None
        text = None if kind == FeedbackKind.RATING else answer_text(stated, limits)
        if value is None and text is None:
            raise Rejected("bad_value", f"{key} has no text")
    except Rejected as error:
        into.reject("feedback", at, error)
        return
    into.feedback.append(_about(trace) | {"kind": kind.value, "value": value, "text": text, "signal": None, "position": at})


def _about(trace: Row) -> Row:
    return {"trace_id": trace["id"], "response_id": trace["response_id"], "rater": trace["user"], "time": trace["time"]}


def _decode_signals(value: Any, trace: Row, position: str, into: Decoded) -> None:
    """Decode the names of signals: one name, or a list of names. An unknown name is quarantined; the other names are kept."""
    for index, stated in enumerate(value if isinstance(value, list) else [] if value is None else [value], 1):
        if isinstance(stated, str) and stated in SENT_SIGNALS:
            row = {"kind": FeedbackKind.SIGNAL.value, "value": None, "text": None, "signal": stated}
            into.feedback.append(_about(trace) | row | {"position": f"{position} {index}"})
        else:
            known = ", ".join(SENT_SIGNALS)
            into.reject("feedback", f"{position} {index}", Rejected("bad_value", f"a signal must be one of {known}"))
