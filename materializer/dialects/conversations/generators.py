"""Replies with one text: Ollama, Text Generation Inference, Llama, Titan and completions of Anthropic on Bedrock. And streams as one text.

A stream is server-sent events (`data: {…}`), or one JSON object per line.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.exchange import Reply, answer_of, finish_of
from ratchet.materializer.dialects.conversations.reply_shapes import is_reply

_FIELD = re.compile(r"(?:data|event|id|retry)\s*:|:")


def reply(body: Any) -> Reply | None:
    """Return the reply of an object or of streamed objects; None for anything else."""
    if isinstance(body, list):
        if len(body) == 1 and isinstance(body[0], dict):
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
    if isinstance(body.get("generation"), str):
        return _text(body["generation"], body.get("stop_reason"))
    results = body.get("results")
    if isinstance(results, list) and results and isinstance(results[0], dict) and "outputText" in results[0]:
        return _text(results[0]["outputText"], results[0].get("completionReason"))
    if isinstance(body.get("completion"), str) and "stop_reason" in body:
        return _text(body["completion"], body["stop_reason"])
    return None


def _text(text: Any, finish: Any) -> Reply:
    return Reply(answer_of([{"role": "assistant", "content": text}]), finish_of(finish.lower() if isinstance(finish, str) else None))


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
    if is_reply(found):
        return found
    if len(found) == 1 and is_reply(found[0]):
        return found[0]
    if events:
        raise Rejected("unknown_wrapper", "the answer is a stream of events in no known form")
    return None


def _is_data(line: str) -> bool:
    return line.startswith("data") and line.partition(":")[2].strip()[:1] in ("{", "[")
