"""Calls whose messages have one text each are read directly, with the result of the general way."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from ratchet.contracts.data.decoding import Limits
from ratchet.materializer.dialects.conversations import otel_genai
from ratchet.materializer.dialects.decode import decode
from tests.unit.materializer.records import T0, batch, span, spans

LIMITS = Limits(now=T0 // 1000 + 10**12, assume_consent=True)
_ODD: list[Any] = [None, "", " ", 0, True, [], {}, "x", ["x"], {"type": "text"}, "\u0000", "stop", "length", "tool_calls"]
_TEXTS = ("What is 1 + 1?", "It is 2.", "", " ", "{}", "[]", '{"role": "user"}', '{"type": "function_call", "call_id": "a"}', "null",
          "<think>a</think> b", "i think", "a\u0000b", "ſ", "[REDACTED]", "user: a\nassistant: b", "AIMessage(content='x')")  # fmt: skip
_MORE: dict[str, Any] = {
    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief."}]),
    "gen_ai.tool.definitions": json.dumps([{"name": "f", "type": "function", "parameters": {"type": "object"}}]),
    "gen_ai.provider.name": "strands-agents",
    "gen_ai.system": "strands-agents",
    "gen_ai.response.finish_reasons": '["tool_calls"]',
    "ai.response.finishReason": "tool-calls",
    "llm.request.functions.0.name": "f",
    "gen_ai.prompt": "other",
    "input.value": "other",
    "events": "[]",
    "error.type": "timeout",
}


def _message(rng: random.Random, role: str) -> Any:
    part: dict[str, Any] = {"type": "text", "content": rng.choice(_TEXTS[:2] if rng.random() < 0.8 else _TEXTS)}
    made: dict[str, Any] = {"role": role, "parts": [part]}
    if rng.random() < 0.15:
        rng.choice((part, made))[rng.choice(("type", "content", "role", "parts", "name", "x", "id"))] = rng.choice(_ODD)
    if rng.random() < 0.05:
        made["parts"] = rng.choice(([], [part, part], part, [{"content": "a"}], _ODD))
    return made


def _span(rng: random.Random, number: int) -> dict[str, Any]:
    asked = [_message(rng, rng.choice(("user", "user", "system", "assistant", "tool"))) for _ in range(rng.randint(1, 3))]
    finish = rng.choice(("stop", "length", "max_tokens") if rng.random() < 0.8 else _ODD)
    answer = _message(rng, "assistant") | ({"finish_reason": finish} if rng.random() < 0.8 else {})
    replies = [answer] if rng.random() < 0.9 else rng.choice(([], [answer, answer], answer, [answer, _message(rng, "user")]))
    more = {key: _MORE[key] for key in rng.sample(sorted(_MORE), rng.choice((0, 0, 0, 1)))}
    texts = {"gen_ai__input__messages": json.dumps(asked), "gen_ai__output__messages": json.dumps(replies)}
    return span(number, **texts, **{key.replace(".", "__"): value for key, value in more.items()})


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_both_ways_give_the_same_rows_and_reasons(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    made = [_span(rng, number) for number in range(1, 301)]
    plain, read = [0], otel_genai._plain

    def counted(record: Any) -> Any:
        found = read(record)
        plain[0] += found is not None
        return found

    monkeypatch.setattr(otel_genai, "_plain", counted)
    fast = decode(batch(*(spans(one) for one in made)), LIMITS)
    monkeypatch.setattr(otel_genai, "_plain", lambda _: None)
    slow = decode(batch(*(spans(one) for one in made)), LIMITS)
    assert fast.traces == slow.traces
    assert fast.bad == slow.bad
    assert vars(fast) == vars(slow)
    assert plain[0] > 40
