"""Tests of the evaluation with several sampled answers per prompt."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from contracts.data.datasets import HoldoutEdition
from contracts.evaluation import ChatAnswer, ChatRequest, EarlierAnswers, EvalReport
from contracts.fakes import FakeRewards, MemoryArtifacts, fake_model
from contracts.ids import canonical, digest
from contracts.loop import GateSettings
from gates.evaluate import PairedEvaluator

Answer = Callable[[ChatRequest], str | None]


class Scripted:
    """`ModelClient` whose answers a function of the request decides; None is a failed request. It records the requests."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[ChatRequest] = []

    def chat(self, requests: Sequence[ChatRequest], progress: Any = None) -> list[ChatAnswer]:
        self.asked += requests
        texts = [self.answer(request) for request in requests]
        return [ChatAnswer(text=text, latency_ms=7.0, error=None if text is not None else "HTTP 500: boom") for text in texts]


def store(artifacts: MemoryArtifacts, names: Sequence[str]) -> str:
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


def evaluated(
    artifacts: MemoryArtifacts,
    held: HoldoutEdition,
    old: Answer,
    new: Answer,
    settings: GateSettings,
    earlier: Sequence[EarlierAnswers] = (),
) -> tuple[EvalReport, Scripted, Scripted]:
    clients = Scripted(old), Scripted(new)
    evaluator = PairedEvaluator(artifacts, FakeRewards(), settings)
    sides = [(fake_model(name), client) for name, client in zip(("old", "new"), clients, strict=True)]
    return evaluator.evaluate(held, sides[0], sides[1], lambda *_: None, earlier), *clients


def name_of(request: ChatRequest) -> str:
    return str(request.messages[-1]["content"])


def sometimes(side: str, right: float, failing: float = 0.0) -> Answer:
    """Return a model that answers by chance, but always alike to the same request."""

    def answer(request: ChatRequest) -> str | None:
        draw = random.Random(f"{side} {name_of(request)} {request.seed}")
        if draw.random() < failing:
            return None
        return "yes" if draw.random() < right else "no, " + "well " * draw.randrange(5)

    return answer


def rounded(value: Any) -> Any:
    """Round all numbers, so that a digest does not depend on the machine's last bits."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return round(value, 9) if isinstance(value, float) else value


def test_one_answer_per_prompt_is_evaluated_as_before_there_were_several() -> None:
    """The digests are those of the release that knew one greedy answer per prompt: its requests, its rows, its report."""
    artifacts = MemoryArtifacts()
    held = edition(artifacts, held=60, golden=50)
    first, _, _ = evaluated(artifacts, held, sometimes("a", 0.9, 0.03), sometimes("b", 0.5), GateSettings())
    past = [EarlierAnswers(version="v-a", answers=first.answers)]
    report, old, new = evaluated(artifacts, held, sometimes("b", 0.6, 0.05), sometimes("c", 0.7, 0.08), GateSettings(), past)
    assert old.asked == new.asked
    requests = [request.model_dump(mode="json") for request in old.asked]
    rows = [json.loads(row) for row in artifacts.get(report.answers).splitlines()]
    former_rows = [{key: value for key, value in row.items() if key not in ("draw", "temperature")} for row in rows]
    figures = report.model_dump(mode="json", exclude={"answers", "samples", "temperature"})
    found = [digest(canonical(rounded(value)))[:16] for value in (requests, former_rows, figures)]
    assert found == ["a1074cd6970de990", "029099d74a8d9da6", "50381ce9ebd3e42b"]
