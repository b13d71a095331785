"""Tests of streamed answers of the embedded server: they consist of the same text, tokens and figures as whole answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from fastapi.testclient import TestClient
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.unit.trainers.conftest import write_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

pytestmark = pytest.mark.slow  # torch takes seconds to load; it is not loaded when the tests are collected


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    from ratchet.local.serve.app import build_app
    from ratchet.local.serve.generate import Model

    with TestClient(build_app(Model(write_model(tmp_path_factory.mktemp("model")), threads=1), ("v",))) as client:
        yield client


def ask(client: TestClient, **fields: Any) -> Any:
    body = {"model": "v", "messages": [{"role": "user", "content": "one two"}], "max_tokens": 12, **fields}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    if not fields.get("stream"):
        return answer.json()
    events = [part.removeprefix("data: ") for part in answer.text.split("\n\n") if part]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


@pytest.mark.parametrize(
    "fields", [{"temperature": 0}, {"temperature": 1.0, "seed": 3, "n": 4}, {"temperature": 2.0, "seed": 5, "n": 2, "max_tokens": 1}]
)
def test_the_chunks_are_the_parts_of_the_whole_answer(client: TestClient, fields: dict[str, Any]) -> None:
    whole = ask(client, logprobs=True, **fields)
    chunks = ask(client, logprobs=True, stream=True, stream_options={"include_usage": True}, **fields)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    for choice in whole["choices"]:
        parts = [part for chunk in chunks for part in chunk["choices"] if part["index"] == choice["index"]]
        assert parts[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(part["delta"].get("content", "") for part in parts) == choice["message"]["content"]
        assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [choice["finish_reason"]]
        tokens = [token for part in parts for token in part.get("logprobs", {}).get("content", ())]
        assert [token["token"] for token in tokens] == [token["token"] for token in choice["logprobs"]["content"]]
        assert [token["logprob"] for token in tokens] == pytest.approx([token["logprob"] for token in choice["logprobs"]["content"]])


def test_usage_comes_only_if_it_is_asked_for(client: TestClient) -> None:
    assert not [chunk for chunk in ask(client, stream=True) if "usage" in chunk]


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer in which each byte of UTF-8 is a token."""
    from transformers import PreTrainedTokenizerFast

    alphabet = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    raw = Tokenizer(models.BPE(vocab={**alphabet, "<end>": 256}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>")


@pytest.mark.parametrize("text", ["plain words", "Größe 🦜🦜 naïve", "日本語", "e\u0301 \u2028 👩\u200d🔬", "\ufffd is a character", "x"])
@pytest.mark.parametrize("ends", [True, False])
def test_no_piece_ends_inside_a_character(text: str, ends: bool) -> None:
    from ratchet.local.serve.generate import GenerationRow, Piece, _Stream

    tokenizer, pieces = byte_tokenizer(), list[Piece]()
    tokens = tokenizer.encode(text)
    asked = GenerationRow([], 0, 0, len(tokens) + (1 if ends else 0))

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=True))

    stream = _Stream(0, asked, pieces.append, decode, {256}, sampler=None)  # type: ignore[arg-type]
    for token in [*tokens, *([256] * 3 if ends else [])]:
        stream.add(token)
    assert "".join(piece.text for piece in pieces) == text
    assert [token for piece in pieces for token in piece.tokens] == [*tokens, *([256] if ends else [])]
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["stop" if ends else "length"]
    assert len(pieces) > len(text) // 2, "the text is not held back"
    assert "\ufffd" in text or not [piece for piece in pieces if "\ufffd" in piece.text]


def test_a_row_that_is_cut_inside_a_character_gives_what_a_whole_answer_gives() -> None:
    from ratchet.local.serve.generate import GenerationRow, Piece, _Stream

    tokenizer, pieces = byte_tokenizer(), list[Piece]()
    tokens = tokenizer.encode("ab🦜")[:4]
    stream = _Stream(0, GenerationRow([], 0, 0, 4), pieces.append, tokenizer.decode, {256}, sampler=None)  # type: ignore[arg-type]
    for token in tokens:
        stream.add(token)
    assert "".join(piece.text for piece in pieces) == tokenizer.decode(tokens)
