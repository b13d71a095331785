"""OpenLLMetry (Traceloop): one attribute for each field of each message, `gen_ai.prompt.N.*` and `gen_ai.completion.N.*`."""

from __future__ import annotations

from typing import Any

from ratchet.contracts.conversation import Conversation
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.canonical.exchange import Record, Reply, Request, answer_of, conversation, finish_of
from ratchet.materializer.dialects.canonical.turns import messages_of, with_split_calls
from ratchet.materializer.dialects.conversations.bodies import tools_beside
from ratchet.materializer.dialects.conversations.otel_genai import unwrapped_parts
from ratchet.materializer.dialects.otlp_attributes import Attributes

_OF_PROVIDER = ("web_search_call", "file_search_call", "computer_call", "code_interpreter_call", "image_generation_call", "mcp_call")
"""Items of the Responses API which OpenLLMetry writes like calls of functions."""


def read(record: Record) -> Conversation | None:
    """Read the indexed attributes of prompts and completions."""
    for prompts, completions in (("gen_ai.prompt", "gen_ai.completion"), ("llm.prompts", "llm.completions")):
        asked, answered = record.attributes.listed(prompts), record.attributes.listed(completions)
        if asked or answered:
            return conversation(_request(asked), _reply(answered), tools_beside(record))
    return None


def _request(fields: list[dict[str, Any]]) -> Request | None:
    messages = with_split_calls([message for item in fields for message in messages_of(_item(item))])
    return Request(messages) if messages else None


def _reply(fields: list[dict[str, Any]]) -> Reply | None:
    """Several completions are choices, of which the first counts."""
    return Reply(answer_of([_item(fields[0]) | {"role": "assistant"}]), finish_of(fields[0].get("finish_reason"))) if fields else None


def _item(fields: dict[str, Any]) -> dict[str, Any]:
    flat = Attributes.of_values(fields)
    calls = flat.listed("tool_calls")
    whole = fields.get("tool_calls")
    if "function_call.name" in fields:
        calls = [{"name": fields["function_call.name"], "arguments": fields.get("function_call.arguments")}]
    known = ("role", "content", "finish_reason", "tool_call_id", "name", "reasoning", "refusal", "index")
    other = [key for key in fields if key not in known and not key.startswith(("tool_calls", "function_call."))]
    if other:
        raise Rejected("unknown_part", "a message has a field that is not known")
    if any(call.get("name") in _OF_PROVIDER for call in calls):
        raise Rejected("unknown_part", "a tool call that the provider executes is no function call")
    item = {key: fields[key] for key in ("role", "tool_call_id", "name") if fields.get(key) is not None}
    if whole is None and not calls and "content" not in fields:
        return item
    return item | {"content": unwrapped_parts(fields.get("content")), "tool_calls": calls or whole}
