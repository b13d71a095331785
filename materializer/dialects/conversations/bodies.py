"""Bodies of requests and replies: finds the dialect of each, and the tools that a record names beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.exchange import Record, Reply, Request
from ratchet.materializer.dialects.canonical.tools import tools_of, unwrapped
from ratchet.materializer.dialects.conversations import anthropic, gemini, langchain, openai_chat, plain_text, responses, vercel
from ratchet.materializer.dialects.conversations.plain_text import unwrapped_text
from ratchet.materializer.dialects.otlp_attributes import Attributes

Found = TypeVar("Found", Request, Reply)

_MODULES = (gemini, responses, anthropic, langchain, vercel, openai_chat)
"""Dialects of bodies, the most specific first."""
_REQUESTS: tuple[Callable[[Any], Request | None], ...] = tuple(module.request for module in _MODULES)
_REPLIES: tuple[Callable[[Any], Reply | None], ...] = tuple(module.reply for module in _MODULES)


def request_of(body: Any) -> Request | None:
    """Return the request that a body describes; None if it is empty. Raises Rejected `unknown_wrapper`, or why it cannot be read."""
    return _read(body, plain_text.request, _REQUESTS, "input")


def reply_of(body: Any) -> Reply | None:
    """Return the reply that a body describes; None if it is empty. Raises Rejected as `request_of`."""
    return _read(body, plain_text.reply, _REPLIES, "output")


def _read(body: Any, of_text: Callable[[str], Found | None], readers: Sequence[Callable[[Any], Found | None]], what: str) -> Found | None:
    value = unwrapped_text(body)
    if value in (None, "", [], {}):
        return None
    if isinstance(value, str):
        return of_text(value)
    if not isinstance(value, dict | list):
        raise Rejected("wrong_type", f"the {what} must be a list, an object or text, not {type(value).__name__}")
    found = next((one for read in readers if (one := read(value)) is not None), None)
    if found is None:
        raise Rejected("unknown_wrapper", f"the {what} is a list or an object in no known form")
    return found


def tools_beside(record: Record) -> list[dict[str, Any]]:
    """Return the tools that the attributes of a call name, in the form of any dialect. Raises Rejected `unknown_tool`."""
    attributes = record.attributes
    for name in ("gen_ai.tool.definitions", "gen_ai.request.tools", "ai.prompt.tools", "langfuse.observation.tools"):
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
