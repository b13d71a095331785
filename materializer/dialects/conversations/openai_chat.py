"""OpenAI chat completions, which most servers and gateways follow: `messages`, `tools` and `choices`, whole or as streamed chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ratchet.contracts.conversation import Conversation
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.exchange import Record, Reply, Request, answer_of, conversation, finish_of, system_message
from ratchet.materializer.dialects.canonical.tools import tools_of, unwrapped
from ratchet.materializer.dialects.canonical.turns import opened, read_turns
from ratchet.materializer.dialects.conversations.plain_text import unwrapped_text
from ratchet.materializer.dialects.conversations.reply_shapes import is_choice

_BLOCKS = ("text", "output_text", "tool_use", "thinking", "reasoning")
"""Types of parts of a message, of which an output may be a list."""


def read(record: Record) -> Conversation | None:
    """Read a record whose input and output are bodies of the chat API."""
    return conversation(request(unwrapped_text(record.input)), reply(unwrapped_text(record.output)))


def request(body: Any) -> Request | None:
    """Return the request that a list of messages, one message or an object with `messages` describes; None for anything else."""
    if isinstance(body, list):
        turns = read_turns(body)
        return Request(turns.messages, turns.tools) if turns.messages else None
    if not isinstance(body, dict):
        return None
    if "messages" in body:
        if any(body.get(key) for key in ("contents", "input")) or isinstance(body.get("prompt"), list):
            raise Rejected("unknown_wrapper", "the request has messages and another kind of input")
        listed = unwrapped(body["messages"])
        if isinstance(listed, dict):
            listed = [listed]
        turns = read_turns(listed)
        extra = body["invocation_params"] if isinstance(body.get("invocation_params"), dict) else {}
        tools = tools_of(body.get("tools")) or tools_of(body.get("functions")) or tools_of(extra.get("tools")) or turns.tools
        return Request([*system_message(unwrapped_text(body.get("system"))), *turns.messages], tools)
    if _is_message(body):
        return request([body])
    return None


def _is_message(body: dict[str, Any]) -> bool:
    return isinstance(body.get("role"), str) or body.get("type") in ("human", "ai", "system", "constructor")


def reply(body: Any) -> Reply | None:
    """Return the reply that a completion, its chunks or one message describes; None for anything else. Of several choices, the first."""
    if isinstance(body, list):
        return _listed(body)
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("choices"), list):
        return _choices(body["choices"])
    if isinstance(body.get("message"), dict | str) and "role" not in body:
        return _reply(body)
    if isinstance(body.get("messages"), list) and set(body) <= {"messages"}:
        return _reply(*body["messages"])
    if _is_message(body) or ("content" in body and not isinstance(body["content"], dict)) or body.get("tool_calls"):
        return _reply(body)
    return None


def _reply(*items: Any) -> Reply:
    message = answer_of(items)
    last = items[-1] if items and isinstance(items[-1], dict) else {}
    inner = opened(last) if last else {}
    told = inner["response_metadata"] if isinstance(inner.get("response_metadata"), dict) else {}
    keys = ("finish_reason", "stop_reason", "finishReason", "stopReason", "done_reason")
    return Reply(message, finish_of(*(holder.get(key) for holder in (last, inner, told) for key in keys)))


def _choices(choices: Sequence[Any]) -> Reply | None:
    first = choices[0] if choices else None
    if not isinstance(first, dict):
        return None
    if isinstance(first.get("text"), str) and first.get("message") is None:
        return Reply(answer_of([{"role": "assistant", "content": first["text"]}]), finish_of(first.get("finish_reason")))
    if isinstance(first.get("message"), dict):
        found = _reply(first["message"])
        return Reply(found.message, finish_of(first.get("finish_reason"), found.finish))
    raise Rejected("unknown_wrapper", "a choice has no message")


def _listed(items: list[Any]) -> Reply | None:
    if items and all(isinstance(item, dict) and item.get("object") == "chat.completion.chunk" for item in items):
        return _chunks(items)
    if items and all(isinstance(item, dict) and item.get("type") in _BLOCKS and "role" not in item for item in items):
        return _reply({"role": "assistant", "content": items})
    if items and all(isinstance(item, dict) and is_choice(item) for item in items):
        return _choices(items)
    if len(items) == 1:
        return _reply(*(items[0] if isinstance(items[0], list) else items)) if isinstance(items[0], dict | list) else None
    if items and all(isinstance(item, dict) for item in items):
        raise Rejected("not_one_answer", f"the output has {len(items)} messages, so it is no single answer")
    return None


def _chunks(chunks: Sequence[dict[str, Any]]) -> Reply:
    text: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    finish = None
    for chunk in chunks:
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            delta = choice.get("delta") if isinstance(choice, dict) and choice.get("index", 0) == 0 else None
            if not isinstance(delta, dict):
                continue
            if not isinstance(delta.get("content"), str | None) or not isinstance(delta.get("tool_calls"), list | None):
                raise Rejected("unknown_part", "a piece of a streamed answer is neither text nor a tool call")
            finish = finish or choice.get("finish_reason")
            text.append(delta["content"] if isinstance(delta.get("content"), str) else "")
            for piece in delta.get("tool_calls") or ():
                _add_call(calls, piece)
    message = answer_of([{"role": "assistant", "content": "".join(text), "tool_calls": [calls[place] for place in sorted(calls)]}])
    return Reply(message, finish_of(finish, "incomplete"))  # a stream without an end was cut


def _add_call(calls: dict[int, dict[str, Any]], piece: Any) -> None:
    if not isinstance(piece, dict) or not isinstance(piece.get("index"), int):
        raise Rejected("bad_tool_call", "a streamed tool call has no index")
    call = calls.setdefault(piece["index"], {"id": None, "function": {"name": "", "arguments": ""}})
    call["id"] = call["id"] or piece.get("id")
    function = piece["function"] if isinstance(piece.get("function"), dict) else {}
    for key in ("name", "arguments"):
        call["function"][key] += function[key] if isinstance(function.get(key), str) else ""
