"""The one form of a conversation: OpenAI chat messages, and the tools that were available.

A message has a role (system, developer, user, assistant or tool) and `content`, which is text or a list of parts. A part is
{"type": "text", "text": …} or {"type": "image_url", "image_url": {"url": …}}. An assistant message may have `tool_calls`, a list of
{"id", "type": "function", "function": {"name", "arguments"}} whose arguments are a JSON object as text. A message with the role tool
answers the call with its `tool_call_id`. Users and tools may have a `name`.

Tables store a prompt as a JSON list of messages, and an answer as text (`stored_answer`, `answer_message`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ratchet.contracts.ids import canonical, content_text

Message: TypeAlias = dict[str, Any]

_STORED = ({"content", "role"}, {"content", "role", "tool_calls"})


@dataclass(frozen=True)
class Conversation:
    """One call of a model: the messages that it got, its answer, and the tools that it could call."""

    messages: list[Message]
    answer: Message | None
    """The assistant message that the model wrote; None if the record has none."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """Schemas: {"type": "function", "function": {"name", "description", "parameters"}}."""
    finish: str | None = None
    """Finish reason of the answer, `length` if it was cut."""


def stored_answer(message: Mapping[str, Any]) -> str:
    """Return the text by which tables store an assistant message: its content, or a canonical JSON message if it calls tools.

    Content that looks like such a JSON message is stored as JSON, too. So text can never be read as a tool call.
    """
    content, calls = text_of(message), message.get("tool_calls") or []
    if not calls and _stored_message(content) is None:
        return content
    return canonical({"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}).decode()


def answer_message(text: str) -> Message:
    """Return the assistant message that `stored_answer` has stored as `text`."""
    found = _stored_message(text)
    if found is None:
        return {"role": "assistant", "content": text}
    return {"role": "assistant", "content": found["content"], **({"tool_calls": found["tool_calls"]} if "tool_calls" in found else {})}


def _stored_message(text: str) -> Message | None:
    if not text.startswith('{"content":'):
        return None
    try:
        found = json.loads(text)
        valid = set(found) in _STORED and found["role"] == "assistant" and isinstance(found["content"], str)
        valid = valid and ("tool_calls" not in found or are_tool_calls(found["tool_calls"])) and canonical(found).decode() == text
    except (ValueError, RecursionError):
        return None
    return found if valid else None


def are_tool_calls(value: Any) -> bool:
    """Return whether `value` is a list of at least one tool call in the form of this module."""
    return isinstance(value, list) and bool(value) and all(_is_call(call) for call in value)


def _is_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(call.get("id"), str):
        return False
    return isinstance(function.get("name"), str) and bool(function["name"]) and isinstance(function.get("arguments"), str)


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message. A part that is not text is shown as JSON, so that two messages with other parts have other texts."""
    return content_text(message.get("content"))


def has_images(messages: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a message refers to an image."""
    parts = (part for message in messages if isinstance(message.get("content"), list) for part in message["content"])
    return any(isinstance(part, dict) and part.get("type") == "image_url" for part in parts)


def is_answer(message: Mapping[str, Any]) -> bool:
    """Return whether an assistant message says something: it has text, or it calls a tool."""
    return bool(message.get("tool_calls")) or bool(text_of(message).strip())


def arguments_of(call: Mapping[str, Any]) -> Any:
    """Return the arguments of a tool call as a JSON value; their text if it is not valid JSON."""
    arguments = call["function"]["arguments"]
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments


def without_call_ids(text: str) -> str:
    """Return a stored answer with ids by place. Servers draw ids at random, so equal answers have different ids."""
    message = answer_message(text)
    if "tool_calls" not in message:
        return text
    calls = [call | {"id": f"call_{place}"} for place, call in enumerate(message["tool_calls"])]
    return stored_answer(message | {"tool_calls": calls})


def written_answer(text: str) -> Message | None:
    """Return the tool-calling answer that a person wrote as a reference or correction; None if the text is no such answer.

    It is JSON: an assistant message with `tool_calls`, a list of calls, or one call. A call may be {"name", "arguments"}, and its arguments
    an object or its text.
    """
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    content = ""
    if isinstance(found, dict) and found.get("role", "assistant") == "assistant" and isinstance(found.get("tool_calls"), list):
        content = found["content"] if isinstance(found.get("content"), str) else ""
        found = found["tool_calls"]
    items = found if isinstance(found, list) else [found]
    calls = [_written_call(item, place) for place, item in enumerate(items)]
    if not calls or any(call is None for call in calls):
        return None
    return {"role": "assistant", "content": content, "tool_calls": calls}


def person_answer(text: str, tools: str | None) -> str:
    """Return a correction or reference as a stored answer. `tools` is the column of its prompt: without tools, JSON is only text."""
    written = written_answer(text) if tools else None
    return stored_answer(written or {"role": "assistant", "content": text})


def _written_call(item: Any, place: int) -> dict[str, Any] | None:
    inner = item.get("function", item) if isinstance(item, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str) or not inner["name"] or "arguments" not in inner:
        return None
    arguments = inner["arguments"]
    if isinstance(arguments, dict):
        text = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)
    elif isinstance(arguments, str):
        text = arguments or "{}"
    else:
        return None
    call = {"id": f"call_{place}", "type": "function", "function": {"name": inner["name"], "arguments": text}}
    return call if isinstance(arguments_of(call), dict) else None
