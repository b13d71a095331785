"""Vercel AI SDK: `ai.prompt.*` and `ai.response.*` of a call to a model, and the bodies that other systems take from them."""

from __future__ import annotations

from typing import Any

from ratchet.contracts.conversation import Conversation
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.exchange import Record, Reply, Request, answer_of, conversation, finish_of, system_message
from ratchet.materializer.dialects.canonical.tools import tools_of, unwrapped
from ratchet.materializer.dialects.canonical.turns import read_turns
from ratchet.materializer.dialects.conversations.plain_text import unwrapped_text
from ratchet.materializer.dialects.values import clean

_BESIDE = frozenset({"text", "toolCalls", "tool_calls", "reasoning", "finishReason", "object", "files", "role", "content", "usage"})


def read(record: Record) -> Conversation | None:
    """Read the attributes of a span, or a record whose input or output has the SDK's form."""
    attributes = record.attributes
    asked = attributes.get("ai.prompt.messages")
    names = ("ai.response.text", "ai.response.toolCalls", "ai.response.object", "ai.result.text", "ai.result.toolCalls", "ai.result.object")
    if asked is None and not any(name in attributes for name in names):
        return conversation(request(unwrapped_text(record.input)), reply(unwrapped_text(record.output)))
    messages = read_turns(unwrapped(asked)).messages if asked is not None else []
    answer = {
        "text": attributes.get("ai.response.text", "ai.result.text", "ai.response.object", "ai.result.object"),
        "toolCalls": attributes.get("ai.response.toolCalls", "ai.result.toolCalls"),
        "finishReason": attributes.get("ai.response.finishReason", "ai.finishReason"),
    }
    if attributes.get("ai.response.files"):
        raise Rejected("unknown_part", "the answer has files")
    return conversation(Request(messages) if messages else None, _result(answer), tools_of(attributes.get("ai.prompt.tools")))


def request(body: Any) -> Request | None:
    """Return the request of {prompt, system} or {messages, system}; None for anything else."""
    if not isinstance(body, dict) or "prompt" not in body or "messages" in body:
        return None
    prompt = unwrapped_text(body["prompt"])
    if isinstance(prompt, list):
        messages = read_turns(prompt).messages
    elif isinstance(prompt, str):
        messages = [{"role": "user", "content": clean(prompt)}]
    else:
        return None
    return Request([*system_message(body.get("system")), *messages], tools_of(body.get("tools")))


def reply(body: Any) -> Reply | None:
    """Return the reply of a list of tool calls, or of a result with text and tool calls; None for anything else."""
    if isinstance(body, list):
        calls = bool(body) and all(isinstance(item, dict) and "toolCallId" in item and "toolName" in item for item in body)
        return _result({"toolCalls": [item for item in body if item.get("type") != "tool-result"]}) if calls else None
    if not isinstance(body, dict) or not set(body) <= _BESIDE or not ({"text", "toolCalls"} & set(body)):
        return None
    return _result(body)


def _result(body: dict[str, Any]) -> Reply:
    text = body["text"] if isinstance(body.get("text"), str) else body.get("content")
    calls = unwrapped(body.get("toolCalls") or body.get("tool_calls") or [])
    message = answer_of([{"role": "assistant", "content": text or "", "tool_calls": calls}])
    return Reply(message, finish_of(body.get("finishReason")))
