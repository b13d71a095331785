"""Reads what describes a call, in the attributes of all libraries: model, tokens and the id of the response."""

from __future__ import annotations

from typing import Any

from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.exchange import finish_of
from ratchet.materializer.dialects.conversations.mlflow import OUTPUTS
from ratchet.materializer.dialects.otlp_attributes import Attributes
from ratchet.materializer.dialects.values import name, parse_json, token_count

_MODEL = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name", "langfuse.observation.model.name")
_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
_USAGE = ("langfuse.observation.usage_details", "mlflow.chat.tokenUsage")

_FINISH = (
    *("gen_ai.response.finish_reasons", "gen_ai.response.finish_reason", "llm.finish_reason", "llm.response.finish_reason"),
    "ai.response.finishReason",
)
_NO_ID = "__fake_id__"
"""Text of the Agents SDK in place of an id."""


def model_of(attributes: Attributes) -> str | None:
    """Return the name of the model. MLflow writes each value as JSON text."""
    given = attributes.get(*_MODEL, "mlflow.llm.model")
    return name(_parsed(given) if isinstance(given, str) and given.startswith('"') else given)


def finish_attribute(attributes: Attributes) -> str | None:
    """Return why the model ended its answer, of several answers the first. The value is a list, its JSON text, or one reason."""
    value = attributes.get(*_FINISH)
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        try:
            value = parse_json(value)
        except Rejected:
            return None
    return finish_of(value[0] if isinstance(value, list) and value else value)


def tokens_of(attributes: Attributes) -> tuple[int | None, int | None]:
    """Return the numbers of tokens of prompt and answer. The SDKs of Langfuse and MLflow write the usage of the reply as one object."""
    found = token_count(attributes.get(*_INPUT)), token_count(attributes.get(*_OUTPUT))
    if found != (None, None) or not any(key in attributes for key in _USAGE):
        return found
    usage = _object(attributes.get(*_USAGE))
    asked, answered = ("input", "input_tokens", "prompt_tokens"), ("output", "output_tokens", "completion_tokens")
    return tuple(token_count(next((usage[key] for key in keys if key in usage), None)) for keys in (asked, answered))  # type: ignore[return-value]


def response_id_of(attributes: Attributes) -> str | None:
    """Return the id of the response, to which feedback can refer. OpenInference and MLflow have it in the body of the reply only."""
    given = attributes.get("gen_ai.response.id", "ai.response.id")
    if given is not None:
        return name(given)
    is_json = attributes.get("output.mime_type") == "application/json"
    body = _object(attributes.get("output.value") if is_json else attributes.get(OUTPUTS))
    message = _langchain(body)
    if message is not None:
        metadata = message.get("response_metadata")
        return name(metadata.get("id")) if isinstance(metadata, dict) else None
    is_reply = isinstance(body.get("choices"), list) or body.get("object") == "response" or body.get("type") == "message"
    given = body.get("id") if is_reply else None
    return None if given == _NO_ID else name(given)


def _langchain(body: dict[str, Any]) -> dict[str, Any] | None:
    found: Any = body.get("generations")
    for _ in range(2):
        found = found[0] if isinstance(found, list) and len(found) == 1 else None
    message = found.get("message") if isinstance(found, dict) else None
    kwargs = message.get("kwargs") if isinstance(message, dict) else None
    return kwargs if isinstance(kwargs, dict) else None


def _parsed(value: Any) -> Any:
    try:
        return parse_json(value) if isinstance(value, str) else value
    except Rejected:
        return None


def _object(value: Any) -> dict[str, Any]:
    found = _parsed(value)
    if isinstance(found, list) and len(found) == 1:  # the Agents SDK, streamed
        found = found[0]
    return found if isinstance(found, dict) else {}
