"""Counts of dropped attributes and events: an exporter with limits writes them when it has left something out.

A count that could stand for lost content, or for a lost refusal, quarantines the call. What was dropped is unknown, so a dropped attribute
of a model call always could. Dropped events could not if the span has its content in attributes and no event carries content. Dropped
links never carry content.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.values import number

_CONTENT_EVENTS = ("gen_ai.", "llm.", "ai.", "langfuse.")


def check_dropped(span: Mapping[str, Any], resource: Any) -> None:
    """Raise Rejected `dropped_content` if a part of a model call may have been dropped. `span` may be made of log records."""
    if _count(span, "droppedAttributesCount"):
        raise Rejected(
            "dropped_content", "the exporter has dropped attributes of the span; raise its limit (OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT)"
        )
    if isinstance(resource, Mapping) and _count(resource, "droppedAttributesCount"):
        raise Rejected("dropped_content", "the exporter has dropped attributes of the resource, which may refuse consent")
    events = span.get("events")
    named = [one for one in events if isinstance(one, Mapping) and _has_content(one)] if isinstance(events, list) else []
    if any(_count(one, "droppedAttributesCount") for one in named):
        raise Rejected("dropped_content", "the exporter has dropped attributes of an event with content")
    if _count(span, "droppedEventsCount") and (named or not _in_attributes(span)):
        raise Rejected("dropped_content", "the exporter has dropped events of the span; raise its limit (OTEL_SPAN_EVENT_COUNT_LIMIT)")


def _has_content(event: Mapping[str, Any]) -> bool:
    return isinstance(event.get("name"), str) and event["name"].startswith(_CONTENT_EVENTS) and event["name"] != "gen_ai.evaluation.result"


def _in_attributes(span: Mapping[str, Any]) -> bool:
    """Return whether attributes of a span carry its messages."""
    listed = span.get("attributes")
    keys = (
        [one["key"] for one in listed if isinstance(one, Mapping) and isinstance(one.get("key"), str)] if isinstance(listed, list) else []
    )
    starts = (
        "gen_ai.output",
        "gen_ai.completion",
        "ai.response",
        "ai.result",
        "llm.output",
        "llm.completion",
        "output.value",
        "gcp.vertex",
    )
    return any(key.startswith((*starts, "langfuse.observation.output")) for key in keys)


def _count(holder: Mapping[str, Any], key: str) -> bool:
    return (number(holder.get(key)) or 0) > 0
