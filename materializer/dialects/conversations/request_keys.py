"""Keys beside the messages of a request. A key that may hold a part of the prompt rejects the record, so that no part is lost silently."""

from __future__ import annotations

import re
from typing import Any

from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.tools import named

_HOLDERS = ("messages", "contents", "prompt", "prompts", "input")
_CONTENT = re.compile(
    r"^(?:context|contexts|documents?|docs|passages?|chunks|sources|knowledge|history|chat_?history|conversation_?history|memory|memories"
    r"|query|question|questions|user_?(?:input|prompt|message|query)|input_?(?:text|data|documents?)|text|examples?|few_?shots?"
    r"|system_?prompts?|system_?messages?|developer_?(?:prompt|message)|preamble|template|attachments|images?|files?|audio|suffix"
    r"|retrieved\w*|search_results|background|persona|instruction|prompt_variables)$",
    re.IGNORECASE,
)
"""Names of parts of a prompt that no API has, or that are not read."""
_READ = ("system", "instructions", "system_instruction", "systemInstruction", "tools", "functions", "toolConfig", "config")


def check_beside(body: dict[str, Any]) -> None:
    """Raise Rejected `unknown_wrapper` if a request has, beside its messages, a key that may hold a part of the prompt."""
    holder = next((key for key in _HOLDERS if body.get(key) not in (None, "", [], {})), None)
    if holder is None:
        return
    for key, value in body.items():
        if value in (None, "", [], {}) or key == holder or key in _READ or (key == "text" and _is_format(value)):
            continue
        if isinstance(value, str | list | dict) and _CONTENT.match(str(key)):
            raise Rejected("unknown_wrapper", f"the input has the key {named(key)} beside {holder!r}, which may be a part of the prompt")
        if holder in ("prompt", "input") and key in _HOLDERS:
            raise Rejected("unknown_wrapper", f"the input has both {holder!r} and {named(key)}")


def _is_format(value: Any) -> bool:
    """Return whether a value is the setting `text` of the Responses API: the format and the length of the answer."""
    return isinstance(value, dict) and value.keys() <= {"format", "verbosity"}
