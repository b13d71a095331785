"""The one rule for reasoning: it is left out of all stored messages of a model, in every dialect.

It is no part of the answer that a caller gets, and chat templates drop it from earlier turns. Parts and keys of reasoning are left out
where parts are read (`parts`, `turns`). Here it is the reasoning inside of a text: `<think>…</think>` or the same with other tags of
models at its beginning, all channels of the Harmony format but the final one, or a beginning that ends with `</think>` at the start of a
line, whose opening tag the chat template had written. A tag elsewhere is text.
"""

from __future__ import annotations

import re

from ratchet.contracts.conversation import Message

_TAGS = "think|thinking|reasoning|thought|seed:think"
_INLINE = re.compile(rf"\s*(?:<({_TAGS})>.*?</\1>|\[THINK\].*?\[/THINK\]|◁think▷.*?◁/think▷)\s*", re.DOTALL)
_OPEN = re.compile(rf"\s*(?:<({_TAGS})>(?!.*</\1>)|\[THINK\](?!.*\[/THINK\])|◁think▷(?!.*◁/think▷))", re.DOTALL)
_HARMONY = ("<|channel|>", "<|start|>assistant")
_BEGINNINGS = ("<thought>", "[THINK]", *_HARMONY)
_FINAL = re.compile(r"<\|channel\|>final[^<]*<\|message\|>(.*?)(?:<\|(?:return|end)\|>|\Z)", re.DOTALL)
_CLOSED = re.compile(r"(?:(?!<think>).)*?\n\s*</think>[ \t]*(?:\n\s*|$)", re.DOTALL)


def without_reasoning(message: Message) -> list[Message]:
    """Return a message without the reasoning in its text; an empty list if nothing else is in it."""
    content = message["content"]
    if message["role"] != "assistant":
        return [message]
    if isinstance(content, str):
        shown = _shown(content)
        if shown is content:
            return [message]
        return [message | {"content": shown}] if shown.strip() or message.get("tool_calls") else []
    parts = list(content)
    for place, part in enumerate(parts):
        if isinstance(part.get("text"), str):
            parts[place] = part | {"text": _shown(part["text"])}
            break
    return [message | {"content": parts}]


def may_reason(text: str) -> bool:
    """Return whether a text may have reasoning in it."""
    return "think" in text or "<reasoning>" in text or text.startswith(_BEGINNINGS)


def _shown(text: str) -> str:
    plain = text.lstrip() if text[:1].isspace() else text
    if not may_reason(plain):
        return text
    if plain.startswith(_HARMONY):
        final = _FINAL.search(plain)
        return final[1] if final else ""  # the answer was cut before its final channel
    while found := _INLINE.match(text):
        text = text[found.end() :]
    if _OPEN.match(text):
        return ""  # the answer was cut within its reasoning
    closed = _CLOSED.match(text) if "</think>" in text else None
    return text[closed.end() :] if closed else text
