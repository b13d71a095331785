"""The replies of the fake model server in three protocols, whole and as streamed events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.harness.script import Call


@dataclass(frozen=True)
class Spoken:
    """One answer of the model."""

    id: str
    model: str
    text: str
    calls: tuple[tuple[str, Call], ...]
    """(id, call)"""
    reasoning: str
    input_tokens: int
    output_tokens: int


def _pieces(text: str) -> Iterator[str]:
    """Cut a text into four pieces, also inside of words."""
    size = max(1, -(-len(text) // 4))
    return (text[at : at + size] for at in range(0, len(text), size))


def _event(data: dict[str, Any], name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def _arguments(call: Call) -> str:
    return json.dumps(call.arguments, ensure_ascii=False)


def chat(said: Spoken) -> dict[str, Any]:
    """Return a chat completion."""
    message: dict[str, Any] = {"role": "assistant", "content": said.text or None, "refusal": None}
    if said.calls:
        message["tool_calls"] = [
            {"id": name, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}} for name, call in said.calls
        ]
    if said.reasoning:
        message["reasoning_content"] = said.reasoning
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls" if said.calls else "stop"}
    return {"id": said.id, "object": "chat.completion", "created": 1, "model": said.model, "choices": [choice], "usage": _chat_usage(said)}


def _chat_usage(said: Spoken) -> dict[str, int]:
    total = said.input_tokens + said.output_tokens
    return {"prompt_tokens": said.input_tokens, "completion_tokens": said.output_tokens, "total_tokens": total}


def chat_stream(said: Spoken, usage: bool) -> Iterator[bytes]:
    """Yield the chunks of a chat completion, with the usage in the last one if the request asks for it."""

    def chunk(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
        head = {"id": said.id, "object": "chat.completion.chunk", "created": 1, "model": said.model}
        return _event({**head, "choices": choices, **more})

    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(said.reasoning):
        yield chunk({"reasoning_content": piece})
    for piece in _pieces(said.text):
        yield chunk({"content": piece})
    for place, (name, call) in enumerate(said.calls):
        yield chunk({"tool_calls": [{"index": place, "id": name, "type": "function", "function": {"name": call.name, "arguments": ""}}]})
        for piece in _pieces(_arguments(call)):
            yield chunk({"tool_calls": [{"index": place, "function": {"arguments": piece}}]})
    yield chunk({}, "tool_calls" if said.calls else "stop")
    if usage:
        yield chunk(None, usage=_chat_usage(said))
    yield b"data: [DONE]\n\n"


def responses(said: Spoken, request: dict[str, Any], output: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return a reply of the Responses API, which repeats parts of the request."""
    items = _items(said) if output is None else output
    total = said.input_tokens + said.output_tokens
    return {
        "id": said.id,
        "object": "response",
        "created_at": 1,
        "status": "completed" if output is None else "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": request.get("instructions"),
        "metadata": request.get("metadata") or {},
        "model": said.model,
        "output": items,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": request.get("tools") or [],
        "top_p": 1.0,
        "text": request.get("text") or {"format": {"type": "text"}},
        "usage": {
            "input_tokens": said.input_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": said.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": total,
        }
        if output is None
        else None,
    }


def _items(said: Spoken) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if said.reasoning:
        summary = [{"type": "summary_text", "text": said.reasoning}]
        items.append({"type": "reasoning", "id": f"rs_{said.id[5:]}", "summary": summary})
    if said.text:
        part = {"type": "output_text", "text": said.text, "annotations": [], "logprobs": []}
        items.append({"type": "message", "id": f"msg_{said.id[5:]}", "status": "completed", "role": "assistant", "content": [part]})
    for name, call in said.calls:
        head = {"type": "function_call", "id": f"fc_{name[5:]}", "call_id": name, "status": "completed"}
        items.append({**head, "name": call.name, "arguments": _arguments(call)})
    return items


def responses_stream(said: Spoken, request: dict[str, Any]) -> Iterator[bytes]:
    """Yield the events of a reply of the Responses API."""
    number = iter(range(10_000))

    def event(kind: str, **more: Any) -> bytes:
        return _event({"type": kind, "sequence_number": next(number), **more}, kind)

    yield event("response.created", response=responses(said, request, []))
    for place, item in enumerate(_items(said)):
        at = {"item_id": item["id"], "output_index": place}
        empty = {"content": []} if item["type"] == "message" else {"arguments": ""} if item["type"] == "function_call" else {"summary": []}
        yield event("response.output_item.added", output_index=place, item={**item, **empty})
        if item["type"] == "message":
            blank = {"type": "output_text", "text": "", "annotations": []}
            yield event("response.content_part.added", **at, content_index=0, part=blank)
            for piece in _pieces(said.text):
                yield event("response.output_text.delta", **at, content_index=0, delta=piece, logprobs=[])
            yield event("response.output_text.done", **at, content_index=0, text=said.text, logprobs=[])
            yield event("response.content_part.done", **at, content_index=0, part=item["content"][0])
        elif item["type"] == "function_call":
            for piece in _pieces(item["arguments"]):
                yield event("response.function_call_arguments.delta", **at, delta=piece)
            yield event("response.function_call_arguments.done", **at, name=item["name"], arguments=item["arguments"])
        yield event("response.output_item.done", output_index=place, item=item)
    yield event("response.completed", response=responses(said, request))


def anthropic(said: Spoken) -> dict[str, Any]:
    """Return a message of Anthropic's API."""
    usage = {"input_tokens": said.input_tokens, "output_tokens": said.output_tokens}
    reason = "tool_use" if said.calls else "end_turn"
    head = {"id": said.id, "type": "message", "role": "assistant", "model": said.model}
    return {**head, "content": _blocks(said), "stop_reason": reason, "stop_sequence": None, "usage": usage}


def _blocks(said: Spoken) -> list[dict[str, Any]]:
    thought = [{"type": "thinking", "thinking": said.reasoning, "signature": "c2lnbmVk"}] if said.reasoning else []
    text = [{"type": "text", "text": said.text}] if said.text else []
    return [*thought, *text, *({"type": "tool_use", "id": name, "name": call.name, "input": call.arguments} for name, call in said.calls)]


def anthropic_stream(said: Spoken) -> Iterator[bytes]:
    """Yield the events of a message of Anthropic's API."""
    begin = {**anthropic(said), "content": [], "stop_reason": None, "usage": {"input_tokens": said.input_tokens, "output_tokens": 1}}
    yield _event({"type": "message_start", "message": begin}, "message_start")
    for place, block in enumerate(_blocks(said)):
        kind = block["type"]
        empty = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}, "tool_use": {"input": {}}}[kind]
        yield _event({"type": "content_block_start", "index": place, "content_block": {**block, **empty}}, "content_block_start")
        whole = json.dumps(block["input"], ensure_ascii=False) if kind == "tool_use" else block[kind]
        name, key = {
            "text": ("text_delta", "text"),
            "thinking": ("thinking_delta", "thinking"),
            "tool_use": ("input_json_delta", "partial_json"),
        }[kind]
        deltas = [{"type": name, key: piece} for piece in _pieces(whole)]
        if kind == "thinking":
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        for delta in deltas:
            yield _event({"type": "content_block_delta", "index": place, "delta": delta}, "content_block_delta")
        yield _event({"type": "content_block_stop", "index": place}, "content_block_stop")
    end = {"stop_reason": "tool_use" if said.calls else "end_turn", "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": end, "usage": {"output_tokens": said.output_tokens}}, "message_delta")
    yield _event({"type": "message_stop"}, "message_stop")
