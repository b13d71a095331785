"""MLflow Tracing: `mlflow.spanInputs` and `mlflow.spanOutputs` of a span, each as JSON text, and the pieces of a stream as its events."""

from __future__ import annotations

import re
from typing import Any

from ratchet.contracts.conversation import Conversation
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.exchange import Record, Reply, conversation
from ratchet.materializer.dialects.canonical.tools import unwrapped
from ratchet.materializer.dialects.conversations.bodies import reply_of, request_of, tools_beside
from ratchet.materializer.dialects.otlp_attributes import Attributes

KIND, INPUTS, OUTPUTS = "mlflow.spanType", "mlflow.spanInputs", "mlflow.spanOutputs"
_CALLS = frozenset({"CHAT_MODEL", "LLM"})
_NUMBERED = re.compile(r"mlflow\.chunk\.item\.([0-9]{1,9})")
"""Name of the event of a streamed piece."""


def is_call(attributes: Attributes) -> bool | None:
    """Return whether a span of MLflow is one call of a language model; None if the span is not one of MLflow."""
    kind = attributes.get(KIND)
    return kind.strip('"') in _CALLS if isinstance(kind, str) else None


def read(record: Record) -> Conversation | None:
    """Read the attributes of a span. The pieces of a stream have priority over the output, in which MLflow leaves out calls of tools."""
    attributes = record.attributes
    asked, answered = attributes.get(INPUTS), attributes.get(OUTPUTS)
    if asked is None and answered is None:
        return None
    return conversation(request_of(asked), _of_pieces(record) or reply_of(answered), tools_beside(record))


def _of_pieces(record: Record) -> Reply | None:
    """Return the reply of the pieces of a stream of the chat API; None if there are none, or if the exporter has dropped some."""
    pieces = _pieces(record)
    if not pieces or [number for number, _ in pieces] != list(range(len(pieces))):
        return None
    bodies = [body for _, body in pieces]
    if not all(isinstance(body, dict) and body.get("object") == "chat.completion.chunk" for body in bodies):
        return None
    return reply_of(bodies)


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
            found.append((int(number[1]), _parsed(attributes.get("mlflow.chunk.value"))))
    return sorted(found, key=lambda one: one[0])


def _parsed(value: Any) -> Any:
    try:
        return unwrapped(value)
    except Rejected:
        return None
