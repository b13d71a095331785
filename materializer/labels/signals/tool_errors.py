"""Recognises a tool's result that reports an error, by closed lists of keys and of beginnings."""

from __future__ import annotations

from typing import Any

import orjson

_FLAGS = ("is_error", "isError")
_DETAILS = ("error", "errors", "exception")
_SUCCESSES = ("success", "ok", "succeeded")
_FAILED = frozenset({"error", "failed", "failure"})
_BEGINNINGS = (
    *("error:", "error executing ", "error calling ", "error invoking ", "exception:", "traceback (most recent call last)"),
    *("toolexception", "invalid arguments", "invalid tool call", "unknown tool", "tool not found"),
)
"""How the text of a failed tool begins, in lower case."""


def reports_error(result: str) -> bool:
    """Return whether the text of a tool's result reports an error of the call."""
    text = result.strip()
    if text[:1] == "{":
        try:
            found = orjson.loads(text)
        except orjson.JSONDecodeError:
            return False
        return isinstance(found, dict) and _is_error(found)
    return text[:60].casefold().startswith(_BEGINNINGS)


def _is_error(found: dict[str, Any]) -> bool:
    if any(found.get(key) is True for key in _FLAGS) or any(found.get(key) is False for key in _SUCCESSES):
        return True
    status = found.get("status")
    return any(found.get(key) for key in _DETAILS) or (isinstance(status, str) and status.casefold() in _FAILED)
