"""Tests of exported training sets: each format as its reader expects it, and nothing that may not leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.conversation import stored_answer
from ratchet.contracts.data.datasets import EXPORT_FORMATS
from ratchet.materializer.exports import _FORMATS, ExportedFiles, export_files
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import evaluation, span
from tests.unit.materializer.small_datasets import TRAIN, assembled

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
REWARDS = [{"name": "exact_match"}, {"name": "user_feedback"}]


def exported(tmp_path: Path, form: str) -> ExportedFiles:
    """Three questions: one with a right and a wrong answer, one that a user corrected, one without evidence."""
    datasets = make_datasets(tmp_path, make_loop(rewards=REWARDS))
    items = [
        span(1, TRAIN[0], "A: 4", metadata__reference="A: 4"),
        span(2, TRAIN[0], "A: 5", metadata__reference="A: 4"),
        span(3, TRAIN[1], "no", [evaluation("user_correction", text="yes", user__id="eve")], user__id="eve"),
        span(4, TRAIN[2], "perhaps"),
    ]
    training, _ = assembled(datasets, *items)
    return export_files(training, datasets.artifacts, form)


def lines(files: ExportedFiles, name: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in files.contents[name].decode().splitlines()]
    assert len(found) == files.rows[name]
    return found


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.slow
def test_trl_gets_its_conversational_data_sets(tmp_path: Path) -> None:
    files = exported(tmp_path, "trl")
    pairs = {row["prompt"][0]["content"]: row for row in lines(files, "preference.jsonl")}
    assert pairs[TRAIN[0]] == {"prompt": asked(TRAIN[0]), "chosen": said("A: 4"), "rejected": said("A: 5"), "weight": 1.0}
    assert {"prompt": asked(TRAIN[1]), "completion": said("yes")}.items() <= {
        row["prompt"][0]["content"]: row for row in lines(files, "sft.jsonl")
    }[TRAIN[1]].items()
    assert {row["prompt"][0]["content"]: row["reference"] for row in lines(files, "prompts.jsonl")}[TRAIN[0]] == "A: 4"
    assert files.left_out == {}


@pytest.mark.slow
def test_nemo_rl_gets_ranked_completions_and_messages(tmp_path: Path) -> None:
    files = exported(tmp_path, "nemo-rl")
    pair = next(row for row in lines(files, "preference.jsonl") if row["context"] == asked(TRAIN[0]))
    assert pair["completions"] == [{"rank": 0, "completion": said("A: 4")}, {"rank": 1, "completion": said("A: 5")}]
    assert {"messages": [*asked(TRAIN[1]), *said("yes")]} in lines(files, "sft.jsonl")
    assert {"messages": [*asked(TRAIN[0]), *said("A: 4")]} in lines(files, "prompts.jsonl")


@pytest.mark.slow
def test_openai_gets_preferred_outputs_and_messages(tmp_path: Path) -> None:
    files = exported(tmp_path, "openai")
    pair = {"input": {"messages": asked(TRAIN[0])}, "preferred_output": said("A: 4"), "non_preferred_output": said("A: 5")}
    assert pair in lines(files, "preference.jsonl")
    assert {"messages": [*asked(TRAIN[1]), *said("yes")]} in lines(files, "sft.jsonl")
    assert {"messages": asked(TRAIN[0]), "reference": "A: 4"} in lines(files, "prompts.jsonl")


@pytest.mark.slow
def test_parquet_is_what_a_job_would_read(tmp_path: Path) -> None:
    files = exported(tmp_path, "parquet")
    assert set(files.contents) == {"preference.parquet", "sft.parquet", "prompts.parquet"}
    assert files.rows["preference.parquet"] == exported(tmp_path / "again", "trl").rows["preference.jsonl"]


@pytest.mark.slow
@pytest.mark.parametrize("form", EXPORT_FORMATS)
def test_the_same_records_give_the_same_bytes(tmp_path: Path, form: str) -> None:
    assert exported(tmp_path / "a", form).contents == exported(tmp_path / "b", form).contents


def test_tools_and_calls_keep_their_form(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}
    answer = stored_answer({"role": "assistant", "content": "", "tool_calls": [call]})
    row = {"prompt": json.dumps(asked("rain?")), "answer": answer, "weight": 1.0, "tools": json.dumps([WEATHER])}
    trl, openai = (_FORMATS[name].demonstration(row) for name in ("trl", "openai"))
    assert trl["completion"][0]["tool_calls"][0]["function"]["arguments"] == {"city": "Rome"}
    assert json.loads(trl["tools"]) == [WEATHER]
    assert openai["messages"][-1]["tool_calls"][0]["function"]["arguments"] == '{"city":"Rome"}'
    assert openai["tools"] == [WEATHER]


@pytest.mark.slow
def test_trl_renders_what_was_exported(tmp_path: Path) -> None:
    """The library that reads the files accepts them: they are conversational, and a chat template renders them whole."""
    from datasets import load_dataset
    from transformers import AutoTokenizer
    from trl.data_utils import apply_chat_template, is_conversational

    from tests.toy_line import write_model

    tokenizer = AutoTokenizer.from_pretrained(write_model(tmp_path))
    files = exported(tmp_path / "set", "trl")
    for name, keys in (("preference.jsonl", {"prompt", "chosen", "rejected"}), ("sft.jsonl", {"prompt", "completion"})):
        (tmp_path / name).write_bytes(files.contents[name])
        found = load_dataset("json", data_files=str(tmp_path / name), split="train", cache_dir=str(tmp_path / "cache"))
        assert len(found) == files.rows[name]
        for row in found:
            assert is_conversational(row)
            rendered = apply_chat_template({key: row[key] for key in keys}, tokenizer)
            assert all(rendered[key] for key in keys)
            assert row["prompt"][0]["content"] in rendered["prompt"]
