"""The one rule for reasoning: it is left out of all stored messages of a model, in every dialect.

It is no part of the answer that a caller gets, and chat templates drop it from earlier turns. Parts and keys of reasoning are left out
where parts are read (`parts`, `turns`). Here it is the reasoning inside of a text: `<think>…</think>` or `<thinking>…</thinking>` at its
beginning, or a beginning that ends with `</think>` at the start of a line, whose opening tag the chat template had written. A tag
elsewhere is text.
"""

from __future__ import annotations

import re

from ratchet.contracts.conversation import Message

_INLINE = re.compile(r"\s*<(think|thinking|reasoning)>.*?</\1>\s*", re.DOTALL)
_OPEN = re.compile(r"\s*<(think|thinking|reasoning)>(?!.*</\1>)", re.DOTALL)
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


def _shown(text: str) -> str:
    if "think" not in text and "<reasoning>" not in text:
        return text
    while found := _INLINE.match(text):
        text = text[found.end() :]
    if _OPEN.match(text):
        return ""  # the answer was cut within its reasoning
    closed = _CLOSED.match(text) if "</think>" in text else None
    return text[closed.end() :] if closed else text
