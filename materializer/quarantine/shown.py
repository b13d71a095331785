"""What is stored in clear of a quarantined record: texts under keys that are known, and of everything else only type and length.

A damaged or unknown key may hold the id of a user, which nobody can recognise there. So a value is in clear only if its key and all keys
above it are known. Pseudonyms stay, so that an erasure finds them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.people.told import as_object
from ratchet.materializer.dialects.values import dump, parse_json
from ratchet.runtime.secrets.pseudonyms import is_pseudonym, pseudonyms_in

PLAIN = frozenset(
    {"id", "traceId", "spanId", "parentSpanId", "response_id", "type", "consent", "consent_for", "consent_time", "timestamp"}
    | {"startTimeUnixNano", "endTimeUnixNano", "timeUnixNano", "observedTimeUnixNano", "startTime", "endTime"}
    | {"latency_ms", "input_tokens", "output_tokens", "intValue", "doubleValue"}
)
"""Keys whose values are stored unmasked in the lake too: identities, times and numbers. A card number in an id would break the identity."""
IDENTITY = re.compile(r"[0-9A-Za-z:._+/=-]{1,128}")

_ANY_VALUE = frozenset({"stringValue", "boolValue", "intValue", "doubleValue", "arrayValue", "kvlistValue", "values"})
"""Keys of OTLP's values, which are in clear where the key of their attribute is."""
_HOLDERS = frozenset({
    "resource", "resourceSpans", "scopeSpans", "spans", "scope", "resourceLogs", "scopeLogs", "logRecords", "attributes", "events",
    "body", "metadata", "trace", "observation", "langfuse", "langfuse_score", "gen_ai", "ai", "llm", "openinference", "traceloop", "span",
    "request", "requester_metadata", "spend_logs_metadata", "model_parameters", "modelParameters", "usage", "evaluation", "score",
    "client", "inference", "operation", "details", "prompts", "completions", "choices", "candidates", "tool_call", "tool_calls",
    "toolCalls", "function", "functions", "tools", "data", "info", "value",
})  # fmt: skip
"""Keys whose objects and lists are shown. Other values under them are not."""
_CLEAR = frozenset({
    "role", "content", "contents", "text", "parts", "message", "messages", "input", "output", "prompt", "completion", "question",
    "answer", "response", "instructions", "system", "system_instruction", "system_instructions", "reasoning", "thinking", "correction",
    "explanation", "reference", "signals", "input_messages", "output_messages", "model", "model_name", "finish_reason", "finish_reasons",
    "finishReason", "stop_reason", "status", "code", "level", "label", "kind", "call_type", "cache_hit", "feedback", "region", "slice",
    "origin", "operation_name", "eventName", "droppedAttributesCount", "droppedEventsCount", "prompt_tokens", "completion_tokens",
})  # fmt: skip
"""Keys whose texts are content or words of a list, also of their objects and lists."""
_NAMES = frozenset({"gen_ai.operation.name", "gen_ai.evaluation.name", "gen_ai.evaluation.score.value", "event.name", "llm.request.type"})
_NUMBER = re.compile(r"\d+")
_DAMAGED = re.compile(r"\s*(?:\{|\[\s*[\[{\"'])")
"""Begin of a JSON document that cannot be read."""
_WORD = re.compile(r"[^\s\"'\\{}\[\]:,]+")
_NAMED = PLAIN | _HOLDERS | _CLEAR | _ANY_VALUE | {"key", "user_id", "session_id", "name", "true", "false", "null"}


def shown(value: Any) -> Any:
    """Return a masked record, a JSON value, with type and length in place of what is not stored in clear."""
    return _shown(value, clear=False)


def shown_text(text: str) -> str:
    """Return the masked text of an unreadable record with lengths in place of all words but known keys.

    Quotation marks may be damaged, so that nobody can tell keys from values.
    """
    return _WORD.sub(lambda found: found[0] if found[0] in _NAMED else _length(found[0]), text)


def _length(word: str) -> str:
    return word if is_pseudonym(word) else f"[{' '.join([str(len(word)), *pseudonyms_in(word)])}]"


def _shown(value: Any, clear: bool) -> Any:
    if isinstance(value, dict):
        if isinstance(value.get("key"), str) and "value" in value:
            return {key: _attribute(value["key"], item) if key == "value" else item for key, item in _pair(value).items()}
        return {key: _item(key, item, clear) for key, item in value.items()}
    if isinstance(value, list):
        return [_shown(item, clear) for item in value]
    if isinstance(value, str) and (inner := _document(value)) is not None:
        return dump(_shown(inner, clear))
    if isinstance(value, str) and clear and _DAMAGED.match(value):  # damage may have joined it with another text
        return shown_text(value)
    return value if clear or value is None or isinstance(value, bool) or _is_pseudonym(value) else _measured(value)


def _pair(attribute: Mapping[str, Any]) -> dict[str, Any]:
    return {key: item if key in ("key", "value") else _measured(item) for key, item in attribute.items()}


def _attribute(key: str, value: Any) -> Any:
    """Return the value of an OTLP attribute."""
    return _item(key, value, clear=False)


def _item(key: str, value: Any, clear: bool) -> Any:
    """Return the value of a key. `clear` says whether the values around it are in clear."""
    if key in _ANY_VALUE:
        return _shown(value, clear)
    if key in PLAIN and not isinstance(value, dict | list):
        return value if not isinstance(value, str) or IDENTITY.fullmatch(value) else _measured(value)
    if key in _NAMES:
        return _shown(value, clear=True)
    parts = [part for part in key.split(".") if not _NUMBER.fullmatch(part)]
    if not parts or not all(part in _HOLDERS or part in _CLEAR or part in PLAIN for part in parts):
        return value if _is_pseudonym(value) else _only_pseudonyms(value)
    return _shown(value, clear=parts[-1] in _CLEAR or parts[-1] in PLAIN)


def _only_pseudonyms(value: Any) -> Any:
    """Return a value under an unknown key: pseudonyms, which an attribute or a list of people may hold, or its type and length."""
    if isinstance(value, list) and value and all(map(_is_pseudonym, value)):
        return value
    if isinstance(value, dict) and value.keys() <= _ANY_VALUE:
        return {key: item if _is_pseudonym(item) else _measured(item) for key, item in value.items()}
    return _measured(value)


def _is_pseudonym(value: Any) -> bool:
    return isinstance(value, str) and is_pseudonym(value)


def _document(text: str) -> Any:
    """Return the object or list that a text holds as JSON or as printed by Python; None for any other text."""
    if text.lstrip()[:1] == "[":
        try:
            return parse_json(text)
        except Rejected:
            return None
    return as_object(text) or None


def _measured(value: Any) -> Any:
    """Return type and length of a value in its place, and the pseudonyms inside of it."""
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, str | dict | list):
        return "[number]"
    kind = "text" if isinstance(value, str) else "object" if isinstance(value, dict) else "list"
    people = pseudonyms_in(value if isinstance(value, str) else dump(value))
    return f"[{' '.join([kind, 'of', str(len(value)), *people])}]"
