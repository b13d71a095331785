"""Reads lists of messages in the forms of all dialects: OpenAI chat, Responses items, Anthropic, Gemini, LangChain, OTel, AI SDK.

One message of a record can become several: the results of tools are messages of their own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ratchet.contracts.conversation import Message
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.parts import Call, Piece, Result, content_of, pieces_of, result_of, result_text, tool_message
from ratchet.materializer.dialects.canonical.tools import call_of, named, schema_of, unwrapped
from ratchet.materializer.dialects.values import clean

_ROLES = {
    **dict.fromkeys(("system", "SystemMessage", "SystemMessageChunk"), "system"),
    "developer": "developer",
    **dict.fromkeys(("user", "human", "HumanMessage", "HumanMessageChunk"), "user"),
    **dict.fromkeys(("assistant", "ai", "model", "gpt", "AIMessage", "AIMessageChunk"), "assistant"),
    **dict.fromkeys(("tool", "function", "ToolMessage", "ToolMessageChunk", "FunctionMessage"), "tool"),
}
_ITEMS = ("function_call", "function_call_output", "reasoning")
"""Types of items of the Responses API that have no role."""
_CONTENT_KEYS = (
    *("images", "image", "image_url", "audio", "video", "videos", "files", "file", "attachments", "experimental_attachments", "documents"),
    *("media", "input_audio", "functionCall", "toolInvocations", "tool_results", "toolResults", "invalid_tool_calls", "tool_call"),
)
"""Keys of a message with content that the canonical form cannot hold here. The record is rejected if one of them has a value."""


_READ_KEYS = frozenset(
    (
        "role",
        "content",
        "parts",
        "message",
        "tool_calls",
        "toolCalls",
        "function_call",
        "additional_kwargs",
        "refusal",
        "name",
        "data",
        "id",
    )
)
_ABOUT = re.compile(
    r"metadata|usage|kwargs|details?$|options?$|config|logprob|annotation|citation|cache|metric|reference|provider|extra|signature|reasoning"
    r"|thinking|token|cost|timing|context|^gen_ai\.|^tags?$|grounding|safety|^parsed$|^tool_call_chunks$|^artifact$"
)
"""Keys of a message that only describe it."""


@dataclass
class Turns:
    """Messages, and the schemas of tools that a record lists among them."""

    messages: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)


def read_turns(value: Any, separator: str = "\n") -> Turns:
    """Return the messages of a list. Texts of an assistant message are joined by `separator`.

    Raises Rejected for an unknown role or part, a message without content, or the result of a tool that no message calls.
    """
    if not isinstance(value, list):
        raise Rejected("wrong_type", f"messages must be a list, not {type(value).__name__}")
    if len(value) == 1 and isinstance(value[0], list):  # LangChain logs a batch of one list
        value = value[0]
    turns = Turns()
    for item in value:
        _add(unwrapped(item), turns, separator)
    turns.messages = paired(turns.messages)
    return turns


def _add(item: Any, turns: Turns, separator: str) -> None:
    item = opened(item)
    if _is_tool_schema(item):
        turns.tools.append(schema_of(item["content"]))
        return
    messages = turns.messages
    called = item.get("role")
    if isinstance(called, str) and called not in _ROLES and called.lower() not in _ROLES and _is_called(called, messages):
        item = {**item, "role": "tool", "name": called}  # LangGraph's handlers write the name of the tool
    for message in messages_of(item, separator):
        last = messages[-1] if messages else None
        if item.get("type") == "function_call" and last is not None and last["role"] == "assistant":
            # Items of the Responses API that follow each other are one answer: its text, then its calls.
            last["tool_calls"] = [*last.get("tool_calls", []), *message["tool_calls"]]
        else:
            messages.append(message)


def _is_called(name: str, messages: Sequence[Message]) -> bool:
    return any(call["function"]["name"] == name for message in messages for call in message.get("tool_calls") or ())


def _is_tool_schema(item: dict[str, Any]) -> bool:
    """Langfuse's LangChain handler appends each tool as a message with the role tool."""
    content = item.get("content")
    return item.get("role") == "tool" and isinstance(content, dict) and content.get("type") == "function" and "function" in content


def opened(item: Any) -> dict[str, Any]:
    """Return the message inside of the wrappers that libraries put around it: constructor dumps, `data`, `message`."""
    for _ in range(4):
        if not isinstance(item, dict):
            raise Rejected("wrong_type", f"a message must be an object, not {type(item).__name__}")
        if item.get("type") == "constructor" and isinstance(item.get("kwargs"), dict):
            name = item["id"][-1] if isinstance(item.get("id"), list) and item["id"] else None
            item = {**item["kwargs"], "type": name}
        elif isinstance(item.get("data"), dict) and "content" not in item and "role" not in item:
            item = {"type": item.get("type"), **item["data"]}
        elif isinstance(item.get("message"), dict | str) and "role" not in item and "content" not in item:
            inner = unwrapped(item["message"])
            if not isinstance(inner, dict):
                raise Rejected("unknown_wrapper", "a message has no role and no content")
            item = inner
        elif item.keys() >= {"from", "value"} and "role" not in item and "content" not in item:  # ShareGPT
            item = {key: value for key, value in item.items() if key not in ("from", "value")} | {
                "role": item["from"],
                "content": item["value"],
            }
        else:
            return item
    raise Rejected("unknown_wrapper", "a message has too many wrappers")


def role_of(item: dict[str, Any]) -> str:
    """Return the canonical role. Raises Rejected `unknown_role`; a missing role is unknown, too."""
    given = item.get("role")
    if given is None and item.get("type") != "message":
        given = item.get("type")
    role = _ROLES.get(given) or _ROLES.get(given.lower()) if isinstance(given, str) else None
    if role is None:
        raise Rejected("unknown_role", f"the role {named(given)} is unknown" if given is not None else "a message has no role")
    return role


def messages_of(item: dict[str, Any], separator: str = "\n", *, answers: bool = False) -> list[Message]:
    """Return one message of a record as canonical messages. With `answers`, a message without a role is the assistant's."""
    if item.get("type") in _ITEMS and item.get("role") is None:
        return _item(item)
    for key in _CONTENT_KEYS:
        if item.get(key) not in (None, "", [], {}):
            raise Rejected("unknown_part", f"a message has the key {key!r}, whose content cannot be kept")
    for key, value in item.items():
        if isinstance(value, dict | list) and value and key not in _READ_KEYS and not _ABOUT.search(str(key).lower()):
            raise Rejected("unknown_part", f"a message has the key {named(key)}, which is unknown")
    unnamed = item.get("role") in (None, "unknown") and item.get("type") in (None, "message", "unknown")
    role = "assistant" if answers and unnamed else role_of(item)
    content = _content(item)
    if role == "tool" and not _has_results(content):
        return [_tool(item, content)]
    pieces = pieces_of(content)
    calls = _calls(item, pieces)
    if role == "assistant" and isinstance(item.get("refusal"), str) and not pieces:
        pieces = pieces_of(item["refusal"])
    has_content = (content is not None and content != []) or bool(calls)  # an exporter that cannot write a part leaves an empty list
    found = _segments(role, pieces, calls, separator, item, has_content)
    if not found:
        raise Rejected("empty_message", f"a message of the role {role} has no content")
    return found


def _content(item: dict[str, Any]) -> Any:
    parts, content = item.get("parts"), item.get("content")
    if parts is not None:
        return parts
    if isinstance(content, dict) and isinstance(content.get("parts"), list):  # Gemini's content inside of a message
        return content["parts"]
    return content


def _has_results(content: Any) -> bool:
    return isinstance(content, list) and any(isinstance(piece, Result) for piece in _known_pieces(content))


def _known_pieces(content: list[Any]) -> list[Piece]:
    kinds = ("tool_result", "tool-result", "tool_call_response", "function_call_output")
    results = [part for part in content if isinstance(part, dict) and (part.get("type") in kinds or _keyed(part))]
    return pieces_of(results)


def _keyed(part: dict[str, Any]) -> bool:
    return any(part.get(key) is not None for key in ("functionResponse", "function_response", "toolResult"))


def _tool(item: dict[str, Any], content: Any) -> Message:
    if content is None and "content" not in item and "parts" not in item:
        raise Rejected("empty_message", "the result of a tool has no content")
    keys = ("tool_call_id", "toolCallId", "call_id", *(("id",) if "event.name" in item else ()))
    identity = next((item[key] for key in keys if isinstance(item.get(key), str)), None)
    name = next((item[key] for key in ("name", "tool_name", "toolName") if isinstance(item.get(key), str) and item[key]), None)
    return tool_message(result_text(content), identity, name)


def _item(item: dict[str, Any]) -> list[Message]:
    if item["type"] == "function_call":
        return [{"role": "assistant", "content": "", "tool_calls": [call_of(item)]}]
    return [result_of(item)] if item["type"] == "function_call_output" else []


def _calls(item: dict[str, Any], pieces: list[Piece]) -> list[dict[str, Any]]:
    """Return the tool calls beside the content. LangChain repeats Anthropic's calls of the content there; they are not taken twice."""
    more = item.get("additional_kwargs")
    extra = more if isinstance(more, dict) else {}
    listed: Any = next((value for value in (item.get("tool_calls"), item.get("toolCalls"), extra.get("tool_calls")) if value), [])
    listed = unwrapped(listed)
    if not isinstance(listed, list):
        raise Rejected("bad_tool_call", f"tool calls must be a list, not {type(listed).__name__}")
    calls = [call_of(call) for call in listed]
    legacy = item.get("function_call") or extra.get("function_call")
    if legacy and not calls:
        calls = [call_of(legacy)]
    known = {piece.call["id"] for piece in pieces if isinstance(piece, Call)}
    if known and calls and known != {call["id"] for call in calls}:
        raise Rejected("bad_tool_call", "the tool calls of a message differ from those of its content")
    return [] if known else calls


def _segments(
    role: str, pieces: list[Piece], calls: list[dict[str, Any]], separator: str, item: dict[str, Any], has_content: bool
) -> list[Message]:
    """Return the messages of one record's message. Results of tools stand where they are; texts and calls between them are one message."""
    found: list[Message] = []
    run: list[Piece] = []
    for piece in [*pieces, *(Call(call) for call in calls)]:
        if isinstance(piece, Result):
            found += _message(role, run, separator, item)
            found.append(piece.message)
            run = []
        else:
            run.append(piece)
    found += _message(role, run, separator, item)
    if not found and has_content and role != "assistant":
        found = [_named({"role": role, "content": ""}, item)]
    return found


def _message(role: str, run: Sequence[Piece], separator: str, item: dict[str, Any]) -> list[Message]:
    calls = [piece.call for piece in run if isinstance(piece, Call)]
    parts: list[Piece] = [piece for piece in run if isinstance(piece, dict)]
    if calls and role not in ("assistant", "tool"):
        raise Rejected("bad_tool_call", f"a message of the role {role} calls a tool")
    if not calls and not parts:
        return []
    content = content_of(parts, separator if role == "assistant" else "\n")
    if role == "assistant" and not calls and isinstance(content, str) and not content.strip():
        return []
    if role == "tool":
        raise Rejected("unknown_part", "a message of the role tool has more than results")
    return [_named({"role": role, "content": content} | ({"tool_calls": calls} if calls else {}), item)]


def _named(message: Message, item: dict[str, Any]) -> Message:
    name = item.get("name")
    return message | ({"name": clean(name)} if isinstance(name, str) and name.strip() and message["role"] == "user" else {})


def with_split_calls(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with each one that has only calls joined to the answer of the model right before it.

    Exporters with numbered messages write the items of one answer of the Responses API as several messages.
    """
    found: list[Message] = []
    for message in messages:
        last = found[-1] if found else None
        if last is not None and last["role"] == message["role"] == "assistant" and message.get("tool_calls") and not message["content"]:
            found[-1] = last | {"tool_calls": [*last.get("tool_calls", []), *message["tool_calls"]]}
        else:
            found.append(message)
    return found


def paired(messages: list[Message]) -> list[Message]:
    """Return the messages with ids of all tool calls, and with the call of each result.

    A call without an id gets one by its place. A result without an id belongs to the first open call with its name, or to the only open
    call. Raises Rejected `unpaired_result` for any other result.
    """
    made: list[Message] = []
    open_calls: list[tuple[str, str]] = []
    numbered = set[str]()
    number = 0
    for message in messages:
        if message.get("tool_calls"):
            calls = []
            for call in message["tool_calls"]:
                numbered |= set() if call["id"] else {f"call_{number}"}
                calls.append(call if call["id"] else call | {"id": f"call_{number}"})
                number += 1
            open_calls += [(call["id"], call["function"]["name"]) for call in calls]
            message = message | {"tool_calls": calls}
        elif message["role"] == "tool":
            answered = _answered(message, open_calls, numbered)
            open_calls.remove(answered)
            message = {"role": "tool", "content": message["content"], "tool_call_id": answered[0]} | (
                {"name": message["name"]} if message.get("name") else {}
            )
        made.append(message)
    return made


def _answered(message: Message, open_calls: list[tuple[str, str]], numbered: set[str]) -> tuple[str, str]:
    identity, name = message.get("tool_call_id"), message.get("name")
    if identity:
        fitting = [call for call in open_calls if call[0] == identity]
    elif name:
        fitting = [call for call in open_calls if call[1] == name]
    else:
        fitting = open_calls if len(open_calls) == 1 else []
    if not fitting and identity and name:  # Gemini's ids are optional on either side
        fitting = [call for call in open_calls if call[1] == name and call[0].startswith("call_")]
    if not fitting and identity and not name:
        fitting = _by_item(identity, open_calls, numbered)
    if not fitting:
        raise Rejected("unpaired_result", "the result of a tool belongs to no call of the conversation")
    return fitting[0]


def _stem(identity: str) -> str | None:
    """Return the name of the tool in an id that is its name and a number; None for another id."""
    name, _, number = identity.rpartition("_")
    return name if number.isdecimal() else None


def _by_item(identity: str, open_calls: list[tuple[str, str]], made: set[str]) -> list[tuple[str, str]]:
    """Return the call that a result answers if the record names calls by the ids of items (`fc_…`), and results by those of the calls.

    OpenLLMetry does so for the Responses API. It is the call with the same rest of the id, or the only open one. Between several others,
    the choice would be a guess.
    """
    if numbered := [call for call in open_calls if call[1] == _stem(identity) and (_stem(call[0]) == call[1] or call[0] in made)]:
        return numbered  # OpenTelemetry's Gemini libraries: name and place of the part, which differs in the message of the results
    items = [call for call in open_calls if call[0].startswith("fc_")]
    same = [call for call in items if identity.startswith("call_") and call[0].removeprefix("fc_") == identity.removeprefix("call_")]
    only = len(open_calls) == 1 and (bool(items) or open_calls[0][0] in made)
    return same or (open_calls if only else [])
