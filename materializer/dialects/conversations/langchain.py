"""LangChain and LangGraph: messages with types human and ai, dumps of constructors, and `generations`."""

from __future__ import annotations

from typing import Any

from ratchet.contracts.conversation import Conversation
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.exchange import Record, Reply, Request, answer_of, conversation, finish_of
from ratchet.materializer.dialects.conversations import openai_chat
from ratchet.materializer.dialects.conversations.plain_text import unwrapped_text

_TYPES = ("human", "ai", "system", "tool", "function", "constructor", "AIMessageChunk")


def read(record: Record) -> Conversation | None:
    """Read a record whose input or output is what LangChain's callbacks give."""
    asked, answered = unwrapped_text(record.input), unwrapped_text(record.output)
    return conversation(request(asked), reply(answered))


def request(body: Any) -> Request | None:
    """Return the request of LangChain messages; None for anything else. Raises Rejected `transcript` for prompts in one text."""
    if isinstance(body, dict) and body.get("prompts"):
        raise Rejected("transcript", "LangChain has joined the messages to one prompt text, so their roles would be a guess")
    listed = unwrapped_text(body.get("messages")) if isinstance(body, dict) else body
    if not isinstance(listed, list) or not any(_is_message(item) for item in listed):
        return None
    return openai_chat.request(body)


def _is_message(item: Any) -> bool:
    if isinstance(item, list):  # a batch
        return any(isinstance(inner, dict) and _is_message(inner) for inner in item)
    return isinstance(item, dict) and (item.get("lc") is not None or "additional_kwargs" in item or item.get("type") in _TYPES)


def reply(body: Any) -> Reply | None:
    """Return the reply of a result with `generations`; None for anything else. Of several generations of one prompt, the first."""
    if isinstance(body, dict) and isinstance(body.get("output"), dict) and _is_message(body["output"]):
        body = body["output"]
    if not isinstance(body, dict) or not isinstance(body.get("generations"), list):
        return openai_chat.reply(body) if _is_message(body) else None
    batch = body["generations"]
    inner = batch[0] if len(batch) == 1 and isinstance(batch[0], list) else batch
    first = inner[0] if inner else None
    if not isinstance(first, dict) or (inner is batch and len(batch) > 1):
        raise Rejected("not_one_answer", "the generations of LangChain are no single answer")
    told = first.get("generation_info") if isinstance(first.get("generation_info"), dict) else first.get("generationInfo")
    info: dict[str, Any] = told if isinstance(told, dict) else {}
    finish = finish_of(info.get("finish_reason"), info.get("stop_reason"))
    if isinstance(first.get("message"), dict):
        found = openai_chat.reply(first["message"])
        said = found.message["content"] if found and found.message else ""
        if isinstance(first.get("text"), str) and first["text"].strip() and isinstance(said, str) and first["text"].strip() not in said:
            raise Rejected("not_one_answer", "the text of a generation is not that of its message")
        return Reply(found.message, finish or found.finish) if found else None
    return Reply(answer_of([{"role": "assistant", "content": first.get("text")}]), finish)
