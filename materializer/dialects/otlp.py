"""Decodes OTLP requests into rows: generation spans become traces; `gen_ai.evaluation.result` events and log records become feedback.

A bad span, event or log record does not affect the others.

Source: OTLP 1.x (JSON and protobuf mapping) and the OpenTelemetry semantic conventions for generative AI.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ratchet.contracts.conversation import Conversation, stored_answer
from ratchet.contracts.data.decoding import Decoded, Kind, Limits, Row
from ratchet.contracts.data.records import PARTIAL, ConsentSubject, FeedbackKind, Signal
from ratchet.contracts.errors import Rejected
from ratchet.contracts.ports import Dialect
from ratchet.materializer.dialects.admission import DEFERRED, SIGNED
from ratchet.materializer.dialects.call_logs import call_spans, is_part_of_call
from ratchet.materializer.dialects.canonical.exchange import Event, Record, finish_reason, has_stopped, is_stopped
from ratchet.materializer.dialects.conversation import checked, is_generation, read_conversation
from ratchet.materializer.dialects.described import finish_attribute, model_of, response_id_of, tokens_of
from ratchet.materializer.dialects.otlp_attributes import Attributes
from ratchet.materializer.dialects.people.above import NOBODY, SILENT, Above, refused_above, told_by_resource
from ratchet.materializer.dialects.people.told import count_told, merged, statement, third_party, told
from ratchet.materializer.dialects.screening.capture import was_captured
from ratchet.materializer.dialects.screening.dropped import check_cut, check_dropped
from ratchet.materializer.dialects.screening.outcome import span_has_failed
from ratchet.materializer.dialects.screening.placeholders import check_redacted
from ratchet.materializer.dialects.values import (
    clean,
    consent,
    dialect_failed,
    dump,
    duration_ms,
    fits,
    name,
    rating,
    short_text,
    slug,
    start_time,
    statement_columns,
)
from ratchet.runtime.secrets.span_signature import SIGNATURE, signed_form

EVALUATION = "gen_ai.evaluation.result"
KINDS = {"user_feedback": FeedbackKind.RATING, "user_correction": FeedbackKind.CORRECTION, "reviewer_reference": FeedbackKind.REFERENCE}
"""Name of an evaluation -> kind of feedback. Other evaluations (of a judge, of a metric) are skipped."""
SIGNALS = {
    "user_regenerated": Signal.REGENERATED,
    "user_edited": Signal.EDITED,
    "user_copied": Signal.COPIED,
    "user_abandoned": Signal.ABANDONED,
    "user_thanked": Signal.THANKED,
    "user_asked_again": Signal.ASKED_AGAIN,
    "tool_error": Signal.TOOL_ERROR,
}
"""Name of an evaluation -> the signal that it states. One with the score 0 states that it did not happen, and is skipped."""
CONSENTS = {
    "trace_consent": ConsentSubject.TRACE,
    "session_consent": ConsentSubject.SESSION,
    "user_consent": ConsentSubject.USER,
    "trace_third_party_consent": ConsentSubject.TRACE_THIRD_PARTY,
    "user_third_party_consent": ConsentSubject.USER_THIRD_PARTY,
}
"""Name of an evaluation -> what its statement about consent refers to. The name decides, because exporters add ids of their own spans."""

ORIGINS = frozenset({"traffic", "probe", "mirror"})
_THUMBS = {"thumbs_up": 1.0, "thumbs_down": 0.0}
_HEX = re.compile(r"[0-9a-f]+")
HALF = "half"
"""Key of a decoded row whose span has no content."""
EVERY_CALL = ":*"
"""End of the id of a statement about all calls of an OpenTelemetry trace. No trace of the lake has such an id."""
REFUSAL = "refusal of the trace"
"""End of the position of a statement that a span, which is counted by itself, makes about its whole trace."""
OF_LOGS = "of_logs"
"""Key of a decoded row whose content comes from log records."""
PLACES_OF_CONSENT = ("metadata",)
"""Places whose consent counts if the loop file names none."""


class OtlpDialect(Dialect):
    """OTLP trace and log requests. Batches in the formats otlp-json and otlp-proto name this dialect."""

    name = "otlp"

    def decode(self, record: Any, position: str, limits: Limits, into: Decoded) -> None:
        """Decode one request, in its JSON form, into `into`."""
        decode_request(record, position, limits, into)


def decode_request(request: Any, position: str, limits: Limits, into: Decoded) -> None:
    """Decode one ExportTraceServiceRequest or ExportLogsServiceRequest, in its JSON form, into `into`."""
    if not isinstance(request, dict) or (request and not {"resourceSpans", "resourceLogs"} & request.keys()):
        into.reject("traces", position, Rejected("wrong_type", "the request is not an OTLP trace or log request"))
        return
    spans = list(_walk(request, "resourceSpans", "scopeSpans", "spans", "traces", position, into))
    above = refused_above(spans, is_generation)
    for trace, time in above.whole.items():
        _refuse_trace(trace, time, f"{position}, {REFUSAL}", limits, into)
    for index, (span, resource) in enumerate(spans):
        _decode_span(span, resource, f"{position}, span {index}", limits, into, above)
    calls = []
    for index, (record, resource) in enumerate(_walk(request, "resourceLogs", "scopeLogs", "logRecords", "feedback", position, into)):
        if is_part_of_call(record):
            calls.append((record, resource, f"{position}, record {index}"))
        else:
            _decode_log(record, f"{position}, record {index}", limits, into)
    for span, resource, place, parts in call_spans(calls):
        into.skipped["traces"].update({"part_of_call": parts - 1} if parts > 1 else {})
        _decode_span(span, resource, place, limits, into, of_logs=True)


def _refuse_trace(trace: str, time: Any, position: str, limits: Limits, into: Decoded) -> None:
    """Add the refusal of a whole trace as a statement. Its span, which is no model call, is counted by itself."""
    try:
        row = {"subject": ConsentSubject.TRACE.value, "id": f"{identifier(trace, 16)}{EVERY_CALL}", "given": False}
        into.consents.append(row | {"time": start_time(time, limits.now), "position": position})
    except Rejected as error:
        into.reject("feedback", position, error)


def _walk(
    request: dict[str, Any], outer: str, middle: str, inner: str, kind: Kind, position: str, into: Decoded
) -> Iterator[tuple[Any, Any]]:
    """Yield each span or log record with its resource, which may be any JSON value."""
    for index, holder in enumerate(_items(request, outer, kind, position, into)):
        place = f"{position}, {outer} {index}"
        for number, scope in enumerate(_items(holder, middle, kind, place, into)):
            for item in _items(scope, inner, kind, f"{place}, {middle} {number}", into):
                yield item, holder.get("resource")


def _items(holder: Any, key: str, kind: Kind, position: str, into: Decoded) -> list[Any]:
    if not isinstance(holder, dict):
        into.reject(kind, position, Rejected("wrong_type", f"the parent of {key} must be an object, not {type(holder).__name__}"))
        return []
    items = holder.get(key)
    if items is not None and not isinstance(items, list):
        into.reject(kind, position, Rejected("wrong_type", f"{key} must be a list, not {type(items).__name__}"))
        return []
    return items or []


def _decode_span(
    span: Any, resource: Any, position: str, limits: Limits, into: Decoded, above: Above = NOBODY, of_logs: bool = False
) -> None:
    try:
        if not isinstance(span, dict):
            raise Rejected("wrong_type", f"a span must be an object, not {type(span).__name__}")
        _decode_evaluations(span, position, limits, into)
        row = _trace(span, resource, limits, into, above, of_logs)
    except Rejected as error:
        into.reject("traces", position, error)
        return
    except Exception as error:
        into.reject("traces", position, dialect_failed("otlp", error))
        return
    if row is None:
        into.skip("traces", "not_a_generation")
    elif row.pop(HALF):
        into.skip("traces", "content_not_captured")
        into.halves.append(row | {"position": position})
    else:
        into.traces.append(row | {"position": position})


def _trace(span: dict[str, Any], resource: Any, limits: Limits, into: Decoded, above: Above, of_logs: bool) -> Row | None:
    attributes, said_by_span = above.read.get(id(span), (None, None))
    attributes = Attributes(span.get("attributes")) if attributes is None else attributes
    if not is_generation(attributes):
        return None
    begin = start_time(span.get("startTimeUnixNano"), limits.now)
    own, shared = above.added_to(told(attributes) if said_by_span is None else said_by_span, span), told_by_resource(resource)
    # The router's signature does not cover the resource, so a resource cannot give consent for a signed span.
    said = statement(own, shared, begin, limits, PLACES_OF_CONSENT, signed=SIGNATURE in attributes)
    facts = own if shared is SILENT else merged(own, shared)
    if not of_logs:  # the call is counted with its span, which names its people
        count_told(into, facts)
    agreed = said.given if said else None
    events, ended = _events(span), finish_attribute(attributes)
    http_status, is_raised = attributes.get("http.response.status_code", "http.status_code"), any(one == "exception" for one, _ in events)
    failed = span_has_failed(span.get("status"), attributes.get("error.type"), http_status, is_raised)
    keep = agreed or (agreed is None and limits.assume_consent)
    partial = attributes.get("ratchet.partial") is True
    refused = (attributes.get("ratchet.refused") is True or partial) and not failed
    readable = keep and attributes.get("ratchet.content_omitted") is None  # the router sets it if the content was too large for a trace
    if readable and not failed:
        check_dropped(span, resource)
        check_cut(attributes)
    content, is_half = None, False
    if readable:
        try:
            content = content_of_call(Record(attributes, events), failed or refused or is_stopped(ended), limits.placeholders)
        except Rejected as error:
            is_half = error.reason == "no_content" and not of_logs and not was_captured(attributes, [name for name, _ in events])
            if not is_half:
                raise
    asked, answered = tokens_of(attributes)
    return {
        "id": f"{identifier(span.get('traceId'), 16)}:{identifier(span.get('spanId'), 8)}",
        "time": begin,
        "origin": _origin(attributes.get("ratchet.origin")),
        "user": facts.value("user"),
        "session": facts.value("session"),
        "response_id": response_id_of(attributes),
        **content_columns(content, keep_answer=not partial),  # a part of an answer is no example of the model's answers
        "model": model_of(attributes),
        "model_version": name(attributes.get("ratchet.model_version")),
        "status": "error" if failed else "refused" if refused else "error" if is_stopped(ended) or has_stopped(content) else "ok",
        "finish_reason": PARTIAL if partial else finish_reason(ended, content),
        "latency_ms": duration_ms(begin, span.get("endTimeUnixNano")),
        "input_tokens": asked,
        "output_tokens": answered,
        "region": name(facts.value("region")),
        "confidentiality": name(facts.value("confidentiality")),
        "consent": agreed is True,
        **statement_columns(said),
        "reference": answer_text(own.value("reference"), limits) if keep else None,
        "slice": slug(facts.value("slice")),
        "third_party": third_party(own, shared, limits, PLACES_OF_CONSENT, signed=SIGNATURE in attributes),
        **_signed(span, attributes, failed),
        HALF: is_half,
        OF_LOGS: of_logs,
        DEFERRED: _deferred(attributes, events, limits.placeholders) if of_logs and agreed is None and not keep and not failed else None,
    }


def _signed(span: dict[str, Any], attributes: Attributes, failed: bool) -> Row:
    """Return what is needed to verify the router's signature; nothing for a span without one.

    The router writes no events. A signature does not cover them, so a span with events counts as not signed.
    """
    signature = attributes.get(SIGNATURE)
    if not isinstance(signature, str) or span.get("events"):
        return {}
    ids = identifier(span.get("traceId"), 16), identifier(span.get("spanId"), 8)
    try:
        times = int(span.get("startTimeUnixNano") or 0), int(span.get("endTimeUnixNano") or 0)
        return {SIGNED: (signed_form(*ids, *times, failed, attributes.plain()), signature)}
    except (TypeError, ValueError):
        return {}


def _deferred(attributes: Attributes, events: list[Event], placeholders: Sequence[str]) -> Row | None:
    """Return the content of log records that do not mention consent. Ingest stores it if the span of its batch consents, or drops it."""
    try:
        return content_columns(content_of_call(Record(attributes, events), False, placeholders))
    except Rejected:
        return None


def content_columns(content: Conversation | None, keep_answer: bool = True) -> Row:
    """Return the columns of a trace with its content; null without content."""
    if content is None:
        return {"messages": None, "answer": None, "tools": None}
    return {
        "messages": dump(content.messages) if content.messages else None,
        "answer": stored_answer(content.answer) if content.answer and keep_answer else None,
        "tools": dump(content.tools) if content.tools else None,
    }


def content_of_call(record: Record, failed: bool, placeholders: Sequence[str] = ()) -> Conversation | None:
    """Return the whole content of a call. A failed call may lack it. Raises Rejected if another call lacks it, or a part of it."""
    try:
        found = read_conversation(record)
        return checked(found, not (failed or has_stopped(found)), placeholders)
    except Rejected as error:
        if failed and error.reason != "too_large":
            return None
        raise


def answer_text(value: Any, limits: Limits) -> str | None:
    """Return a right answer as text; None if there is none. An object, a list, true and false become their JSON.

    Raises Rejected `redacted_content` or `too_large`.
    """
    found = short_text(dump(value) if isinstance(value, bool | dict | list) else value)
    check_redacted([found], limits.placeholders)
    return found


def _origin(value: Any) -> str:
    if value is None:
        return "traffic"
    if not isinstance(value, str) or value not in ORIGINS:
        raise Rejected("bad_origin", f"ratchet.origin must be one of {', '.join(sorted(ORIGINS))}")
    return value


def _events(span: dict[str, Any]) -> list[Event]:
    events = span.get("events")
    if not isinstance(events, list):
        return []
    return [
        (event["name"], Attributes(event.get("attributes")))
        for event in events
        if isinstance(event, dict) and isinstance(event.get("name"), str)
    ]


def _decode_evaluations(span: dict[str, Any], position: str, limits: Limits, into: Decoded) -> None:
    events = span.get("events")
    for index, event in enumerate(events if isinstance(events, list) else ()):
        if isinstance(event, dict) and event.get("name") == EVALUATION:
            ids = span.get("traceId"), span.get("spanId")
            times = event.get("timeUnixNano"), span.get("endTimeUnixNano"), span.get("startTimeUnixNano")
            _decode_evaluation(event, ids, times, f"{position}, event {index}", limits, into)


def _decode_log(record: Any, position: str, limits: Limits, into: Decoded) -> None:
    if not isinstance(record, dict):
        into.reject("feedback", position, Rejected("wrong_type", f"a log record must be an object, not {type(record).__name__}"))
        return
    ids = record.get("traceId"), record.get("spanId")
    times = record.get("timeUnixNano"), record.get("observedTimeUnixNano")
    _decode_evaluation(record, ids, times, position, limits, into)


def _decode_evaluation(
    event: dict[str, Any], ids: tuple[Any, Any], times: tuple[Any, ...], position: str, limits: Limits, into: Decoded
) -> None:
    try:
        attributes = Attributes(event.get("attributes"))
        if event.get("name", event.get("eventName")) != EVALUATION and attributes.get("event.name") != EVALUATION:
            into.skip("feedback", "not_feedback")
        elif (subjects := CONSENTS.get(name(attributes.get("gen_ai.evaluation.name")) or "")) is not None:
            into.consents.append(_stated_consent(attributes, subjects, ids, times, limits) | {"position": position})
        elif (stated := name(attributes.get("gen_ai.evaluation.name"))) not in KINDS and stated not in SIGNALS:
            into.skip("feedback", "other_evaluation")
        elif stated in SIGNALS and attributes.get("gen_ai.evaluation.score.value") in (0, "0", "false"):
            into.skip("feedback", "absent_signal")
        else:
            into.feedback.append(_feedback(attributes, ids, times, limits) | {"position": position})
    except Rejected as error:
        into.reject("feedback", position, error)
    except Exception as error:
        into.reject("feedback", position, dialect_failed("otlp", error))


def _feedback(attributes: Attributes, ids: tuple[Any, Any], times: tuple[Any, ...], limits: Limits) -> Row:
    stated = name(attributes.get("gen_ai.evaluation.name")) or ""
    kind, signal = KINDS.get(stated, FeedbackKind.SIGNAL), SIGNALS.get(stated)
    response = name(attributes.get("gen_ai.response.id"))
    named = bool(ids[0]) and bool(ids[1])
    if not named and response is None:
        raise Rejected("missing_id", "feedback names no model call: give the trace id and span id of the call, or gen_ai.response.id")
    value = text = None
    if kind == FeedbackKind.RATING:
        score = attributes.get("gen_ai.evaluation.score.value")
        value = rating(_THUMBS.get(str(attributes.get("gen_ai.evaluation.score.label"))) if score is None else score, limits.rating_scale)
    elif signal is None:
        text = _explanation(attributes.get("gen_ai.evaluation.explanation"), limits)
    return {
        "trace_id": f"{identifier(ids[0], 16)}:{identifier(ids[1], 8)}" if named else None,
        "response_id": response,
        "rater": told(attributes).value("user"),
        "kind": kind.value,
        "time": _evaluation_time(times, limits),
        "value": value,
        "text": text,
        "signal": signal.value if signal else None,
    }


def _stated_consent(attributes: Attributes, subject: ConsentSubject, ids: tuple[Any, Any], times: tuple[Any, ...], limits: Limits) -> Row:
    """Return a row of `Decoded.consents`. Everything but a clear consent is a refusal."""
    identity: str | None
    if subject in (ConsentSubject.USER, ConsentSubject.USER_THIRD_PARTY):
        identity = told(attributes).value("user")
    elif subject is ConsentSubject.SESSION:
        identity = told(attributes).value("session")
    elif ids[0] and ids[1]:
        identity = f"{identifier(ids[0], 16)}:{identifier(ids[1], 8)}"
    elif subject is ConsentSubject.TRACE_THIRD_PARTY:
        identity = None
    else:
        subject, identity = ConsentSubject.RESPONSE, name(attributes.get("gen_ai.response.id"))
    if identity is None:
        raise Rejected("missing_id", f"a statement about consent names no {subject.value}")
    label, score = attributes.get("gen_ai.evaluation.score.label"), attributes.get("gen_ai.evaluation.score.value")
    given = label == "given" if label is not None else consent(score) is True
    return {"subject": subject.value, "id": identity, "given": given, "time": _evaluation_time(times, limits)}


def _evaluation_time(times: tuple[Any, ...], limits: Limits) -> int:
    return start_time(next((time for time in times if time not in (None, 0, "0", "")), None), limits.now)


def _explanation(value: Any, limits: Limits) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Rejected("bad_value", "a correction or reference needs its text in gen_ai.evaluation.explanation")
    fits(value)
    check_redacted([value], limits.placeholders)
    return clean(value)


def identifier(value: Any, size: int) -> str:
    """Return a trace id (`size` 16, in bytes) or a span id (`size` 8) as lower-case hex.

    `value` is hex, or base64 as generic protobuf JSON writes it. Raises Rejected: `missing_id` if it is missing or empty, `bad_id` if
    it is invalid or all zeros.
    """
    if value in (None, ""):
        raise Rejected("missing_id", "the trace id or span id is missing")
    if not isinstance(value, str):
        raise Rejected("bad_id", f"an id must be a string, not {type(value).__name__}")
    found = value.strip().lower()
    if len(found) != 2 * size or not _HEX.fullmatch(found):
        found = _from_base64(value, size)
    if not found.strip("0"):
        raise Rejected("bad_id", "an id must not be all zeros")
    return found


def _from_base64(value: str, size: int) -> str:
    try:
        raw = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != size:
        raise Rejected("bad_id", f"an id must have {size} bytes")
    return raw.hex()
