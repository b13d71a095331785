"""Tests of what one caller of the embedded server can cost the others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.testclient import TestClient

from ratchet.runtime.chat_template import CallFormat
from tests.unit.trainers.conftest import write_model

if TYPE_CHECKING:
    from ratchet.local.serve.generate import Generated, GenerationRow, Model

pytestmark = pytest.mark.slow  # torch takes seconds to load; it is not loaded when the tests are collected


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    from ratchet.local.serve.generate import Model

    return Model(write_model(tmp_path_factory.mktemp("model")), threads=1)


def test_an_answer_that_nobody_waits_for_ends_at_the_next_token(model: Model) -> None:
    from ratchet.local.serve.generate import GenerationRow

    prompt = model.encode([{"role": "user", "content": "one two"}])
    rows = [GenerationRow(prompt, 1.0, seed, 100) for seed in range(2)]
    full = model.generate(rows)
    looks = 0

    def stopped() -> bool:
        nonlocal looks
        looks += 1
        return looks > 3

    cut, kept = model.generate(rows, [stopped, lambda: False])
    assert len(set(cut.tokens[4:])) == 1, "only padding follows"
    assert kept.tokens == full[1].tokens, "the other answers of the batch stay whole"
    assert [answer.tokens for answer in model.generate(rows, [lambda: True] * 2)] == [answer.tokens[:1] for answer in full]


def test_a_batch_ends_at_the_limits_of_its_rows(model: Model) -> None:
    from ratchet.local.serve.generate import GenerationRow

    prompt = model.encode([{"role": "user", "content": "one two"}])
    short, long = (GenerationRow(prompt, 1.0, 0, limit) for limit in (3, 40))
    alone = model.generate([short])[0]
    assert model.generate([short, long])[0] == alone
    assert len(alone.tokens) <= 3


def test_the_end_of_an_answer_is_no_part_of_its_text_even_if_the_tokenizer_does_not_call_it_special(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ratchet.local.serve.generate import GenerationRow

    row = GenerationRow(model.encode([{"role": "user", "content": "one two"}]), 0.0, 0, 5)
    written = model.generate([row])[0]
    monkeypatch.setattr(model, "_stops", {written.tokens[-1]})
    ended = model.generate([row])[0]
    assert (ended.finish_reason, ended.tokens[-1]) == ("stop", written.tokens[-1])
    assert ended.text == model._tokenizer.decode(ended.tokens[:-1])


class Counting:
    """A model that records the rows it generates."""

    context = 64

    def __init__(self) -> None:
        self.rows: list[GenerationRow] = []

    def generate(self, rows: Sequence[GenerationRow], stopped: Sequence[Callable[[], bool]]) -> list[Generated]:
        from ratchet.local.serve.generate import Generated

        assert not any(one() for one in stopped)
        self.rows += rows
        return [Generated("", [], "stop", None) for _ in rows]


def test_rows_of_a_caller_that_is_gone_are_not_generated() -> None:
    from ratchet.local.serve.adapters import Adapters
    from ratchet.local.serve.app import Batcher
    from ratchet.local.serve.generate import GenerationRow

    async def scenario() -> list[GenerationRow]:
        model: Any = Counting()
        batcher = Batcher(model, Adapters(model))
        left = [asyncio.create_task(batcher.submit(GenerationRow([1], 0, seed, 1))) for seed in range(20)]
        await asyncio.sleep(0)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        runner = asyncio.create_task(batcher.run())
        await batcher.submit(GenerationRow([1], 0, 99, 1))
        runner.cancel()
        return list(model.rows)

    assert [row.seed for row in asyncio.run(scenario())] == [99]


def test_a_request_that_cannot_fit_into_the_context_is_refused_before_it_is_read(model: Model) -> None:
    from ratchet.local.serve.app import build_app

    with TestClient(build_app(model, ("v", "assistant"))) as client:
        for size, status in ((10_000, 400), (2_000_000, 413)):
            body = {"model": "v", "messages": [{"role": "user", "content": "one " * (size // 4)}]}
            answer = client.post("/v1/chat/completions", content=json.dumps(body))
            assert answer.status_code == status, answer.text
        body = {"model": "v", "messages": [{"role": "user", "content": "one"}], "max_tokens": 2}
        assert client.post("/v1/chat/completions", content=json.dumps(body)).status_code == 200
        assert client.post("/v1/chat/completions", content="{").status_code == 422


class Calling:
    """A model that calls a tool, and notes the tools that it was given."""

    context = 1000
    text = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'

    def __init__(self) -> None:
        self.tools: list[Any] = []

    @property
    def call_format(self) -> CallFormat:
        return CallFormat("<tool_call>", "</tool_call>", "arguments")

    def encode(self, _messages: Any, tools: Any) -> list[int]:
        self.tools.append(tools)
        return [1]

    def generate(self, rows: Sequence[GenerationRow], _stopped: Any) -> list[Generated]:
        from ratchet.local.serve.generate import Generated, Piece

        for row in rows:
            if row.listener:
                row.listener(Piece(self.text, [1, 2], None, "stop"))
        return [Generated(self.text, [1, 2], "stop", None) for _ in rows]


def test_a_generated_tool_call_is_one_only_if_the_request_has_tools() -> None:
    from ratchet.local.serve.app import build_app

    model: Any = Calling()
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    body = {"model": "v", "messages": [{"role": "user", "content": "?"}]}
    with TestClient(build_app(model, ("v", "assistant"))) as client:
        (called,) = client.post("/v1/chat/completions", json=body | {"tools": [tool]}).json()["choices"]
        (plain,) = client.post("/v1/chat/completions", json=body).json()["choices"]
        streamed = client.post("/v1/chat/completions", json=body | {"tools": [tool], "stream": True}).text
    assert model.tools == [[tool], None, [tool]]
    assert called["finish_reason"] == "tool_calls"
    assert called["message"]["content"] is None
    assert called["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x":1}'}
    assert plain["message"] == {"role": "assistant", "content": Calling.text}
    chunks = [json.loads(part.removeprefix("data: "))["choices"][0] for part in streamed.split("\n\n") if part.startswith("data: {")]
    calls = [call for chunk in chunks for call in chunk["delta"].get("tool_calls", [])]
    assert [(call["index"], call["function"]["name"]) for call in calls] == [(0, "f")]
    assert chunks[-1]["finish_reason"] == "tool_calls"
