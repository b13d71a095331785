"""Replies with one text: Ollama, Text Generation Inference, Llama, Titan and completions of Anthropic on Bedrock. And streams as one text.

A stream is server-sent events (`data: {…}`), or one JSON object per line.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.exchange import Reply, answer_of, finish_of
from ratchet.materializer.dialects.conversations.reply_shapes import is_converse_event, is_of_dspy, is_reply

_ENDED = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
"""Stands for the mark that ends a stream of chunks. A finish reason before it counts."""
_OF_AI_SDK = re.compile(r'0:"|[f2-9a-eg-k]:[{\["]')
_FIELD = re.compile(r"(?:data|event|id|retry)\s*:|:")


def reply(body: Any) -> Reply | None:
    """Return the reply of an object or of streamed objects; None for anything else."""
    if isinstance(body, list):
        if body and all(isinstance(item, dict) and is_converse_event(item) for item in body):
            return _converse(body)
        if len(body) == 1 and isinstance(body[0], dict):
            if is_of_dspy(body[0]):
                return _text(body[0]["text"], None)
            return reply(body[0]) if "generated_text" in body[0] else None
        ollama = len(body) > 1 and all(isinstance(item, dict) and "done" in item and "model" in item for item in body)
        return _ollama(body) if ollama else None
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("done"), bool) and isinstance(body.get("model"), str):
        return _ollama([body])
    if isinstance(body.get("generated_text"), str):
        details = body["details"] if isinstance(body.get("details"), dict) else {}
        return _text(body["generated_text"], details.get("finish_reason"))
    if isinstance(body.get("generated_text"), list) and body["generated_text"]:
        return Reply(answer_of(body["generated_text"][-1:]))
    if isinstance(body.get("generation_id"), str) and isinstance(body.get("text"), str):
        made = {"role": "assistant", "content": body["text"], "tool_calls": body.get("tool_calls")}
        return Reply(answer_of([made]), finish_of(body.get("finish_reason")))
    if isinstance(body.get("stop"), bool) and isinstance(body.get("content"), str) and "role" not in body:
        return _of_llama_cpp(body)
    if isinstance(body.get("generation"), str):
        return _text(body["generation"], body.get("stop_reason"))
    results = body.get("results")
    if isinstance(results, list) and results and isinstance(results[0], dict) and "outputText" in results[0]:
        return _text(results[0]["outputText"], results[0].get("completionReason"))
    if isinstance(results, list) and results and isinstance(results[0], dict) and isinstance(results[0].get("generated_text"), str):
        return _text(results[0]["generated_text"], results[0].get("stop_reason"))
    if isinstance(body.get("completion"), str) and "stop_reason" in body:
        return _text(body["completion"], body["stop_reason"])
    return None


def _text(text: Any, finish: Any) -> Reply:
    return Reply(answer_of([{"role": "assistant", "content": text}]), finish_of(finish.lower() if isinstance(finish, str) else None))


def _of_llama_cpp(body: dict[str, Any]) -> Reply:
    if not body["stop"]:
        raise Rejected("unknown_wrapper", "the stream of an answer has no end")
    is_cut = body.get("stop_type") == "limit" or body.get("stopped_limit") is True
    return _text(body["content"], "length" if is_cut else "stop")


def _converse(events: list[dict[str, Any]]) -> Reply:
    """Return the reply of the events of Bedrock's ConverseStream."""
    blocks: dict[int, dict[str, Any]] = {}
    finish = None
    for event in events:
        [(kind, value)] = event.items()
        place = value.get("contentBlockIndex")
        if kind == "messageStop":
            finish = value.get("stopReason")
        started, delta = value.get("start"), value.get("delta")
        if kind == "contentBlockStart" and isinstance(place, int) and isinstance(started, dict):
            blocks[place] = {key: dict(one) if isinstance(one, dict) else one for key, one in started.items()}
        elif kind == "contentBlockDelta" and isinstance(place, int) and isinstance(delta, dict):
            _add_to_block(blocks.setdefault(place, {}), delta)
    if finish is None:
        raise Rejected("unknown_wrapper", "the stream of an answer has no end")
    content = [blocks[place] for place in sorted(blocks) if blocks[place]]
    return Reply(answer_of([{"role": "assistant", "content": content}], ""), finish_of(finish))


def _add_to_block(block: dict[str, Any], delta: dict[str, Any]) -> None:
    for key, piece in delta.items():
        if key == "text" and isinstance(piece, str):
            block["text"] = str(block.get("text") or "") + piece
        elif key == "toolUse" and isinstance(piece, dict) and isinstance(block.get("toolUse"), dict):
            block["toolUse"]["input"] = str(block["toolUse"].get("input") or "") + str(piece.get("input") or "")
        elif key == "reasoningContent":
            block[key] = piece
        else:
            raise Rejected("unknown_part", "a piece of a streamed answer is neither text nor a tool call")


def _ollama(chunks: list[dict[str, Any]]) -> Reply:
    texts: list[str] = []
    calls: list[Any] = []
    for chunk in chunks:
        message = chunk["message"] if isinstance(chunk.get("message"), dict) else {"content": chunk.get("response")}
        if not isinstance(message.get("content"), str | None) or message.get("role") not in ("assistant", None):
            raise Rejected("unknown_part", "a piece of a streamed answer is no text")
        texts.append(message.get("content") or "")
        more = message.get("tool_calls")
        calls += more if isinstance(more, list) else []
    if not chunks[-1].get("done"):
        raise Rejected("unknown_wrapper", "the stream of an answer has no end")
    made = {"role": "assistant", "content": "".join(texts), "tool_calls": calls}
    return Reply(answer_of([made]), finish_of(chunks[-1].get("done_reason")))


def streamed(text: str) -> Any:
    """Return the list of objects of a stream that is one text, or its only object; None if it is none.

    Raises Rejected `unknown_wrapper` for a damaged one.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and all(_OF_AI_SDK.match(line) for line in lines):
        return _of_ai_sdk(lines)
    events = bool(lines) and all(_FIELD.match(line) for line in lines) and any(_is_data(line) for line in lines)
    if not events and not (len(lines) > 1 and all(line[:1] == "{" and line[-1:] == "}" for line in lines)):
        return None
    found: list[Any] = []
    for line in lines:
        data = line.partition(":")[2].strip() if events and line.startswith("data") else "" if events else line
        if not data or data == "[DONE]":
            continue
        try:
            found.append(orjson.loads(data))
        except orjson.JSONDecodeError:
            if events:
                raise Rejected("unknown_wrapper", "the answer is a stream of events, of which one is not valid JSON") from None
            return None
    if events and lines[-1].partition(":")[2].strip() == "[DONE]":
        found.append(_ENDED)
    if is_reply(found):
        return found
    found = [item for item in found if item is not _ENDED]
    if len(found) == 1 and is_reply(found[0]):
        return found[0]
    if events:
        raise Rejected("unknown_wrapper", "the answer is a stream of events in no known form")
    return None


def _of_ai_sdk(lines: list[str]) -> dict[str, Any]:
    """Return the reply of a data stream of the AI SDK, whose lines have a letter for their kind. Raises Rejected `unknown_wrapper`."""
    texts: list[str] = []
    finish = None
    for line in lines:
        kind, _, data = line.partition(":")
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            value = None
        if kind == "0" and isinstance(value, str):
            texts.append(value)
        elif kind in ("d", "e") and isinstance(value, dict):
            finish = value.get("finishReason") or finish
        elif kind not in ("f", "g", "i", "j", "2", "8"):
            raise Rejected("unknown_wrapper", "the answer is a stream of the AI SDK with more than text")
    if finish is None:
        raise Rejected("unknown_wrapper", "the stream of an answer has no end")
    return {"text": "".join(texts), "finishReason": finish}


def _is_data(line: str) -> bool:
    return line.startswith("data") and line.partition(":")[2].strip()[:1] in ("{", "[")
