"""Scripted models and small editions for tests of evaluations."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.contracts.data.datasets import HoldoutEdition
from ratchet.contracts.evaluation import ChatAnswer, ChatRequest
from ratchet.contracts.fakes import MemoryArtifacts

Answer = Callable[[ChatRequest], str | None]


class Scripted:
    """`ModelClient` whose answers a function of the request decides; None is a failed request. It records the requests."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[ChatRequest] = []
        self.finish: Callable[[ChatRequest], str | None] = lambda _: None

    def chat(self, requests: Sequence[ChatRequest], progress: Any = None) -> list[ChatAnswer]:
        self.asked += requests
        return [self._told(request) for request in requests]

    def _told(self, request: ChatRequest) -> ChatAnswer:
        text = self.answer(request)
        if text is None:
            return ChatAnswer(text=None, latency_ms=7.0, error="HTTP 500: boom")
        return ChatAnswer(text=text, latency_ms=7.0, finish_reason=self.finish(request))


def store(artifacts: MemoryArtifacts, names: Sequence[str]) -> str:
    """Store the prompts of an edition, which alternate between two slices, and return the digest."""
    rows = [
        {"prompt": json.dumps([{"role": "user", "content": name}]), "reference": "yes", "slice": f"s{i % 2}"}
        for i, name in enumerate(names)
    ]
    buffer = io.BytesIO()
    schema = pa.schema([("prompt", pa.string()), ("reference", pa.string()), ("slice", pa.string())])
    pq.write_table(pa.Table.from_pylist(rows, schema), buffer)
    return artifacts.put(buffer.getvalue())


def edition(artifacts: MemoryArtifacts, held: int = 40, golden: int = 0, number: int = 1) -> HoldoutEdition:
    """Return an edition in which the first prompt occurs twice, in two spellings."""
    names = ["Q1 ", *(f"q{i}" for i in range(1, held))]
    key = store(artifacts, [f"g{i}" for i in range(golden)]) if golden else None
    prompts = store(artifacts, names)
    return HoldoutEdition(line="l", number=number, prompts=prompts, size=held, golden=key, golden_size=golden, normaliser=1, fraction=0.2)


def name_of(request: ChatRequest) -> str:
    return str(request.messages[-1]["content"])
