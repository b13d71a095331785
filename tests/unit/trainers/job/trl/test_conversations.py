"""Tests of pairs with tools: the model's own template renders them, and pairs that it would render incompletely are refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.contracts.conversation import stored_answer
from ratchet.contracts.errors import Permanent
from ratchet.contracts.ids import canonical
from ratchet.trainers.job.trl.conversations import OMITTED, assistant_message, encode, read
from ratchet.trainers.job.trl.fitting import fit
from ratchet.trainers.job.trl.sft import dataset_of
from ratchet.trainers.job.trl.sft import rows as demonstrations
from ratchet.trainers.recipes.sft import SFTRecipe
from tests.unit.trainers.conftest import TEMPLATE
from tests.unit.trainers.job.trl.templates import TOOLS, WITH_TOOLS, call

pytestmark = pytest.mark.slow  # TRL takes seconds to load

ASK: list[dict[str, Any]] = [{"role": "user", "content": "one two"}]


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """Write the rows to a Parquet file and return its path."""
    columns = {name: [row.get(name) for row in rows] for name in rows[0]}
    pq.write_table(pa.table({"weight": [1.0] * len(rows), **columns}), folder / "pairs.parquet")
    return folder / "pairs.parquet"


def tokenizer(tiny_model: Path, template: str) -> Any:
    """Return the tokenizer of the tiny model with this template."""
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(tiny_model)
    loaded.chat_template = template
    return loaded


def words(tokens: Any, ids: list[int]) -> str:
    """Return the text of the tokens."""
    return str(tokens.decode(ids))


def test_a_tool_call_is_an_answer_with_parsed_arguments(tiny_model: Path, tmp_path: Path) -> None:
    row = {"prompt": json.dumps(ASK), "chosen": stored_answer(call("three")), "rejected": "no", "tools": TOOLS}
    tokens = tokenizer(tiny_model, WITH_TOOLS)
    pair = encode(tokens, read(write(tmp_path, [row]), True)[0])
    assert words(tokens, pair.prompt) == "<user> left <user> one two <assistant>"
    assert words(tokens, pair.chosen).split() == ["up", "left", "three", "<end>"]
    assert words(tokens, pair.rejected).split() == ["no", "<end>"]


def test_tool_calls_and_their_results_are_in_the_prompt(tiny_model: Path, tmp_path: Path) -> None:
    prompt = [*ASK, call("four"), {"role": "tool", "tool_call_id": "1", "content": "five"}]
    tokens = tokenizer(tiny_model, WITH_TOOLS)
    rows = [{"prompt": json.dumps(prompt), "chosen": "yes", "rejected": "no", "tools": None}]
    pair = encode(tokens, read(write(tmp_path, rows), True)[0])
    assert words(tokens, pair.prompt) == "<user> one two <assistant> up left four <end> down five <assistant>"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": json.dumps(ASK), "tools": TOOLS}, "omits them"),
        ({"prompt": json.dumps([*ASK, call("four"), {"role": "tool", "content": "five"}]), "tools": None}, "omits `tool_calls`"),
        ({"prompt": "no json", "tools": None}, "pair 0"),
        ({"prompt": json.dumps(ASK), "tools": "{"}, "pair 0"),
    ],
)
def test_content_that_the_template_would_omit_is_refused(row: dict[str, Any], message: str, tiny_model: Path, tmp_path: Path) -> None:
    rows = [{**row, "chosen": "yes", "rejected": "no"}]
    with pytest.raises(Permanent, match=message):
        encode(tokenizer(tiny_model, TEMPLATE), read(write(tmp_path, rows), True)[0])


WHOLE: dict[str, Any] = {"prompt": json.dumps(ASK), "chosen": "yes", "rejected": "no", "weight": 0.5}
BROKEN_ROWS: list[tuple[str, Any, str]] = [
    ("weight", None, "its weight is None"),
    ("weight", math.nan, "its weight is nan"),
    ("weight", math.inf, "its weight is inf"),
    ("chosen", None, "its chosen answer is None"),
    ("rejected", None, "its rejected answer is None"),
    ("prompt", None, "its prompt is not valid JSON"),
    ("prompt", "what?", "its prompt is not valid JSON"),
    ("prompt", "[" * 100_000, "its prompt is not valid JSON"),
    ("prompt", "[]", "no message"),
    ("prompt", "{}", "its prompt is not a JSON list"),
    ("prompt", '["hello"]', "its prompt is not a JSON list"),
    ("prompt", '[{"content": "hello"}]', "without a role"),
    ("prompt", '[{"role": "assistant", "tool_calls": 5}]', "does not match contracts/data/records.py"),
]


@pytest.mark.parametrize(("column", "value", "said"), BROKEN_ROWS)
def test_an_invalid_pair_is_refused_with_its_number(column: str, value: Any, said: str, tmp_path: Path) -> None:
    path = write(tmp_path, [WHOLE, {**WHOLE, column: value}])
    with pytest.raises(Permanent, match="pair 1: ") as caught:
        read(path, True)
    assert said in str(caught.value)
    assert column != "weight" or len(read(path, False)) == 2, "a weight is checked only if it is used for sampling"


@pytest.mark.parametrize(("column", "value", "said"), [row for row in BROKEN_ROWS[:-1] if row[0] in ("weight", "prompt")])
def test_an_invalid_demonstration_is_refused_with_its_number(column: str, value: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(Permanent, match="demonstration 1: ") as caught:
        demonstrations(told(tmp_path, column, value), SFTRecipe())
    assert said in str(caught.value)


def test_a_demonstration_without_an_answer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match="demonstration 1: its answer is None"):
        demonstrations(told(tmp_path, "answer", None), SFTRecipe())


def told(folder: Path, column: str, value: Any) -> Path:
    """Return a run folder whose second demonstration has this value in one column."""
    whole = {"prompt": json.dumps(ASK), "answer": "yes", "weight": 0.5}
    write(folder, [whole, {**whole, column: value}]).rename(folder / "demonstrations.parquet")
    return folder


def test_the_error_of_a_template_is_reported(tiny_model: Path, tmp_path: Path) -> None:
    rows = [{"prompt": json.dumps(ASK), "chosen": "yes", "rejected": "no"}]
    with pytest.raises(Permanent, match="only users"):
        encode(tokenizer(tiny_model, "{{ raise_exception('only users') }}"), read(write(tmp_path, rows), True)[0])


@pytest.mark.parametrize("text", ['{"a": 1}', '{"role": "user", "content": "x"}', "{broken", "[]", "plain"])
def test_text_that_only_looks_like_a_message_stays_text(text: str) -> None:
    assert assistant_message(text) == {"role": "assistant", "content": text}


def test_invalid_arguments_of_a_tool_call_stay_unchanged() -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{oops"}}]
    broken = {"role": "assistant", "content": "x", "tool_calls": calls}
    assert assistant_message(stored_answer(broken))["tool_calls"][0]["function"]["arguments"] == "{oops"


BROKEN = [
    {"role": "assistant", "tool_calls": "abc"},
    {"role": "assistant", "tool_calls": 5},
    {"role": "assistant", "tool_calls": ["abc"]},
    {"role": "assistant", "tool_calls": [{"function": "f"}]},
    {"role": "assistant", "content": [1, 2]},
    {"role": "assistant", "content": "x", "more": 1},
    {"role": "assistant"},
]
"""JSON objects that a user may write as a correction and that are almost messages."""
DEEP = '{"role": "assistant", "content": ' + "[" * 100_000
DEEP_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "[" * 100_000}}
DEEP_ARGUMENTS = stored_answer({"role": "assistant", "content": "", "tool_calls": [DEEP_CALL]})


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("text", [*map(json.dumps, BROKEN), DEEP])
def test_no_text_of_a_user_ends_a_run(text: str, tools: str | None, tiny_model: Path, tmp_path: Path) -> None:
    row = {"prompt": json.dumps(ASK), "chosen": text, "rejected": "no", "tools": tools}
    (example,) = read(write(tmp_path, [row]), True)
    assert example.chosen == {"role": "assistant", "content": text}
    assert encode(tokenizer(tiny_model, WITH_TOOLS), example).chosen


def test_json_that_no_dialect_has_stored_as_a_call_is_text(tiny_model: Path, tmp_path: Path) -> None:
    text = canonical(call("three")).decode()  # its content is null
    for tools in (None, TOOLS):
        (example,) = read(write(tmp_path, [{"prompt": json.dumps(ASK), "chosen": text, "rejected": "no", "tools": tools}]), True)
        assert example.chosen["content"] == text
    assert encode(tokenizer(tiny_model, WITH_TOOLS), example).chosen


def test_a_template_without_tools_leaves_such_pairs_out_and_trains_on_the_others(tiny_model: Path, tmp_path: Path) -> None:
    rows = [
        {"prompt": json.dumps(ASK), "chosen": "yes", "rejected": "no", "tools": None},
        {"prompt": json.dumps(ASK), "chosen": stored_answer(call("three")), "rejected": "no", "tools": None},
        {"prompt": json.dumps(ASK), "chosen": "yes", "rejected": "no", "tools": TOOLS},
    ]
    examples = read(write(tmp_path, rows), True)
    kept, left = fit(tokenizer(tiny_model, TEMPLATE), examples, 64)
    assert [number for number, _ in kept] == [0]
    assert left == {OMITTED: 2}
    assert len(fit(tokenizer(tiny_model, WITH_TOOLS), examples, 64)[0]) == 3


def test_demonstrations_with_tools_are_rendered_by_the_template(tiny_model: Path, tmp_path: Path) -> None:
    write(tmp_path, [{"prompt": json.dumps(ASK), "answer": stored_answer(call("three")), "tools": TOOLS}]).rename(
        tmp_path / "demonstrations.parquet"
    )
    tokens = tokenizer(tiny_model, WITH_TOOLS)
    (row,), _ = dataset_of(tokens, demonstrations(tmp_path, SFTRecipe()), 64)
    answer = [token for token, is_answer in zip(row["input_ids"], row["completion_mask"], strict=True) if is_answer]
    assert words(tokens, answer).split() == ["up", "left", "three", "<end>"]
    assert "<user> left <user> one two" in words(tokens, row["input_ids"])


def test_arguments_that_nest_too_deeply_stay_text() -> None:
    assert assistant_message(DEEP_ARGUMENTS)["tool_calls"][0]["function"]["arguments"] == "[" * 100_000
