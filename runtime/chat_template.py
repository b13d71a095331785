"""What chat templates expect of messages, and how the answers of a model name tool calls, derived from its own template.

Templates write a tool call as a JSON object between two marks, for example `<tool_call>{"name": …, "arguments": …}</tool_call>`. The marks
are found by rendering a call. An answer of a model is then text in which the calls stand between these marks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from ratchet.contracts.conversation import Message, text_of

Render: TypeAlias = Callable[[Sequence[Message], Sequence[dict[str, Any]] | None], str]
"""Renders messages and tools with a chat template. It may raise any exception of the template."""

_NAME, _KEY, _VALUE, _TEXT = "zq_name", "zq_key", "zq_value", "zq_text"
_TOOL = {
    "type": "function",
    "function": {"name": _NAME, "description": "", "parameters": {"type": "object", "properties": {_KEY: {"type": "string"}}}},
}
_ARGUMENTS = ("arguments", "parameters")


def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return messages in the form that templates expect: without nulls, text as a string, and arguments of calls as objects.

    In the API's form, arguments are text.
    """
    return [_plain(message) for message in messages]


def prompt_text(tokenizer: Any, messages: Sequence[Mapping[str, Any]], tools: Sequence[dict[str, Any]] | None = None) -> str:
    """Return a conversation with its tools as the text that the model continues. Raises whatever the chat template raises.

    The embedded server and the training jobs call it, so that both feed a model the same text before an answer.
    """
    plain = template_messages(messages)
    return str(tokenizer.apply_chat_template(plain, tools=tools or None, tokenize=False, add_generation_prompt=True))


def token_ids(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of a rendered text. Its special tokens are those that the chat template writes; none is added."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _plain(message: Mapping[str, Any]) -> Message:
    plain = {key: value for key, value in message.items() if value is not None}
    plain = {"role": message["role"], "content": "", **plain}
    if isinstance(plain["content"], list) and all(isinstance(part, dict) and part.get("type") == "text" for part in plain["content"]):
        plain["content"] = text_of(plain)
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_call(call) for call in plain["tool_calls"]]
    return plain


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    if isinstance(function.get("arguments"), str):
        with suppress(ValueError, RecursionError):  # invalid arguments can be the reason for the rejection of an answer
            arguments = json.loads(function["arguments"])
            function["arguments"] = arguments if isinstance(arguments, dict) else function["arguments"]
    return {**call, "function": function} if function else dict(call)


@dataclass(frozen=True)
class CallFormat:
    """How the answers of a model name tool calls."""

    begin: str
    """Text before a call, or before the first of several; empty if the whole answer is the call."""
    end: str
    """Text after a call, or after the last of several."""
    arguments: str
    """Key of the arguments in the object of a call."""


def call_format(render: Render) -> CallFormat | None:
    """Return the format of the template; None if it cannot render tool calls, or writes them in another way than as JSON objects."""
    asked = {"role": "user", "content": "?"}
    call = {"id": "call00000", "type": "function", "function": {"name": _NAME, "arguments": {_KEY: _VALUE}}}
    try:
        text = render([asked, {"role": "assistant", "content": _TEXT}], [_TOOL])
        called = render([asked, {"role": "assistant", "content": "", "tool_calls": [call]}], [_TOOL])
    except Exception:  # a template may raise anything
        return None
    head, found, tail = text.rpartition(_TEXT)
    place = _object_with_call(called, common_length(head, called))
    if not found or place is None:
        return None
    begin, end, arguments = place
    after = called[end:]
    ending = after[: len(after) - len(tail)] if tail and after.endswith(tail) else after
    return CallFormat(called[common_length(head, called) : begin].strip(), ending.strip(), arguments)


def common_length(one: str, other: str) -> int:
    """Return the number of characters with which both texts begin alike."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _object_with_call(text: str, start: int) -> tuple[int, int, str] | None:
    at = text.find("{", start)
    while at >= 0:
        with suppress(ValueError, RecursionError):
            found, end = json.JSONDecoder().raw_decode(text, at)
            key = next((key for key in _ARGUMENTS if isinstance(found, dict) and found.get(key) == {_KEY: _VALUE}), None)
            if key and found.get("name") == _NAME:
                return at, end, key
        at = text.find("{", at + 1)
    return None


def read_answer(text: str, form: CallFormat | None) -> Message:
    """Return the generated `text` as an assistant message. Its calls have the ids call_0, call_1, ….

    Text that is not completely valid calls, and text around them, is content: an invalid call is a wrong answer.
    """
    found = _calls(text, form) if form else None
    if not found:
        return {"role": "assistant", "content": text}
    content, calls = found
    return {"role": "assistant", "content": content, "tool_calls": [call | {"id": f"call_{at}"} for at, call in enumerate(calls)]}


def _calls(text: str, form: CallFormat) -> tuple[str, list[dict[str, Any]]] | None:
    if not form.begin:
        calls, end = _objects(text, 0, form)
        return ("", calls) if calls and text[end:].strip() in ("", form.end) else None
    content, at, calls = "", 0, []
    while (begin := text.find(form.begin, at)) >= 0:
        content += text[at:begin]
        found, end = _objects(text, begin + len(form.begin), form)
        rest = text[end:].lstrip()
        if not found or (form.end and not rest.startswith(form.end)):
            return None
        calls += found
        at = len(text) - len(rest) + len(form.end)
    return (content + text[at:]).strip(), calls


def _objects(text: str, start: int, form: CallFormat) -> tuple[list[dict[str, Any]], int]:
    """Return the calls whose objects begin at `start`, with only white space and commas between them, and where they end."""
    calls: list[dict[str, Any]] = []
    at = start
    while True:
        begin = len(text) - len(text[at:].lstrip(" \t\r\n,;"))
        try:
            found, end = json.JSONDecoder().raw_decode(text, begin)
        except (ValueError, RecursionError):
            return calls, at
        arguments = found.get(form.arguments, {}) if isinstance(found, dict) else None
        if not isinstance(arguments, dict) or not isinstance(found.get("name"), str) or not found["name"]:
            return [], at
        written = json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)
        calls.append({"id": "", "type": "function", "function": {"name": found["name"], "arguments": written}})
        at = end
