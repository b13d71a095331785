"""Tests of pairs with tools: the model's own template renders them, and pairs that it would render incompletely are refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contracts.errors import Permanent
from contracts.ids import canonical
from tests.unit.trainers.conftest import TEMPLATE
from trainers.job.trl.conversations import assistant_message, encode, read
from trainers.job.trl.sft import rows as demonstrations
from trainers.recipes import SFTRecipe

pytestmark = pytest.mark.slow  # TRL takes seconds to load

WITH_TOOLS = (
    "{% for t in tools or [] %}<user> {{ t.function.name }} {% endfor %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}<assistant> {{ m.content }} "
    "{% for c in m.tool_calls or [] %}up {{ c.function.name }} {{ c.function.arguments.what }} {% endfor %}<end>"
    "{% elif m.role == 'tool' %}down {{ m.content }} {% else %}<user> {{ m.content }} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)
TOOLS = json.dumps([{"type": "function", "function": {"name": "left", "parameters": {}}}])
ASK: list[dict[str, Any]] = [{"role": "user", "content": "one two"}]


def call(what: str) -> dict[str, Any]:
    """Return an assistant message that calls a tool."""
    arguments = json.dumps({"what": what})
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "left", "arguments": arguments}}],
    }


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
    row = {"prompt": json.dumps(ASK), "chosen": canonical(call("three")).decode(), "rejected": "no", "tools": TOOLS}
    tokens = tokenizer(tiny_model, WITH_TOOLS)
    ((_, pair),) = encode(tokens, read(write(tmp_path, [row]), True), 64)
    assert words(tokens, pair.prompt) == "<user> left <user> one two <assistant>"
    assert words(tokens, pair.chosen).split() == ["up", "left", "three", "<end>"]
    assert words(tokens, pair.rejected).split() == ["no", "<end>"]


def test_tool_calls_and_their_results_are_in_the_prompt(tiny_model: Path, tmp_path: Path) -> None:
    prompt = [*ASK, call("four"), {"role": "tool", "tool_call_id": "1", "content": "five"}]
    tokens = tokenizer(tiny_model, WITH_TOOLS)
    rows = [{"prompt": json.dumps(prompt), "chosen": "yes", "rejected": "no", "tools": None}]
    ((_, pair),) = encode(tokens, read(write(tmp_path, rows), True), 64)
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
        encode(tokenizer(tiny_model, TEMPLATE), read(write(tmp_path, rows), True), 64)


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


def told(folder: Path, column: str, value: Any) -> Any:
    """Return a job whose second demonstration has this value in one column."""
    whole = {"prompt": json.dumps(ASK), "answer": "yes", "weight": 0.5}
    write(folder, [whole, {**whole, column: value}]).rename(folder / "demonstrations.parquet")
    return SimpleNamespace(run=folder)


def test_the_error_of_a_template_is_reported(tiny_model: Path, tmp_path: Path) -> None:
    rows = [{"prompt": json.dumps(ASK), "chosen": "yes", "rejected": "no"}]
    with pytest.raises(Permanent, match="only users"):
        encode(tokenizer(tiny_model, "{{ raise_exception('only users') }}"), read(write(tmp_path, rows), True), 64)


@pytest.mark.parametrize("text", ['{"a": 1}', '{"role": "user", "content": "x"}', "{broken", "[]", "plain"])
def test_text_that_only_looks_like_a_message_stays_text(text: str) -> None:
    assert assistant_message(text) == {"role": "assistant", "content": text}


def test_invalid_arguments_of_a_tool_call_stay_unchanged() -> None:
    broken = {"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": "{oops"}}]}
    assert assistant_message(json.dumps(broken))["tool_calls"][0]["function"]["arguments"] == "{oops"


def test_long_answers_are_truncated_and_long_prompts_are_dropped(tiny_model: Path, tmp_path: Path) -> None:
    long = [{"role": "user", "content": " ".join(["one"] * 20)}]
    rows = [
        {"prompt": json.dumps(ASK), "chosen": "yes " * 20, "rejected": "no"},
        {"prompt": json.dumps(long), "chosen": "yes", "rejected": "no"},
    ]
    ((number, pair),) = encode(tokenizer(tiny_model, TEMPLATE), read(write(tmp_path, rows), True), 10)
    assert number == 0
    assert (len(pair.prompt) + len(pair.chosen), len(pair.rejected)) == (10, 2)


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
DEEP_ARGUMENTS = json.dumps({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 100_000}}]})


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("text", [*map(json.dumps, BROKEN), DEEP])
def test_no_text_of_a_user_ends_a_run(text: str, tools: str | None, tiny_model: Path, tmp_path: Path) -> None:
    row = {"prompt": json.dumps(ASK), "chosen": text, "rejected": "no", "tools": tools}
    (example,) = read(write(tmp_path, [row]), True)
    assert example.chosen == {"role": "assistant", "content": text}
    assert len(encode(tokenizer(tiny_model, WITH_TOOLS), [example], 64)) == 1


def test_a_tool_call_without_tools_is_text(tiny_model: Path, tmp_path: Path) -> None:
    """Otherwise, one such pair would make a template without tool calls refuse all pairs."""
    text = canonical(call("three")).decode()
    (example,) = read(write(tmp_path, [{"prompt": json.dumps(ASK), "chosen": text, "rejected": "no", "tools": None}]), True)
    assert example.chosen["content"] == text
    assert len(encode(tokenizer(tiny_model, TEMPLATE), [example], 64)) == 1


def test_arguments_that_nest_too_deeply_stay_text() -> None:
    assert assistant_message(DEEP_ARGUMENTS)["tool_calls"][0]["function"]["arguments"] == "[" * 100_000
