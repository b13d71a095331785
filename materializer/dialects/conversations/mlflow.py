"""MLflow Tracing: `mlflow.spanInputs` and `mlflow.spanOutputs` of a span, each as JSON text, and the pieces of a stream as its events."""

from __future__ import annotations

import re
from typing import Any

from ratchet.contracts.conversation import Conversation
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.exchange import Record, Reply, conversation
from ratchet.materializer.dialects.conversations.bodies import reply_of, request_of, tools_beside
from ratchet.materializer.dialects.otlp_attributes import Attributes
from ratchet.materializer.dialects.values import parse_json

KIND, INPUTS, OUTPUTS = "mlflow.spanType", "mlflow.spanInputs", "mlflow.spanOutputs"
_CALLS = frozenset({"CHAT_MODEL", "LLM"})
_OTHERS = frozenset(
    {
        *("AGENT", "CHAIN", "EMBEDDING", "EVALUATOR", "GUARDRAIL", "MEMORY", "PARSER", "RERANKER", "RETRIEVER", "TASK", "TOOL", "WORKFLOW"),
    }
)
"""Types of spans that are no call of a model. `UNKNOWN` is the type of all spans that do not state one."""
_NUMBERED = re.compile(r"mlflow\.chunk\.item\.([0-9]{1,9})")
"""Name of the event of a streamed piece."""


def is_call(attributes: Attributes) -> bool | None:
    """Return whether a span of MLflow is one call of a language model; None if its type does not say so, or if it has none."""
    kind = attributes.get(KIND)
    named = kind.strip('"') if isinstance(kind, str) else ""
    return named in _CALLS if named in _CALLS | _OTHERS else None


def read(record: Record) -> Conversation | None:
    """Read the attributes of a span. The pieces of a stream have priority over the output, in which MLflow leaves out calls of tools."""
    attributes = record.attributes
    asked, answered = _stated(attributes.get(INPUTS)), _stated(attributes.get(OUTPUTS))
    if asked is None and answered is None and not any(key in attributes for key in (INPUTS, OUTPUTS)):
        return None
    return conversation(request_of(asked), _of_pieces(record) or reply_of(answered), tools_beside(record))


def _stated(value: Any) -> Any:
    """Return an attribute that is the JSON text of a text as that text, and null as None. Other values are returned as they are."""
    text = value.strip() if isinstance(value, str) else ""
    return _parsed(text, value) if text[:1] == '"' or text == "null" else value


def _of_pieces(record: Record) -> Reply | None:
    """Return the reply of the pieces of a stream of the chat API; None if there are none, or if the exporter has dropped some."""
    pieces = _pieces(record)
    if not pieces or [number for number, _ in pieces] != list(range(len(pieces))):
        return None
    bodies = [body for _, body in pieces]
    is_chat = all(isinstance(body, dict) and body.get("object") == "chat.completion.chunk" for body in bodies)
    if not is_chat or stream_finish(record) is None:
        return None
    found = reply_of(bodies)
    return found if found is not None and found.message is not None else None


def stream_finish(record: Record) -> str | None:
    """Return why a stream of the chat API ended, as its pieces say; None if they do not say it."""
    for _, body in reversed(_pieces(record)):
        choices = body.get("choices") if isinstance(body, dict) else None
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and isinstance(choice.get("finish_reason"), str):
                return str(choice["finish_reason"])
    return None


def _pieces(record: Record) -> list[tuple[int, Any]]:
    """Return the pieces with their numbers, in their order."""
    found: list[tuple[int, Any]] = []
    for name, attributes in record.events:
        number = _NUMBERED.fullmatch(name)
        if number:
            found.append((int(number[1]), _parsed(attributes.get("mlflow.chunk.value"), None)))
    return sorted(found, key=lambda one: one[0])


def _parsed(value: Any, otherwise: Any) -> Any:
    """Return the value of a JSON text; `otherwise` if it is none."""
    try:
        return parse_json(value) if isinstance(value, str) else value
    except Rejected:
        return otherwise
