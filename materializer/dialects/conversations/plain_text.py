"""Plain text: a prompt and an answer without any structure.

Text that shows another structure, such as a transcript or the printed form of an object, is rejected: to take it apart would be a guess.
"""

from __future__ import annotations

import re
from typing import Any

from ratchet.contracts.conversation import Conversation
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.exchange import Record, Reply, Request, conversation
from ratchet.materializer.dialects.canonical.tools import unwrapped
from ratchet.materializer.dialects.values import clean

_TRANSCRIPT = re.compile(r"\s*(?:system|developer|user|human|assistant|ai|tool|model|bot)\s*:\s", re.IGNORECASE)
_TURN = re.compile(r"^\s*(?:user|human|assistant|ai|tool)\s*:", re.IGNORECASE | re.MULTILINE)
_TEMPLATE = re.compile(r"<\|(?:im_start|start_header_id|user|assistant|system)\|?>|\[INST\]|<start_of_turn>")
_REPR = re.compile(
    r"\s*(?:[\[(]\s*)*(?:"
    r"\{\s*'(?:role|content|type|choices|messages|parts|candidates|output|generated_text|tool_calls|id)'\s*:"
    r"|(?:role|content|type|name|id)=(?:'|\"|<|\[)"
    r"|<[\w.]+ object at 0x"
    r"|(?:[A-Z]\w*)?(?:Message|MessageChunk|Completion|ChatCompletion|Response|Generation|Result|Choice|Candidate|Content|Part|Block|Call"
    r"|Document|Prompt|PromptValue|Item|TextPart|Chunk)\(\w+="
    r")"
)
"""Printed objects of the libraries that call models."""
_JSON = re.compile(r'\s*(?:\{\s*"|\[\s*[{\["])')
_BODY = re.compile(
    r'[\s\[{]*"(?:role|choices|candidates|object|output|messages|contents|tool_calls|toolCalls|generations|parts|lc|id|model|type|created)"\s*:'
)
"""The beginning of a JSON body of an API."""


def read(record: Record) -> Conversation | None:
    """Read a record whose input and output are text."""
    if not isinstance(record.input, str) and not isinstance(record.output, str):
        return None
    if isinstance(unwrapped_text(record.input), dict | list) or isinstance(unwrapped_text(record.output), dict | list):
        return None
    return conversation(request(record.input), reply(record.output))


def unwrapped_text(value: Any) -> Any:
    """Return a value, parsed if it is text that is JSON of an object or list, also if it was encoded repeatedly.

    Text that only begins like JSON is returned unchanged.
    """
    for _ in range(4):
        if not isinstance(value, str):
            return value
        text = value.strip()
        if text[:1] not in ("{", "[", '"'):
            return value
        try:
            inner = unwrapped(text) if text[0] != '"' else _quoted(text)
        except Rejected as error:
            if error.reason == "too_deep":
                raise
            return value
        if inner is None:
            return value
        value = inner
    return value


def inner_text(text: str) -> str:
    """Return the JSON text of the object or list that `unwrapped_text` finds in a text, without the strings around it."""
    for _ in range(4):
        plain = text.strip()
        if plain[:1] != '"':
            break
        try:
            inner = _quoted(plain)
        except Rejected:
            break
        if inner is None:
            break
        text = inner
    return text


def _quoted(text: str) -> Any:
    """Return the object or list that a JSON string contains; None for a string with other text, which a user may have quoted."""
    inner = unwrapped("[" + text + "]")[0]
    return inner if isinstance(inner, str) and inner.strip()[:1] in ("{", "[", '"') and len(inner) < len(text) else None


def request(text: Any) -> Request | None:
    """Return a prompt as one message of the user. Raises Rejected `transcript`, `repr` or `malformed_json`."""
    if not isinstance(text, str) or not text.strip():
        return None
    _check(text)
    if _TRANSCRIPT.match(text) or len(_TURN.findall(text)) > 1 or _TEMPLATE.search(text):
        raise Rejected("transcript", "the prompt is several messages in one text, so their roles would be a guess")
    return Request([{"role": "user", "content": clean(text)}])


def reply(text: Any) -> Reply | None:
    """Return an answer. Raises Rejected as `request`."""
    return own_answer(text) if isinstance(text, str) and is_reply(text) else None


def is_reply(text: str) -> bool:
    """Return whether a text is an answer, and not empty or a word for nothing. Raises Rejected as `request`."""
    if text.isspace() or not text or text.strip() in ("None", "null", "undefined"):
        return False
    _check(text)
    return True


def own_answer(text: str) -> Reply:
    """Return a text as the answer, as it is."""
    return Reply({"role": "assistant", "content": clean(text)})


def _check(text: str) -> None:
    """Raise Rejected if a text is the printed form of a library's object, or a JSON body of which a part is missing.

    Other text may begin like code or JSON, which people and models write, too.
    """
    # Each form that an expression knows has one of the signs; most texts have none.
    if ("=" in text or "{" in text or "<" in text) and _REPR.match(text):
        raise Rejected("repr", "the text is the printed form of an object, which is not read")
    if ("{" in text or "[" in text) and _JSON.match(text) and _BODY.match(text):
        raise Rejected("malformed_json", "the text begins like the JSON body of a request or reply and is not valid JSON")
