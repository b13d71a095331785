"""OpenAI Responses API: items of `input` and `output`, whole or as streamed events. A request that refers to a stored one is rejected."""

from __future__ import annotations

from typing import Any

from ratchet.contracts.conversation import Conversation
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.exchange import Record, Reply, Request, answer_of, conversation, finish_of, system_message
from ratchet.materializer.dialects.canonical.tools import tools_of
from ratchet.materializer.dialects.canonical.turns import read_turns
from ratchet.materializer.dialects.conversations.plain_text import unwrapped_text
from ratchet.materializer.dialects.values import clean

_ITEMS = ("function_call", "function_call_output", "reasoning")
_PARTS = frozenset({"input_text", "output_text", "input_image"})
_OTHER_KEYS = ("model", "instructions", "tools", "previous_response_id", "max_output_tokens", "store", "reasoning")


def read(record: Record) -> Conversation | None:
    """Read a record whose input or output is a body of the Responses API."""
    asked, answered = unwrapped_text(record.input), unwrapped_text(record.output)
    return conversation(request(asked), reply(answered))


def request(body: Any) -> Request | None:
    """Return the request of a list of items, or of an object with `input`; None for anything else."""
    if isinstance(body, list):
        return Request(read_turns(body, "").messages) if any(_is_item(item) for item in body) else None
    if not isinstance(body, dict) or "input" not in body or "messages" in body:
        return None
    items = unwrapped_text(body["input"])
    if not isinstance(items, str | list) or not (isinstance(items, list) or any(key in body for key in _OTHER_KEYS)):
        return None
    _is_whole(body)
    messages = [{"role": "user", "content": clean(items)}] if isinstance(items, str) else read_turns(items, "").messages
    return Request([*system_message(body.get("instructions")), *messages], tools_of(body.get("tools")))


def _is_item(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    kinds = {part.get("type") for part in parts if isinstance(part, dict) and isinstance(part.get("type"), str)}
    return (item.get("type") in _ITEMS and "role" not in item) or bool(kinds & _PARTS)


def _is_whole(body: dict[str, Any]) -> None:
    if any(body.get(key) for key in ("previous_response_id", "conversation")):
        raise Rejected("stored_context", "the request continues a conversation that the provider stores, so its messages are not complete")


def reply(body: Any) -> Reply | None:
    """Return the reply of a response object, of its items or of its events; None for anything else."""
    if isinstance(body, list):
        return _of_list(body)
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("response"), dict) and str(body.get("type")).startswith("response."):
        body = body["response"]
    if body.get("type") == "function_call" and "role" not in body:  # the one item of an output
        return Reply(answer_of([body], ""))
    if not isinstance(body.get("output"), list) or (body.get("object") != "response" and not all(map(_is_output, body["output"]))):
        return None
    _is_whole(body)
    if any(isinstance(item, dict) and item.get("type") is None and item.get("role") is None for item in body["output"]):
        raise Rejected("unknown_part", "an item of the output has no type")
    told = body["incomplete_details"] if isinstance(body.get("incomplete_details"), dict) else {}
    status, has_failed = body.get("status"), body.get("status") in ("failed", "cancelled")
    finish = finish_of(told.get("reason"), "incomplete") if status == "incomplete" else finish_of(status) if has_failed else "stop"
    message = None if has_failed else answer_of(body["output"], "")
    return Reply(message, finish, tools_of(body.get("tools")), body.get("instructions"))


def _of_list(items: list[Any]) -> Reply | None:
    if len(items) == 1 and isinstance(items[0], dict) and items[0].get("object") == "response":  # the Agents SDK, streamed
        return reply(items[0])
    if items and all(isinstance(item, dict) and str(item.get("type")).startswith("response.") for item in items):
        ended = [item for item in items if item["type"] in ("response.completed", "response.incomplete")]
        if not ended:
            raise Rejected("unknown_wrapper", "the stream of a response has no event with the whole response")
        if len(ended) > 1:
            raise Rejected("not_one_answer", "the stream has several responses")
        return reply(ended[0])
    if items and all(map(_is_output, items)):
        return Reply(answer_of(items, ""))
    return None


def _is_output(item: Any) -> bool:
    return _is_item(item) or (isinstance(item, dict) and item.get("type") == "message" and isinstance(item.get("role"), str))
