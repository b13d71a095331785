"""Gemini, Vertex AI and the Agent Development Kit: `contents` with parts, `system_instruction`, `candidates`."""

from __future__ import annotations

from typing import Any

from ratchet.contracts.conversation import Conversation, Message
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.exchange import Record, Reply, Request, answer_of, conversation, finish_of, system_message
from ratchet.materializer.dialects.canonical.parts import pieces_of
from ratchet.materializer.dialects.canonical.tools import tools_of, unwrapped
from ratchet.materializer.dialects.canonical.turns import read_turns
from ratchet.materializer.dialects.conversations.plain_text import unwrapped_text

_REQUEST, _REPLY = "gcp.vertex.agent.llm_request", "gcp.vertex.agent.llm_response"


def read(record: Record) -> Conversation | None:
    """Read the attributes of the Agent Development Kit, or a record whose input or output is a body of the API."""
    if record.attributes.get(_REQUEST) is not None:
        asked, answered = record.attributes.get(_REQUEST), record.attributes.get(_REPLY)
        return conversation(request(unwrapped(asked)), reply(unwrapped(answered)))
    return conversation(request(unwrapped_text(record.input)), reply(unwrapped_text(record.output)))


def request(body: Any) -> Request | None:
    """Return the request of an object with `contents`, or of a list of contents; None for anything else."""
    if isinstance(body, list):
        return Request(read_turns(body, "").messages) if any(_is_content(item) for item in body) else None
    if not isinstance(body, dict) or "contents" not in body:
        return None
    if body.get("messages"):
        raise Rejected("unknown_wrapper", "the request has messages and contents")
    holders = [body, *(body[key] for key in ("config", "generation_config", "generationConfig") if isinstance(body.get(key), dict))]
    if any(holder.get(key) for holder in holders for key in ("cached_content", "cachedContent")):
        raise Rejected("stored_context", "the request refers to content that the provider stores, so its messages are not complete")
    keys = ("system_instruction", "systemInstruction")
    system = next((holder[key] for holder in holders for key in keys if holder.get(key)), None)
    tools = next((holder["tools"] for holder in holders if holder.get("tools")), None)
    return Request([*system_message(unwrapped_text(system)), *_messages(unwrapped_text(body["contents"]))], tools_of(tools))


def _is_content(item: Any) -> bool:
    parts = item.get("parts") if isinstance(item, dict) else None
    return isinstance(parts, list) and bool(parts) and all(isinstance(part, dict) and "type" not in part for part in parts)


def _messages(contents: Any) -> list[Message]:
    listed = contents if isinstance(contents, list) else [contents]
    if listed and not any(isinstance(item, dict) and "parts" in item for item in listed):  # parts or texts of one user message
        return read_turns([{"role": "user", "content": listed if len(listed) > 1 else listed[0]}]).messages if pieces_of(listed) else []
    if len(listed) == 1 and isinstance(listed[0], dict) and listed[0].get("role") is None:  # the API's default for a single content
        listed = [listed[0] | {"role": "user"}]
    return read_turns(listed, "").messages


def reply(body: Any) -> Reply | None:
    """Return the reply of a response, its chunks or one content; None for anything else. Of several candidates, the first counts."""
    if isinstance(body, list):
        chunks = bool(body) and all(isinstance(item, dict) and isinstance(item.get("candidates"), list) for item in body)
        return _candidates([item["candidates"] for item in body]) if chunks else None
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("candidates"), list):
        return _candidates([body["candidates"]])
    content = body.get("content")
    if isinstance(content, dict) and isinstance(content.get("parts"), list) and "role" not in body:
        return Reply(_answer(content["parts"]), finish_of(body.get("finish_reason"), body.get("finishReason")))
    if _is_content(body) and body.get("role") in ("model", None):
        return Reply(_answer(body["parts"]))
    return None


def _candidates(chunks: list[list[Any]]) -> Reply:
    parts: list[Any] = []
    finish = None
    for candidates in chunks:
        first = candidates[0] if candidates else {}
        if not isinstance(first, dict):
            raise Rejected("wrong_type", f"a candidate must be an object, not {type(first).__name__}")
        content = first["content"] if isinstance(first.get("content"), dict) else {}
        if not isinstance(content.get("parts"), list | None):
            raise Rejected("wrong_type", "the parts of a candidate must be a list")
        parts += content.get("parts") or []
        finish = finish_of(first.get("finish_reason"), first.get("finishReason")) or finish
    return Reply(_answer(parts), finish_of(finish, "incomplete") if len(chunks) > 1 else finish)


def _answer(parts: Any) -> Message | None:
    return answer_of([{"role": "assistant", "content": parts}], "") if parts else None
