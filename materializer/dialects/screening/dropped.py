"""Counts of dropped attributes and events, and texts that are cut: an exporter with limits has left something out.

A count that could stand for lost content, or for a lost refusal, quarantines the call. What was dropped is unknown, so a dropped attribute
of a model call always could. Dropped events could not if the span has its content in attributes and no event carries content. Dropped
links never carry content.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.otlp_attributes import Attributes
from ratchet.materializer.dialects.values import number

_CONTENT_EVENTS = ("gen_ai.", "llm.", "ai.", "langfuse.")
_LIMITS = frozenset({1024, 2048, 4095, 4096, 8191, 8192, 16383, 16384, 32766, 32767, 32768, 65535, 65536})
_SHORT_LIMITS = frozenset({128, 255, 256, 500, 512, 1000})
"""Usual limits for the length of an attribute. Texts have a short length by chance, so that two of them must have it."""
_ALL_LIMITS = _LIMITS | _SHORT_LIMITS


def check_cut(attributes: Attributes) -> None:
    """Raise Rejected `dropped_content` if an attribute ends, within a word or a JSON value, exactly at a usual limit of exporters."""
    found = [(key, length) for key, length in attributes.lengths() if length in _ALL_LIMITS]
    if not found:
        return
    cut = [length for text, length in {(attributes.get(key), length) for key, length in found} if _is_cut(text)]
    for length in cut:
        if length in _LIMITS or cut.count(length) > 1:
            raise Rejected("dropped_content", f"a text is cut at {length} characters; raise the limit of the exporter for attributes")


def _is_cut(text: str) -> bool:
    """Return whether a text may be the beginning of a longer one. Signatures, keys and images have no words."""
    if text[0] in "{[":
        return text[-1] not in "}]"
    return text[-1].isalnum() and (" " in text or not text.isascii())


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
        "mlflow.spanOutputs",
    )
    return any(key.startswith((*starts, "langfuse.observation.output")) for key in keys)


def _count(holder: Mapping[str, Any], key: str) -> bool:
    return (number(holder.get(key)) or 0) > 0
