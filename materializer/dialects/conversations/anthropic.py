"""Anthropic messages: `system` beside the messages, blocks of content, whole or as streamed events. Bedrock Converse is similar."""

from __future__ import annotations

from typing import Any

from ratchet.contracts.conversation import Conversation
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.exchange import Record, Reply, Request, answer_of, conversation, finish_of, system_message
from ratchet.materializer.dialects.canonical.tools import tools_of, unwrapped
from ratchet.materializer.dialects.canonical.turns import read_turns
from ratchet.materializer.dialects.conversations.plain_text import unwrapped_text

_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking")
_EVENTS = ("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop", "ping")


def read(record: Record) -> Conversation | None:
    """Read a record whose input or output is a body of the messages API."""
    return conversation(request(unwrapped_text(record.input)), reply(unwrapped_text(record.output)))


def request(body: Any) -> Request | None:
    """Return the request of an object with messages of Anthropic or Bedrock; None for anything else."""
    if isinstance(body, list):
        return Request(read_turns(body, "").messages) if any(_has_blocks(item) for item in body) else None
    if not isinstance(body, dict) or not isinstance(unwrapped(body.get("messages")), list):
        return None
    listed = unwrapped(body["messages"])
    tools = body["toolConfig"].get("tools") if isinstance(body.get("toolConfig"), dict) else body.get("tools")
    if not (body.get("system") or any(_has_blocks(item) for item in listed)):
        return None
    return Request([*system_message(unwrapped_text(body.get("system"))), *read_turns(listed, "").messages], tools_of(tools))


def _has_blocks(item: Any) -> bool:
    content = item.get("content") if isinstance(item, dict) else None
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    typed = any(block.get("type") in _BLOCKS for block in blocks if isinstance(block.get("type"), str))
    return typed or any(key in block for block in blocks for key in ("toolUse", "toolResult"))


def reply(body: Any) -> Reply | None:
    """Return the reply of a message, of Bedrock's output or of streamed events; None for anything else."""
    if isinstance(body, list):
        events = bool(body) and all(isinstance(item, dict) and item.get("type") in _EVENTS for item in body)
        return _events(body) if events else None
    if not isinstance(body, dict):
        return None
    output = body.get("output")
    if isinstance(output, dict) and isinstance(output.get("message"), dict):
        return Reply(answer_of([output["message"]], ""), finish_of(body.get("stopReason")))
    if body.get("type") == "message" or (isinstance(body.get("content"), list) and ("stop_reason" in body or _has_blocks(body))):
        return Reply(answer_of([body], ""), finish_of(body.get("stop_reason")))
    return None


def _events(events: list[dict[str, Any]]) -> Reply:
    blocks: dict[int, dict[str, Any]] = {}
    finish = None
    for event in events:
        place, delta = event.get("index"), event.get("delta")
        found = delta if isinstance(delta, dict) else {}
        if event["type"] == "content_block_start" and isinstance(place, int) and isinstance(event.get("content_block"), dict):
            blocks[place] = dict(event["content_block"])
        elif event["type"] == "content_block_delta" and isinstance(place, int):
            _add(blocks, place, found)
        elif event["type"] == "message_delta":
            finish = found.get("stop_reason") or finish
    if finish is None and events[-1]["type"] != "message_stop":
        finish = "incomplete"
    content = [_closed(blocks[place]) for place in sorted(blocks)]
    return Reply(answer_of([{"role": "assistant", "content": content}], ""), finish_of(finish))


def _add(blocks: dict[int, dict[str, Any]], place: int, delta: dict[str, Any]) -> None:
    block = blocks.get(place)
    if block is None:
        raise Rejected("unknown_wrapper", "a streamed block has no beginning")
    if isinstance(delta.get("text"), str):
        block["text"] = str(block.get("text") or "") + delta["text"]
    if isinstance(delta.get("partial_json"), str):
        block["partial"] = str(block.get("partial") or "") + delta["partial_json"]


def _closed(block: dict[str, Any]) -> dict[str, Any]:
    partial = block.pop("partial", None)
    return block | {"input": partial} if partial else block
