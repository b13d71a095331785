"""Tests of conversations with tools, from the lake to the training set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ratchet.contracts.conversation import answer_message, stored_answer
from ratchet.contracts.evaluation import ChatAnswer, ChatRequest
from ratchet.contracts.ids import prompt_id, root_id
from ratchet.contracts.ports import Progress
from ratchet.materializer.datasets import LakeDatasets
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import batch, evaluation, span, spans
from tests.unit.materializer.small_datasets import TRAIN, frozen, rows

TOOL = {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}}
REWARDS = {"rewards": [{"name": "tool_call_match"}, {"name": "user_feedback"}], "snapshot": {"references_are_answers": True}}


def calling(
    n: int, question: str, argument: str, *, identity: str = "c", events: Any = (), tools: bool = True, **more: Any
) -> dict[str, Any]:
    """A span whose answer calls the tool with an argument."""
    part = {"type": "tool_call", "id": f"{identity}{n}", "name": "f", "arguments": {"x": argument}}
    answer = json.dumps([{"role": "assistant", "parts": [part]}])
    extra = {"gen_ai__tool__definitions": json.dumps([TOOL])} if tools else {}
    return span(n, question, events=events, **({"gen_ai__output__messages": answer} | extra | more))


def call_of(text: str) -> Any:
    (call,) = answer_message(text)["tool_calls"]
    return json.loads(call["function"]["arguments"])["x"]


def reference(argument: str) -> str:
    return json.dumps([{"name": "f", "arguments": {"x": argument}}])


def datasets_of(folder: Path) -> LakeDatasets:
    return make_datasets(folder, make_loop(**REWARDS))


@pytest.mark.slow
def test_tools_and_calls_come_through_to_pairs_prompts_and_demonstrations(tmp_path: Path) -> None:
    datasets = datasets_of(tmp_path)
    wrong = [calling(n, question, "wrong", metadata__reference=reference("right")) for n, question in enumerate(TRAIN[:3], 1)]
    right = [calling(n + 10, question, "right") for n, question in enumerate(TRAIN[:3], 1)]
    snapshot = frozen(datasets, *wrong, *right)
    samples = rows(datasets, snapshot.samples)
    assert {(call_of(row["answer"]), row["reward"]) for row in samples if row["tools"]} == {("wrong", 0.0), ("right", 1.0)}
    training = datasets.assemble("t", snapshot, None)
    pairs = rows(datasets, training.pairs)
    assert [(call_of(row["chosen"]), call_of(row["rejected"]), json.loads(row["tools"])) for row in pairs] == [
        ("right", "wrong", [TOOL])
    ] * 3
    assert {(call_of(row["answer"]), row["tools"]) for row in rows(datasets, training.demonstrations)} == {
        ("right", json.dumps([TOOL], separators=(",", ":")))
    }
    assert [json.loads(row["tools"]) for row in rows(datasets, training.prompts)] == [[TOOL]] * 3


@pytest.mark.slow
def test_answers_that_differ_only_in_ids_of_calls_are_one_answer(tmp_path: Path) -> None:
    datasets = datasets_of(tmp_path)
    liked = calling(1, TRAIN[0], "x", identity="a", events=[evaluation("user_feedback", 1, user__id="user-1")])
    disliked = calling(2, TRAIN[0], "x", identity="b", events=[evaluation("user_feedback", 0, user__id="user-2")])
    training = datasets.assemble("t", frozen(datasets, liked, disliked), None)
    assert rows(datasets, training.pairs) == []


@pytest.mark.slow
def test_the_same_messages_with_other_tools_are_another_prompt(tmp_path: Path) -> None:
    datasets = datasets_of(tmp_path)
    snapshot = frozen(datasets, calling(1, TRAIN[0], "x"), calling(2, TRAIN[0], "x", tools=False))
    found = rows(datasets, snapshot.prompts)
    assert len({row["prompt_id"] for row in found if row["tools"] or json.loads(row["prompt"])[0]["content"] == TRAIN[0]}) == 2


@pytest.mark.slow
def test_a_correction_may_be_a_tool_call(tmp_path: Path) -> None:
    datasets = datasets_of(tmp_path)
    correction = evaluation("user_correction", text=reference("right"), user__id="user-1")
    training = datasets.assemble("t", frozen(datasets, calling(1, TRAIN[0], "wrong", events=[correction])), None)
    (pair,) = rows(datasets, training.pairs)
    assert (call_of(pair["chosen"]), call_of(pair["rejected"])) == ("right", "wrong")


class Repeating:
    """A model that always calls the tool, and notes the tools of its requests."""

    def __init__(self) -> None:
        self.tools: list[Any] = []

    def chat(self, requests: Sequence[ChatRequest], progress: Progress | None = None) -> list[ChatAnswer]:
        self.tools += [request.tools for request in requests]
        call = {"id": "z", "type": "function", "function": {"name": "f", "arguments": '{"x":"right"}'}}
        return [ChatAnswer(text=stored_answer({"role": "assistant", "content": "", "tool_calls": [call]})) for _ in requests]


@pytest.mark.slow
def test_the_probe_sends_tools_and_scores_calls(tmp_path: Path) -> None:
    datasets = datasets_of(tmp_path)
    snapshot = frozen(datasets, calling(1, TRAIN[0], "wrong", metadata__reference=reference("right")))
    model = Repeating()
    probe = datasets.probe("p", snapshot, model, lambda *_: None)
    assert all(tools == (TOOL,) for tools in model.tools)
    assert probe.mean_reward == 1.0
    training = datasets.assemble("t", snapshot, probe)
    (pair,) = rows(datasets, training.pairs)
    assert (call_of(pair["chosen"]), call_of(pair["rejected"])) == ("right", "wrong")


@pytest.mark.slow
def test_images_are_left_out_and_counted(tmp_path: Path) -> None:
    datasets = datasets_of(tmp_path)
    content = [{"type": "text", "content": "what is it?"}, {"type": "uri", "modality": "image", "uri": "https://example.test/a.png"}]
    picture = span(1, gen_ai__input__messages=json.dumps([{"role": "user", "parts": content}]))
    quoting = span(2, 'is {"type":"image_url","image_url":{"url":"x"}} valid?')
    snapshot = frozen(datasets, picture, quoting)
    assert snapshot.counts["out:images"] == 1
    assert snapshot.counts["considered"] == 3
    assert "image_url" in datasets.lake.scan("traces").filter(pl.col("id") == f"{1:032x}:{1:016x}")["messages"].item()


def test_identities_of_prompts_never_change() -> None:
    """Ledger rows and splits name them."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is  2 + 2?"}]
    assert prompt_id(messages) == "663d9da16d2ef7ff5dccf923bb3c503c45e35d3f7f5b8abf72bd76e421a7bcd4"
    assert root_id(messages) == "692a9daa52e42c50943f4784c639bfc764157d6b4b90b5d3306df697f29d12e7"


@pytest.mark.slow
def test_a_column_that_a_release_adds_is_null_in_older_rows(tmp_path: Path) -> None:
    datasets = datasets_of(tmp_path)
    datasets.ingest(batch(spans(span(1, TRAIN[0]))))
    table = datasets.lake.table("traces")
    with table.update_schema() as update:
        update.delete_column("tools")
    (tmp_path / "user-keys.json").unlink()  # written again, with the same key
    old = datasets_of(tmp_path)
    old.ingest(batch(spans(calling(2, TRAIN[1], "x"))))
    found = {row["id"][-1]: row["tools"] for row in old.lake.scan("traces").iter_rows(named=True)}
    assert found["1"] is None
    assert json.loads(found["2"]) == [TOOL]
