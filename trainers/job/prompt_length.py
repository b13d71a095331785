"""Length of a prompt in tokens, for the limits of both GRPO trainers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def prompt_length(tokenizer: Any) -> Callable[[list[dict[str, Any]]], int]:
    """Return a function that counts the tokens of a conversation, rendered with the chat template of the tokenizer."""

    def length(messages: list[dict[str, Any]]) -> int:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    return length
