"""Bodies of requests and replies: finds the dialect of each, and the tools that a record names beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.exchange import Record, Reply, Request
from ratchet.materializer.dialects.canonical.tools import tools_of, unwrapped
from ratchet.materializer.dialects.conversations import anthropic, gemini, generators, langchain, openai_chat, plain_text, responses, vercel
from ratchet.materializer.dialects.conversations.generators import streamed
from ratchet.materializer.dialects.conversations.plain_text import inner_text, unwrapped_text
from ratchet.materializer.dialects.conversations.reply_shapes import has_wrapper_keys, is_error, is_reply
from ratchet.materializer.dialects.conversations.request_keys import check_beside
from ratchet.materializer.dialects.otlp_attributes import Attributes
from ratchet.materializer.dialects.values import dump

Found = TypeVar("Found", Request, Reply)

_TOOLS = ("gen_ai.tool.definitions", "gen_ai.request.tools", "ai.prompt.tools", "langfuse.observation.tools", "mlflow.chat.tools")
_BEGINNINGS_OF_STREAMS = frozenset("dei:{0f")
_MODULES = (gemini, responses, anthropic, langchain, vercel, openai_chat)
"""Dialects of bodies, the most specific first."""
_REQUESTS: tuple[Callable[[Any], Request | None], ...] = tuple(module.request for module in _MODULES)
_REPLIES: tuple[Callable[[Any], Reply | None], ...] = (generators.reply, *(module.reply for module in _MODULES))


def request_of(body: Any) -> Request | None:
    """Return the request that a body describes; None if it is empty. Raises Rejected `unknown_wrapper`, or why it cannot be read."""
    value = unwrapped_text(body)
    if value in (None, "", [], {}):
        return None
    if isinstance(value, str):
        return plain_text.request(value)
    if not isinstance(value, dict | list):
        raise Rejected("wrong_type", f"the input must be a list, an object or text, not {type(value).__name__}")
    if isinstance(value, dict):
        check_beside(value)
    return _read(value, _REQUESTS, "input")


def reply_of(body: Any, own_json: bool = True) -> Reply | None:
    """Return the reply that a body describes; None if it is empty. Raises Rejected as `request_of`.

    JSON that is no known reply is the application's own answer (`reply_shapes`). Without `own_json`, it is rejected, because the body must
    be messages.
    """
    text = body if isinstance(body, str) else None
    stream = streamed(text) if text is not None and text.lstrip()[:1] in _BEGINNINGS_OF_STREAMS else None
    value = stream if stream is not None else unwrapped_text(body)
    if value in (None, "", [], {}):
        return plain_text.own_answer(text) if own_json and text is not None and value in ([], {}) else None
    if isinstance(value, str):
        return plain_text.reply(value)
    if not isinstance(value, dict | list):
        raise Rejected("wrong_type", f"the output must be a list, an object or text, not {type(value).__name__}")
    if is_error(value):
        raise Rejected("error_reply", "the output is the error of an API and no answer")
    if is_reply(value) or not own_json:
        return _read(value, _REPLIES, "output")
    if text is not None:
        return plain_text.own_answer(inner_text(text))
    if has_wrapper_keys(value):
        raise Rejected("unknown_wrapper", "the output is a list or an object in no known form")
    return plain_text.own_answer(dump(value))


def _read(value: dict[str, Any] | list[Any], readers: Sequence[Callable[[Any], Found | None]], what: str) -> Found:
    found = next((one for read in readers if (one := read(value)) is not None), None)
    if found is None:
        raise Rejected("unknown_wrapper", f"the {what} is a list or an object in no known form")
    return found


def tools_beside(record: Record) -> list[dict[str, Any]]:
    """Return the tools that the attributes of a call name, in the form of any dialect. Raises Rejected `unknown_tool`."""
    attributes = record.attributes
    for name in _TOOLS:
        if found := tools_of(attributes.get(name)):
            return found
    if found := tools_of([item.get("tool.json_schema") for item in attributes.indexed("llm.tools")]):
        return found
    if found := tools_of(attributes.indexed("llm.request.functions")):
        return found
    return _of_parameters(attributes)


def _of_parameters(attributes: Attributes) -> list[dict[str, Any]]:
    for name in ("llm.invocation_parameters", "model_request_parameters"):
        given = unwrapped(attributes.get(name))
        if isinstance(given, dict):
            named = (given.get(key) for key in ("tools", "functions", "function_tools", "output_tools"))
            if found := [tool for value in named for tool in tools_of(value)]:
                return found
    return []
