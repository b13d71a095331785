"""Messages of Agno in their printed form, `role='user' content='…' name=None …`.

The printed form alone is never read. It only completes indexed messages of the same record, of which the exporter has lost some.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from ratchet.contracts.conversation import Message
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.turns import read_turns

_KEY = re.compile(r"\s*([a-z_]+)=")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_WORD = re.compile(r"[\w.+-]+")
_OPEN, _CLOSE = "([{<", ")]}>"
_READ = ("role", "content", "name", "tool_call_id", "tool_calls", "tool_name")
_EMPTY = ("audio", "images", "videos", "files", "audio_output", "image_output")


def printed_messages(body: Any) -> list[Message] | None:
    """Return the messages of a body whose messages are printed; None if it is no such body, or if it cannot be read completely."""
    listed = body.get("messages") if isinstance(body, dict) else None
    if not isinstance(listed, list) or not listed or not all(isinstance(item, str) for item in listed):
        return None
    try:
        items = [_fields(text) for text in listed]
        if any(item is None for item in items):
            return None
        return read_turns([item for item in items if item is not None]).messages
    except (Rejected, ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _fields(text: str) -> dict[str, Any] | None:
    """Return the fields of one printed message; None unless the whole text is read."""
    found: dict[str, Any] = {}
    at = 0
    while match := _KEY.match(text, at):
        end = _value_end(text, match.end())
        raw, key = text[match.end() : end], match[1]
        if end == match.end() or key in found:
            return None
        if key in _EMPTY and raw != "None":
            return None
        found[key] = ast.literal_eval(raw) if key in _READ else None
        at = end
    if text[at:].strip() or "role" not in found or "content" not in found:
        return None
    kept = {key: value for key, value in found.items() if key in _READ and value is not None}
    return {"content": None, **kept}


def _value_end(text: str, start: int) -> int:
    """Return where the printed value that begins at `start` ends: a string, a word, or brackets with their content."""
    depth, at = 0, start
    while at < len(text):
        string = _STRING.match(text, at) if text[at] in "'\"" else None
        if string:
            at = string.end()
        elif text[at] in _OPEN:
            depth, at = depth + 1, at + 1
        elif text[at] in _CLOSE:
            depth, at = depth - 1, at + 1
        elif depth:
            at += 1
        else:
            word = _WORD.match(text, at)
            if word is None:
                return at
            at = word.end()
            if at < len(text) and text[at] in _OPEN:
                continue
            return at
        if depth == 0:
            return at
        if depth < 0:
            return start
    return at
