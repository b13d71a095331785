"""Prompts of both GRPO trainers: rendered with the chat template of the model, and their length in tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ratchet.contracts.errors import Permanent
from ratchet.runtime.chat_template import CallFormat, call_format, prompt_text, token_ids


def rendered_prompt(tokenizer: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
    """Return a conversation with its tools as the text that the model continues. Raises Permanent if the chat template refuses it."""
    try:
        return prompt_text(tokenizer, messages, tools)
    except Exception as error:  # a template is a program, which fails in its own ways
        raise Permanent(f"the model's chat template cannot render a conversation ({error})") from error


def own_call_format(tokenizer: Any) -> CallFormat | None:
    """Return how answers name tool calls by the chat template of the tokenizer; None if it has no calls."""
    return call_format(lambda messages, tools: str(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)))


Length = Callable[..., int | None]
"""Counts the tokens of a conversation and its tools; None if the chat template refuses them."""


def prompt_length(tokenizer: Any) -> Length:
    """Return a function that counts the tokens of conversations, rendered with the chat template of the tokenizer."""

    def length(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> int | None:
        try:
            text = rendered_prompt(tokenizer, messages, tools)
        except Permanent:
            return None
        return len(token_ids(tokenizer, text))

    return length
