"""Decides row by row which examples can be trained on. No row ends a job: each one that is left out counts under one reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ratchet.contracts.errors import Permanent
from ratchet.trainers.job.left_out import UNRENDERED
from ratchet.trainers.job.trl.conversations import OMITTED, Example, control_words, encode, imitable, shows_tools
from ratchet.trainers.job.trl.micro_batches import PairSize

CONTROL = "with answers that contain special tokens of the model"
EQUAL = "whose two answers are equal after the chat template and the cut at max_length"
"""Further reasons for the exclusion of rows."""


def long_prompt(max_length: int) -> str:
    """Return the reason for prompts that leave no room for an answer."""
    return f"with prompts longer than {max_length} tokens, by max_length or the model's context"


def long_answer(max_length: int) -> str:
    """Return the reason for answers that would lose their end. A model that learns from them does not learn to stop."""
    return f"with answers that end after {max_length} tokens, by max_length or the model's context"


def fit(tokenizer: Any, examples: Sequence[Example], max_length: int) -> tuple[list[tuple[int, PairSize]], dict[str, int]]:
    """Return (index, tokens) of each example that can be trained on, and reason -> number of the others.

    Prompt and chosen answer have at most `max_length` tokens together. A rejected answer is cut there: what the model must not write needs
    no end.
    """
    control, tools = control_words(tokenizer), shows_tools(tokenizer)
    kept: list[tuple[int, PairSize]] = []
    left: Counter[str] = Counter()
    for number, example in enumerate(examples):
        if not all(imitable(answer, control) for answer in example.answers):
            left[CONTROL] += 1
        elif example.needs_tools and not tools:
            left[OMITTED] += 1
        else:
            found = _fitted(tokenizer, example, max_length)
            if isinstance(found, str):
                left[found] += 1
            else:
                kept.append((number, found))
    return kept, dict(left)


def _fitted(tokenizer: Any, example: Example, max_length: int) -> PairSize | str:
    """Return the tokens of an example, or the reason why it is left out."""
    try:
        pair = encode(tokenizer, example)
    except Permanent:
        return UNRENDERED
    if len(pair.prompt) >= max_length:
        return long_prompt(max_length)
    if len(pair.prompt) + len(pair.chosen) > max_length:
        return long_answer(max_length)
    cut = pair.cut(max_length)
    return EQUAL if example.rejected is not None and cut.chosen == cut.rejected else cut
