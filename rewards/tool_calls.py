"""Scorer of answers that call tools."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ratchet.contracts.conversation import Message, answer_message, arguments_of, written_answer
from ratchet.contracts.data.records import Tier
from ratchet.contracts.model import Frozen
from ratchet.rewards.options import check_options


class ToolCallMatchOptions(Frozen):
    """Options of the scorer `ToolCallMatch`."""

    compare: Literal["calls", "names"] = "calls"
    """`calls` compares names and arguments, `names` only the names."""
    partial: bool = False
    """Whether some right calls give a part of the score: their share of the expected or given calls, of which there are more."""


class ToolCallMatch:
    """Score 1 if the tool calls of an answer are those of its reference, otherwise 0.

    The order of parallel calls, the order of keys and ids of calls do not matter; 1 and 1.0 are equal. The reference is JSON: a list of
    calls {"name", "arguments"}, one call, or an assistant message with `tool_calls`. Without such a reference it abstains. Text beside the
    calls is not compared.
    """

    name = "tool_call_match"
    tier = Tier.VERIFIABLE
    needs = frozenset({"answer", "reference"})

    def __init__(self, **options: Any) -> None:
        self.options = check_options(self.name, ToolCallMatchOptions, options)

    def score(self, samples: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Compare the calls of each answer with those of its reference."""
        return [self._score(sample.get("answer"), sample.get("reference")) for sample in samples]

    def _score(self, answer: str | None, reference: str | None) -> float | None:
        expected = written_answer(reference) if reference is not None else None
        if answer is None or expected is None:
            return None
        wanted, given = self._calls(expected), self._calls(answer_message(answer))
        if not self.options.partial:
            return float(wanted == given)
        return (wanted & given).total() / max(wanted.total(), given.total())

    def _calls(self, message: Message) -> Counter[str]:
        calls = message.get("tool_calls") or []
        names = self.options.compare == "names"
        return Counter(
            json.dumps([call["function"]["name"], None if names else _plain(arguments_of(call))], sort_keys=True) for call in calls
        )


def _plain(value: Any) -> Any:
    """Return a JSON value in which equal numbers are written in the same way."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
