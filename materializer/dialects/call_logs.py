"""Log records that carry the content of a model call: one `operation.details` event, or one event for each message (older conventions).

Each call becomes a span, which the OTLP dialect decodes. The events of a call are read only if they arrive in one request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ratchet.materializer.dialects.conversations.otel_genai import CHOICE, DETAILS, ROLES

_MESSAGES = frozenset({*ROLES, CHOICE})


def is_part_of_call(record: Any) -> bool:
    """Return whether a log record carries content of a model call."""
    return _event_of(record) in (DETAILS, *_MESSAGES)


def _event_of(record: Any) -> str | None:
    if not isinstance(record, dict):
        return None
    name = record.get("eventName")
    if isinstance(name, str) and name:
        return name
    attributes = record.get("attributes")
    for item in attributes if isinstance(attributes, list) else ():
        if isinstance(item, dict) and item.get("key") == "event.name" and isinstance(item.get("value"), dict):
            value = item["value"].get("stringValue")
            return value if isinstance(value, str) else None
    return None


def call_spans(records: Sequence[tuple[Any, Any, str]]) -> Iterator[tuple[dict[str, Any], Any, str, int]]:
    """Yield each call as (span, resource, position, number of its records). `records` are (record, resource, position)."""
    groups: dict[tuple[str, str], list[tuple[Any, Any, str]]] = {}
    for record, resource, position in records:
        if _event_of(record) == DETAILS:
            yield _details(record), resource, position, 1
        else:
            groups.setdefault((str(record.get("traceId")), str(record.get("spanId"))), []).append((record, resource, position))
    for group in groups.values():
        yield _messages([record for record, _, _ in group]), group[0][1], group[0][2], len(group)


def _details(record: dict[str, Any]) -> dict[str, Any]:
    attributes = record.get("attributes")
    dropped = {"droppedAttributesCount": record.get("droppedAttributesCount")}
    return _span(record, attributes if isinstance(attributes, list) else [], []) | dropped


def _messages(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the span of the events of one call. Without the event of the answer, it has no events and is rejected as incomplete."""
    events, shared = [], dict[str, Any]()
    for record in records:
        own = record["attributes"] if isinstance(record.get("attributes"), list) else []
        body = {"key": "body", "value": record.get("body")}
        dropped = record.get("droppedAttributesCount")
        events.append({"name": _event_of(record), "attributes": [*own, body], "droppedAttributesCount": dropped})
        for item in own:
            if isinstance(item, dict) and isinstance(item.get("key"), str):
                shared.setdefault(item["key"], item)
    kind = {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}
    attributes = [item for key, item in shared.items() if key != "gen_ai.operation.name"]
    return _span(records[0], [*attributes, kind], events if any(event["name"] == CHOICE for event in events) else [])


def _span(record: dict[str, Any], attributes: list[Any], events: list[Any]) -> dict[str, Any]:
    time = next((record[key] for key in ("timeUnixNano", "observedTimeUnixNano") if record.get(key) not in (None, 0, "0", "")), None)
    ids = {key: record.get(key) for key in ("traceId", "spanId")}
    return {**ids, "startTimeUnixNano": time, "attributes": attributes, "events": events}
