"""Reads spans that are not in OTLP: the rows of Phoenix's data frames, spans that the console exporter printed, and traces of MLflow.

A span is a record with a trace id, a span id, a start and attributes. The attributes are one object, flat or nested, or columns whose names
begin with `attributes.`. Each span becomes an OTLP span, which the OTLP dialect decodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.otlp import decode_request
from ratchet.materializer.dialects.otlp_attributes import Attributes
from ratchet.materializer.dialects.people.told import Told, told, told_in_record

_COLUMN = "attributes."
_DEPTH = 12
_STARTS = ("start_time", "startTime", "start_time_unix_nano", "startTimeUnixNano")
_ENDS = ("end_time", "endTime", "end_time_unix_nano", "endTimeUnixNano")
_INDEXED = "llm."
"""OpenInference numbers the items of its lists: `llm.input_messages.0.message.role`. A nested form has lists."""
_CONSENT = "metadata.consent"


def is_plain_spans(record: Any) -> bool:
    """Return whether a record is a span in one of these forms, or a trace of MLflow with its spans."""
    return isinstance(record, dict) and (_is_span(record) or bool(_spans_of_mlflow(record)))


def decode_plain_spans(record: dict[str, Any], position: str, limits: Limits, into: Decoded) -> None:
    """Decode the spans of a record for which `is_plain_spans` is true. A bad span does not affect the others."""
    spans = _spans_of_mlflow(record)
    around = [told_in_record(part) for part in _of_mlflow_trace(record)] if spans else []
    shared = {key: value for part in _of_mlflow_trace(record) for key, value in part.items()} if spans else {}
    spans = spans or [record]
    resource = record.get("resource")
    held = {"attributes": _attributes(resource.get("attributes"))} if isinstance(resource, dict) else None
    converted = []
    for number, span in enumerate(spans):
        try:
            converted.append(_converted(span, shared, around))
        except (Rejected, RecursionError) as error:
            reason = error if isinstance(error, Rejected) else Rejected("too_deep", "the attributes nest too deeply")
            into.reject("traces", f"{position}, attributes of span {number}", reason)
    if converted:
        decode_request({"resourceSpans": [{"resource": held, "scopeSpans": [{"spans": converted}]}]}, position, limits, into)


def _is_span(record: Mapping[str, Any]) -> bool:
    has_attributes = isinstance(record.get("attributes"), dict) or any(key.startswith(_COLUMN) for key in record)
    return has_attributes and bool(_id(record, "trace")) and bool(_id(record, "span")) and any(record.get(key) for key in _STARTS)


def _id(span: Mapping[str, Any], kind: str) -> Any:
    context = span.get("context")
    held = context if isinstance(context, dict) else {}
    found = (span.get(f"{kind}_id"), span.get(f"{kind}Id"), span.get(f"context.{kind}_id"), held.get(f"{kind}_id"))
    value = next((one for one in found if one), None)
    return value.removeprefix("0x") if isinstance(value, str) else value


def _converted(span: Any, shared: Mapping[str, Any], around: Sequence[Told]) -> dict[str, Any]:
    """Return the OTLP span of a span. `shared` are attributes of its trace, and `around` is what the parts of the trace say.

    The same key can be in several parts, and one value replaces the other. So each part is asked for a refusal by itself.
    """
    if not isinstance(span, dict) or not _is_span(span):
        raise Rejected("wrong_type", "a span needs a trace id, a span id, a start and attributes")
    inner = span.get("attributes")
    nested = list(_flat(inner if isinstance(inner, dict) else {}, "", _DEPTH))
    columns = list(_flat({k.removeprefix(_COLUMN): v for k, v in span.items() if k.startswith(_COLUMN)}, "", _DEPTH))
    flat = {**shared, **dict(nested), **dict(columns)}
    beside = told_in_record({key: value for key, value in span.items() if not key.startswith("attributes")}, ("events", "data", "context"))
    for fact, key in (("user", "user.id"), ("session", "session.id")):
        if (known := beside.value(fact)) is not None:  # type: ignore[arg-type]
            flat.setdefault(key, known)
    each = [told(Attributes.of_values({key: value})) for key, value in (*nested, *columns)]
    if any(one.refuses() for one in (beside, *around, *each)):
        flat = {key: value for key, value in flat.items() if key != _CONSENT} | {_CONSENT: False}
    kind = span.get("span_kind")
    if isinstance(kind, str) and "openinference.span.kind" not in flat and kind.upper() == "LLM":
        flat["openinference.span.kind"] = "LLM"
    return {
        "traceId": _id(span, "trace"),
        "spanId": _id(span, "span"),
        "startTimeUnixNano": next((span[key] for key in _STARTS if span.get(key)), None),
        "endTimeUnixNano": next((span[key] for key in _ENDS if span.get(key)), None),
        "status": {"code": _status(span)},
        "attributes": _attributes(flat),
        "events": [
            {"name": event.get("name"), "timeUnixNano": event.get("timestamp"), "attributes": _attributes(event.get("attributes"))}
            for event in (span["events"] if isinstance(span.get("events"), list) else ())
            if isinstance(event, dict)
        ],
    }


def _status(span: Mapping[str, Any]) -> int:
    """Return the status code of OTLP: 2 for an error, in all spellings of the forms."""
    status = span.get("status")
    held = status if isinstance(status, dict) else {}
    code = next((one for one in (span.get("status_code"), held.get("code"), held.get("status_code"), status) if one), None)
    return 2 if code == 2 or (isinstance(code, str) and code.upper().rpartition(".")[2].endswith("ERROR")) else 0


def _flat(value: Mapping[str, Any], path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the keys of nested objects joined by dots, and their values."""
    if depth == 0:
        raise Rejected("too_deep", "the attributes nest too deeply")
    for key, item in value.items():
        where = f"{path}.{key}" if path else str(key)
        if item is None:
            continue
        if isinstance(item, dict):
            yield from _flat(item, where, depth - 1)
        elif where.startswith(_INDEXED) and isinstance(item, list) and item and all(isinstance(one, dict) for one in item):
            for number, one in enumerate(item):
                yield from _flat(one, f"{where}.{number}", depth - 1)
        else:
            yield where, item


def _spans_of_mlflow(record: Mapping[str, Any]) -> list[Any]:
    data = record.get("data")
    spans = data.get("spans") if isinstance(data, dict) and isinstance(record.get("info"), dict) else None
    return spans if isinstance(spans, list) and spans and all(isinstance(span, dict) and _is_span(span) for span in spans) else []


def _of_mlflow_trace(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a trace of MLflow says about itself: its metadata and its tags, which are an object or a list of keys with values."""
    info = record.get("info")
    held = [info.get(key) for key in ("trace_metadata", "request_metadata", "tags")] if isinstance(info, dict) else []
    listed = [
        {one["key"]: one.get("value") for one in part if isinstance(one, dict) and isinstance(one.get("key"), str)}
        for part in held
        if isinstance(part, list)
    ]
    return [part for part in (*held, *listed) if isinstance(part, dict)]


def _attributes(values: Any) -> list[dict[str, Any]]:
    """Return values as attributes of OTLP."""
    return [{"key": str(key), "value": _any(value)} for key, value in values.items()] if isinstance(values, dict) else []


def _any(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_any(one) for one in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": _attributes(value)}}
    return {"stringValue": "" if value is None else str(value)}
