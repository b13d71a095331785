"""Messages of a plain record: texts with a role, calls of tools in the form of OpenAI, and their results."""

from __future__ import annotations

from typing import Any

import orjson

from ratchet.contracts.conversation import Message
from ratchet.materializer.dialects.canonical.turns import paired
from ratchet.materializer.dialects.values import MAX_NAME_BYTES

_ROLES = frozenset({"system", "developer", "user", "assistant"})


def plain_messages(value: Any) -> tuple[list[Message], list[str], list[Any]] | None:
    """Return messages in the canonical form, their texts with the arguments of calls, and the calls; None if they have more than that."""
    if value.__class__ is not list:
        return None
    made, texts, calls, has_text, has_results = list[Message](), list[str](), list[Any](), False, False
    for item in value:
        if item.__class__ is not dict:
            return None
        content, role = item.get("content"), item.get("role")
        if role.__class__ is not str:
            return None
        if len(item) == 2 and role in _ROLES:
            if content.__class__ is not str or "\x00" in content:
                return None
            is_blank = not content or content.isspace()
            if role == "assistant" and (is_blank or "think" in content or "<reasoning>" in content):
                return None
            made.append({"role": role, "content": content})
        else:
            message = _with_calls(item, content) if role == "assistant" else _result(item, content) if role == "tool" else None
            if message is None:
                return None
            content = message["content"]
            is_blank = not content or content.isspace()
            if role == "tool":
                has_results = True
            else:
                calls.append(message["tool_calls"])
                texts += [call["function"]["arguments"] for call in message["tool_calls"]]
            made.append(message)
        has_text = has_text or not is_blank
        texts.append(content)
    if not has_text:
        return None
    return (paired(made) if calls or has_results else made), texts, calls


def _with_calls(item: dict[str, Any], content: Any) -> Message | None:
    """Return a message of the assistant with calls of tools in the form of OpenAI; None for another form."""
    listed = item.get("tool_calls")
    if listed.__class__ is not list or not listed or item.keys() != _KEYS_WITH_CALLS:
        return None
    if content is not None and (content.__class__ is not str or "\x00" in content or "think" in content or "<reasoning>" in content):
        return None
    calls = [_call(one) for one in listed]
    return None if any(one is None for one in calls) else {"role": "assistant", "content": content or "", "tool_calls": calls}


_KEYS_WITH_CALLS = frozenset({"role", "content", "tool_calls"})
_KEYS_OF_RESULT = frozenset({"role", "content", "tool_call_id"})
_KEYS_OF_CALL = frozenset({"id", "type", "function"})
_KEYS_OF_FUNCTION = frozenset({"name", "arguments"})


def _call(one: Any) -> dict[str, Any] | None:
    if one.__class__ is not dict or one.keys() != _KEYS_OF_CALL or one["type"] != "function":
        return None
    function, identity = one["function"], one["id"]
    if function.__class__ is not dict or function.keys() != _KEYS_OF_FUNCTION or not _is_short(identity):
        return None
    named, arguments = function["name"], function["arguments"]
    if not _is_short(named) or named.isspace() or arguments.__class__ is not str or arguments[:1] != "{":
        return None
    try:
        orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return None
    return {"id": identity, "type": "function", "function": {"name": named, "arguments": arguments}}


def _is_short(value: Any) -> bool:
    return value.__class__ is str and 0 < len(value) * 4 <= MAX_NAME_BYTES and "\x00" not in value


def _result(item: dict[str, Any], content: Any) -> Message | None:
    """Return the result of a tool as text; None for another form."""
    if item.keys() != _KEYS_OF_RESULT or content.__class__ is not str or "\x00" in content or not _is_short(item["tool_call_id"]):
        return None
    return {"role": "tool", "content": content, "tool_call_id": item["tool_call_id"]}
