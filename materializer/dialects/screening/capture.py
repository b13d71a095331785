"""Spans of model calls whose content was never captured: capture is off, or log records have the content (OpenTelemetry's libraries).

Such a span is no fault. It is skipped (`content_not_captured`), and its metadata completes the trace of its log records, in any order of
arrival. A span with an attribute that may be content in an unknown form is quarantined instead, so that nothing is lost silently.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ratchet.materializer.dialects.otlp_attributes import Attributes
from ratchet.materializer.dialects.people.places import meaning

_METADATA = (
    *(
        "gen_ai.request.",
        "gen_ai.response.",
        "gen_ai.usage.",
        "gen_ai.operation.",
        "gen_ai.system",
        "gen_ai.provider.",
        "gen_ai.output.type",
    ),
    *("gen_ai.openai.", "gen_ai.conversation.", "gen_ai.agent.", "gen_ai.token.", "gen_ai.server.", "gen_ai.event.", "openai.", "azure."),
    *(
        "aws.",
        "server.",
        "client.",
        "network.",
        "net.",
        "http.",
        "url.",
        "peer.",
        "rpc.",
        "error.",
        "exception.",
        "code.",
        "thread.",
        "otel.",
    ),
    *("telemetry.", "service.", "deployment.", "host.", "process.", "k8s.", "container.", "cloud.", "metadata.", "llm.request.type"),
    *("llm.is_streaming", "llm.usage.", "llm.headers", "llm.token_count.", "llm.model_name", "llm.provider", "llm.system"),
)
_NEVER = (
    "gen_ai.system_instructions",
    "gen_ai.request.tools",
    "gen_ai.request.messages",
    "gen_ai.request.prompt",
    "gen_ai.response.content",
)
_LONG = 100
_WORDS = 2
"""A text of an unknown attribute with more words than this may be a question or an answer. Names and labels are shorter."""


def was_captured(attributes: Attributes, events: Iterable[str]) -> bool:
    """Return whether attributes of a span, or its events, may carry content. `events` are the names of its events."""
    if is_bare(attributes.get("gen_ai.input.messages")):
        return False
    if any(name != "exception" and name != "gen_ai.evaluation.result" for name in events):
        return True
    return any(not _describes(key) and _may_be_content(attributes.get(key)) for key in attributes)


def is_bare(messages: Any) -> bool:
    """Return whether the JSON text of messages has the parts without their content, as Pydantic AI writes them if capture is off."""
    if not isinstance(messages, str) or '"content"' in messages or '"parts"' not in messages:
        return False
    return '{"type":"text"}' in messages.replace(" ", "")


def _describes(key: str) -> bool:
    return (key.startswith(_METADATA) and not key.startswith(_NEVER)) or meaning(key) is not None


def _may_be_content(value: Any) -> bool:
    if isinstance(value, dict):
        return bool(value)
    if isinstance(value, list):
        return any(map(_may_be_content, value))
    return isinstance(value, str) and (len(value) > _LONG or value.lstrip()[:1] in ("{", "[") or len(value.split()) > _WORDS)
