"""Prompts of both GRPO trainers: rendered with the chat template of the model, and their length in tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ratchet.runtime.chat_template import CallFormat, call_format, template_messages


def rendered_prompt(tokenizer: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
    """Return a conversation with its tools as the text that the model continues."""
    return str(tokenizer.apply_chat_template(template_messages(messages), tools=tools or None, tokenize=False, add_generation_prompt=True))


def own_call_format(tokenizer: Any) -> CallFormat | None:
    """Return how answers name tool calls by the chat template of the tokenizer; None if it has no calls."""
    return call_format(lambda messages, tools: str(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)))


def prompt_length(tokenizer: Any) -> Callable[..., int]:
    """Return a function that counts the tokens of a conversation and its tools, rendered with the chat template of the tokenizer."""

    def length(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> int:
        return len(tokenizer(rendered_prompt(tokenizer, messages, tools), add_special_tokens=False)["input_ids"])

    return length
