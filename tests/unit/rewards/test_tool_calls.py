"""Tests of the reward for tool calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratchet.contracts.conversation import stored_answer
from ratchet.contracts.errors import ConfigError
from ratchet.rewards.tool_calls import ToolCallMatch


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": f"random-{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def answer(*calls: dict[str, Any], text: str = "") -> str:
    return stored_answer({"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {})})


A, B = call("a", {"x": 1, "y": [1.0, "z"]}), call("b", {})
WANTED = json.dumps([{"name": "b", "arguments": {}}, {"name": "a", "arguments": {"y": [1, "z"], "x": 1.0}}])


@pytest.mark.parametrize(
    ("given", "reference", "score"),
    [
        (answer(A, B), WANTED, 1.0),
        (answer(B, A, text="I look."), WANTED, 1.0),
        (answer(A), WANTED, 0.0),
        (answer(A, B, B), WANTED, 0.0),
        (answer(A, call("b", {"extra": None})), WANTED, 0.0),
        (answer(call("a", {"x": True, "y": [1, "z"]}), B), WANTED, 0.0),
        ("plain text", WANTED, 0.0),
        (answer(B), json.dumps({"name": "b", "arguments": "{}"}), 1.0),
        (answer(B), json.dumps({"role": "assistant", "content": None, "tool_calls": [B]}), 1.0),
        (answer(B), "call b", None),
        (answer(B), json.dumps({"city": "Paris"}), None),
        (answer(B), json.dumps([]), None),
        (answer(B), None, None),
        (json.dumps({"role": "assistant", "tool_calls": [B]}), json.dumps({"name": "b", "arguments": {}}), 0.0),  # only text, not a call
    ],
)
def test_name_and_arguments_count_and_order_does_not(given: str, reference: str | None, score: float | None) -> None:
    assert ToolCallMatch().score([{"answer": given, "reference": reference}]) == [score]


def test_options() -> None:
    samples = [{"answer": answer(call("a", {}), B), "reference": WANTED}]
    assert ToolCallMatch(compare="names").score(samples) == [1.0]
    assert ToolCallMatch(partial=True).score(samples) == [0.5]
    with pytest.raises(ConfigError, match="partiall"):
        ToolCallMatch(partiall=True)
