"""Converts the chat message formats that applications log to one format: a list of {role, content} with text content.

In prompts, parts that are not text (tool calls, tool results, image references) are kept as compact JSON. Answers keep only their
text. Reasoning parts are removed from both.
"""

from __future__ import annotations

from typing import Any

from contracts.errors import Rejected
from materializer.dialects.values import clean, dump, parse_json

_THINKING = ("reasoning", "thinking", "redacted_thinking")


def structured(value: Any) -> Any:
    """Return a list or object, parsed if `value` is a JSON string. None for null, an empty string or an empty object.

    Raises Rejected: `wrong_type` for a scalar, or a reason of `fields.parse` for a string that is not valid JSON.
    """
    if isinstance(value, str):
        value = parse_json(value) if value.strip() else None
    if value is None or value == {}:
        return None
    if not isinstance(value, list | dict):
        raise Rejected("wrong_type", f"messages must be a list or an object, not {type(value).__name__}")
    return value


def prompt_of(value: Any) -> list[dict[str, str]]:
    """Return the messages of a prompt; an empty list if there are none."""
    listed = structured(value)
    if listed is None:
        return []
    return [_message(item) for item in (listed if isinstance(listed, list) else [listed])]


def system_of(value: Any) -> list[dict[str, str]]:
    """Return system instructions (a text or a list of parts) as one message; an empty list if there are none."""
    plain = isinstance(value, str) and not value.lstrip().startswith(("[", "{"))
    text = clean(value) if plain else _joined(structured(value) or [])
    return [{"role": "system", "content": text}] if text else []


def answer_of(value: Any) -> tuple[str | None, str | None]:
    """Return (text, finish reason) of the first output message. The text is None if the message has none."""
    listed = structured(value)
    first = listed[0] if isinstance(listed, list) and listed else listed
    if not first:
        return None, None
    if not isinstance(first, dict):
        raise Rejected("wrong_type", f"an output message must be an object, not {type(first).__name__}")
    inner = first["message"] if isinstance(first.get("message"), dict) else first
    finish = first.get("finish_reason")
    return _text(_parts(inner)) or None, finish if isinstance(finish, str) else None


def _message(item: Any) -> dict[str, str]:
    if not isinstance(item, dict):
        raise Rejected("wrong_type", f"a message must be an object, not {type(item).__name__}")
    role = item.get("role", "user")
    if not isinstance(role, str):
        raise Rejected("wrong_type", f"a role must be a string, not {type(role).__name__}")
    content = _joined(_parts(item))
    if item.get("tool_calls"):
        content += dump(item["tool_calls"])
    return {"role": clean(role), "content": content}


def _parts(item: dict[str, Any]) -> Any:
    parts = item["parts"] if item.get("parts") is not None else item.get("content")
    if parts is not None and not isinstance(parts, str | list | dict):
        raise Rejected("wrong_type", f"message content must be a string, a list or an object, not {type(parts).__name__}")
    return parts


def _listed(parts: Any) -> list[Any]:
    return parts if isinstance(parts, list) else [] if parts is None else [parts]


def _text(parts: Any) -> str:
    return "\n".join(text for part in _listed(parts) if (text := _part_text(part)) is not None)


def _joined(parts: Any) -> str:
    shown = (dump(part) if (text := _part_text(part)) is None else text for part in _listed(parts) if not _is_thinking(part))
    return "\n".join(shown)


def _is_thinking(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in _THINKING


def _part_text(part: Any) -> str | None:
    """Return the text of a text part; None for any other part."""
    if isinstance(part, str):
        return clean(part)
    if not isinstance(part, dict) or part.get("type", "text") not in ("text", "input_text", "output_text"):
        return None
    text = part["content"] if isinstance(part.get("content"), str) else part.get("text")
    return clean(text) if isinstance(text, str) else None
