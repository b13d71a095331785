"""Tells the reply of an API from an application's own JSON answer, by the complete shape of known replies and never by one key.

The rule, for an answer that is JSON:
- it has the complete shape of a known reply: it is read as that reply;
- it is text, and has no such shape: the text itself is the answer, unchanged;
- it is an object that the record has parsed, without such a shape: its compact JSON is the answer. If it has a key by which wrappers are
  made (`choices`, `role`, `output` …), it is doubtful and quarantined (`unknown_wrapper`).
The error body of an API is no answer (`error_reply`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ROLES = frozenset(
    (
        "system", "developer", "user", "human", "assistant", "ai", "model", "tool", "function", "unknown",
    )
)  # fmt: skip
_MESSAGE_KEYS = frozenset(
    (
        "role", "content", "parts", "tool_calls", "toolCalls", "function_call", "refusal", "name", "id", "type", "finish_reason",
        "annotations", "audio", "reasoning", "reasoning_content", "thinking", "images", "tool_call_id", "status", "additional_kwargs",
        "response_metadata", "usage_metadata", "invalid_tool_calls", "provider_specific_fields", "metadata", "reasoning_details",
        "tool_name", "phase", "example", "stop_reason", "model", "usage", "stop_sequence", "thinking_blocks", "index", "logprobs",
        "artifact", "channel", "container",
    )
)  # fmt: skip
_GENERAL = frozenset(("role", "content", "parts", "name", "id", "type", "status", "model", "index", "metadata", "audio", "images"))
_BESIDE_CONTENT = _MESSAGE_KEYS - _GENERAL
"""Keys that only a message of an API has."""
_LANGCHAIN = frozenset(
    (
        "human", "ai", "system", "tool", "AIMessage", "AIMessageChunk", "HumanMessage", "SystemMessage", "ToolMessage",
    )
)  # fmt: skip
_EVENTS = ("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop", "ping")
_OF_CONVERSE = ("messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata")
_ITEMS = ("message", "function_call", "function_call_output", "reasoning")
_OF_VERCEL = frozenset(
    (
        "text", "toolCalls", "tool_calls", "reasoning", "finishReason", "object", "files", "role", "content", "usage",
    )
)  # fmt: skip
_OF_DSPY = frozenset(("text", "reasoning_content", "logprobs", "citations"))
_COMPLETION = frozenset(
    (
        "choices", "id", "object", "created", "model", "usage", "system_fingerprint", "service_tier", "provider",
    )
)  # fmt: skip
_CHOICE = frozenset(
    (
        "index", "finish_reason", "logprobs", "message", "delta", "text", "stop_reason", "native_finish_reason",
        "content_filter_results",
    )
)  # fmt: skip
_WRAPPERS = frozenset(
    (
        "role", "choices", "candidates", "generations", "messages", "output", "outputs", "tool_calls", "toolCalls", "function_call",
        "lc", "functionCall", "toolCallId", "kwargs", "response_metadata", "finish_reason", "finishReason", "stop_reason", "stopReason",
        "additional_kwargs", "completion", "generated_text", "toolUse", "tool_use", "delta", "response", "llm_output", "result",
        "results",
    )
)  # fmt: skip


def is_error(value: Any) -> bool:
    """Return whether a value is the error body of an API."""
    if not isinstance(value, Mapping) or not isinstance(value.get("error"), Mapping):
        return False
    inner = value["error"]
    alone = set(value) <= {"error", "request_id", "status"} and bool({"type", "code", "status"} & inner.keys())
    return isinstance(inner.get("message"), str) and (value.get("type") == "error" or alone)


def has_wrapper_keys(value: Any) -> bool:
    """Return whether an object, or an object of a list, has a key by which wrappers of replies are made."""
    items = value if isinstance(value, list) else [value]
    return any(isinstance(item, Mapping) and bool(_WRAPPERS & item.keys()) for item in items)


def is_reply(value: Any) -> bool:
    """Return whether a value has the complete shape of a known reply, or the mark of one that only its reader can judge."""
    if isinstance(value, list):
        return _is_list(value)
    return isinstance(value, dict) and any(test(value) for test in _SHAPES)


def _is_list(items: list[Any]) -> bool:
    if len(items) == 1 and isinstance(items[0], list):
        return _is_list(items[0])
    if not items or not all(isinstance(item, dict) for item in items):
        return False
    return any(
        all(test(item) for item in items)
        for test in (_is_chunk, _is_message, _is_item, _is_part, _is_call, _of_tgi, _of_gemini, is_converse_event, is_of_dspy, is_choice)
    )


def _is_chunk(item: dict[str, Any]) -> bool:
    kind = item.get("type")
    streamed = isinstance(kind, str) and (kind in _EVENTS or kind.startswith("response."))
    return streamed or item.get("object") in ("chat.completion.chunk", "text_completion.chunk") or (_of_ollama(item) and "done" in item)


def _is_message(item: dict[str, Any]) -> bool:
    if item.get("lc") is not None and item.get("type") == "constructor":
        return isinstance(item.get("kwargs"), dict)
    kind = item.get("type")
    if isinstance(kind, str) and kind in _LANGCHAIN:
        return isinstance(item.get("data"), dict) or ("content" in item and _is_content(item["content"]))
    role = item.get("role")
    if not isinstance(role, str) or role.lower() not in _ROLES or not item.keys() <= _MESSAGE_KEYS:
        return False
    if isinstance(item.get("parts"), list):
        return all(isinstance(part, dict | str) for part in item["parts"])
    called = any(_are_calls(item.get(key)) for key in ("tool_calls", "toolCalls")) or isinstance(item.get("function_call"), dict)
    return called or isinstance(item.get("refusal"), str) or ("content" in item and _is_content(item["content"]))


def _is_content(value: Any) -> bool:
    if isinstance(value, dict):  # Gemini's content inside of a message
        return isinstance(value.get("parts"), list) or isinstance(value.get("text"), str) or isinstance(value.get("type"), str)
    return value is None or isinstance(value, str) or (isinstance(value, list) and all(isinstance(part, dict | str) for part in value))


def _is_item(item: dict[str, Any]) -> bool:
    kind = item.get("type")
    if kind not in _ITEMS:
        return False
    if kind == "message":
        return isinstance(item.get("role"), str) and isinstance(item.get("content"), list)
    if kind == "function_call":
        return isinstance(item.get("name"), str) and "arguments" in item
    return "output" in item if kind == "function_call_output" else "summary" in item or "content" in item or "encrypted_content" in item


def _is_part(item: dict[str, Any]) -> bool:
    kind = item.get("type")
    if kind in ("text", "output_text"):
        return isinstance(item.get("text", item.get("content")), str)
    if kind in ("thinking", "reasoning", "redacted_thinking"):
        return True
    if kind is None and len(item) == 1:
        return isinstance(item.get("toolUse"), dict) or isinstance(item.get("functionCall"), dict)
    return kind in ("tool_use", "tool-call", "tool_call") and any(isinstance(item.get(key), str) for key in ("name", "toolName"))


def _are_calls(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) and _is_call(one) for one in value)


def _is_call(item: dict[str, Any]) -> bool:
    if isinstance(item.get("toolName"), str):
        return "toolCallId" in item
    function = item.get("function")
    if isinstance(function, dict):
        return isinstance(function.get("name"), str)
    called = isinstance(item.get("name"), str) and bool({"args", "arguments"} & item.keys())
    return called and bool({"id", "type"} & item.keys())


def _of_chat(body: dict[str, Any]) -> bool:
    choices = body.get("choices")
    if not isinstance(choices, list):
        return False
    if str(body.get("object")).startswith(("chat.completion", "text_completion")):
        return True
    found = [one for one in choices if isinstance(one, dict)]
    if not found or len(found) < len(choices):
        return False
    if all(isinstance(one.get("message", one.get("delta")), dict) for one in found):
        return True
    told = all(one.keys() <= _CHOICE and ("finish_reason" in one or "text" not in one) for one in found)
    return told and body.keys() <= _COMPLETION


def is_choice(item: dict[str, Any]) -> bool:
    """Return whether an object is one of the choices of a completion, without the completion."""
    message = item.get("message")
    return isinstance(message, dict) and _is_message(message) and "finish_reason" in item and item.keys() <= _CHOICE


def _of_responses(body: dict[str, Any]) -> bool:
    if body.get("object") == "response" or (str(body.get("type")).startswith("response.") and isinstance(body.get("response"), dict)):
        return True
    if _is_item(body) and body.get("type") == "function_call":
        return True
    output = body.get("output")
    return isinstance(output, list) and bool(output) and all(isinstance(item, dict) and _is_item(item) for item in output)


def _of_anthropic(body: dict[str, Any]) -> bool:
    content = body.get("content")
    if not isinstance(content, list):
        return False
    typed = all(isinstance(part, dict) and (isinstance(part.get("type"), str) or _is_part(part)) for part in content)
    called = typed and any(_is_part(part) and "text" not in part for part in content)
    return typed and (body.get("type") == "message" or "stop_reason" in body or called)


def _of_converse(body: dict[str, Any]) -> bool:
    output = body.get("output")
    message = output.get("message") if isinstance(output, dict) else None
    return isinstance(message, dict) and isinstance(message.get("content"), list) and isinstance(message.get("role"), str)


def _of_gemini(body: dict[str, Any]) -> bool:
    candidates = body.get("candidates")
    if isinstance(candidates, list):
        marks = ("content", "finishReason", "finish_reason")
        return not candidates or all(isinstance(one, dict) and any(key in one for key in marks) for one in candidates)
    content = body.get("content")
    if isinstance(content, dict) and isinstance(content.get("parts"), list):
        return all(isinstance(part, dict) for part in content["parts"])
    parts = body.get("parts")
    return isinstance(parts, list) and bool(parts) and body.keys() <= {"parts", "role"} and all(map(_of_gemini_part, parts))


def _of_gemini_part(part: Any) -> bool:
    marks = ("functionCall", "function_call", "functionResponse", "function_response", "inlineData", "thought")
    return isinstance(part, dict) and (isinstance(part.get("text"), str) or any(mark in part for mark in marks))


def _of_ollama(body: dict[str, Any]) -> bool:
    if not isinstance(body.get("done"), bool) or not isinstance(body.get("model"), str):
        return False
    return isinstance(body.get("response"), str) or isinstance(body.get("message"), dict)


def _of_message_wrapper(body: dict[str, Any]) -> bool:
    """A message of the chat API in a wrapper: Ollama, Cohere, a choice by itself, the state of an agent."""
    message, messages = body.get("message"), body.get("messages")
    if isinstance(message, dict) and "role" not in body:
        return _is_message(message)
    if isinstance(messages, list) and messages:
        return all(isinstance(one, dict) and _is_message(one) for one in messages)
    return isinstance(body.get("output"), dict) and _is_message(body["output"])


def _of_langchain(body: dict[str, Any]) -> bool:
    generations = body.get("generations")
    return isinstance(generations, list) and all(isinstance(one, dict | list) for one in generations)


def _without_role(body: dict[str, Any]) -> bool:
    """A message whose role the exporter leaves out: tool calls, or content beside another key of messages only."""
    if not body.keys() <= _MESSAGE_KEYS or "role" in body:
        return False
    calls = [body[key] for key in ("tool_calls", "toolCalls") if body.get(key)]
    if calls:
        return all(map(_are_calls, calls))
    return "content" in body and _is_content(body["content"]) and bool(_BESIDE_CONTENT & body.keys())


def _of_vercel(body: dict[str, Any]) -> bool:
    if not body.keys() <= _OF_VERCEL or not isinstance(body.get("text", ""), str):
        return False
    calls = body.get("toolCalls", body.get("tool_calls"))
    return (isinstance(body.get("finishReason"), str) and ("text" in body or _are_calls(calls))) or (
        isinstance(calls, list) and (not calls or _are_calls(calls)) and ("text" in body or bool(calls))
    )


def _of_tgi(body: dict[str, Any]) -> bool:
    """Text Generation Inference, and pipelines of Transformers, which repeat the messages of a chat."""
    given = body.get("generated_text")
    is_chat = isinstance(given, list) and bool(given) and all(isinstance(one, dict) and _is_message(one) for one in given)
    return (isinstance(given, str) or is_chat) and body.keys() <= {"generated_text", "details", "index"}


def is_converse_event(item: dict[str, Any]) -> bool:
    """Return whether an object is an event of Bedrock's ConverseStream."""
    return len(item) == 1 and all(key in _OF_CONVERSE and isinstance(value, dict) for key, value in item.items())


def is_of_dspy(item: dict[str, Any]) -> bool:
    """Return whether an object is an output of a model of DSPy that reasons. Without reasoning, the output is a text."""
    return isinstance(item.get("text"), str) and isinstance(item.get("reasoning_content"), str) and item.keys() <= _OF_DSPY


def _of_cohere(body: dict[str, Any]) -> bool:
    """A reply of version 1 of Cohere's API."""
    return isinstance(body.get("text"), str) and isinstance(body.get("generation_id"), str) and bool({"response_id", "meta"} & body.keys())


def _of_llama_cpp(body: dict[str, Any]) -> bool:
    is_told = bool({"tokens_predicted", "generation_settings"} & body.keys())
    return isinstance(body.get("content"), str) and isinstance(body.get("stop"), bool) and is_told


def _of_bedrock(body: dict[str, Any]) -> bool:
    """Llama and Titan on Bedrock, Anthropic's text completions, and watsonx."""
    results = body.get("results")
    titan = isinstance(results, list) and bool(results) and all(isinstance(one, dict) and "outputText" in one for one in results)
    watsonx = isinstance(results, list) and bool(results) and all(isinstance(one, dict) and _is_of_watsonx(one) for one in results)
    llama = isinstance(body.get("generation"), str) and bool({"stop_reason", "generation_token_count"} & body.keys())
    return titan or watsonx or llama or (isinstance(body.get("completion"), str) and "stop_reason" in body)


def _is_of_watsonx(one: dict[str, Any]) -> bool:
    return isinstance(one.get("generated_text"), str) and isinstance(one.get("stop_reason"), str)


_SHAPES = (
    *(_of_chat, _of_responses, _of_anthropic, _of_converse, _of_gemini, _of_ollama, _of_message_wrapper, _of_langchain, _is_message),
    *(_is_chunk, _without_role, _of_vercel, _of_tgi, _of_bedrock, _of_cohere, _of_llama_cpp),
)
