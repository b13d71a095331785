"""Tests of the scorers of an answer's form: JSON schemas, regular expressions and code blocks."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError
from ratchet.rewards.code_blocks import code_blocks
from ratchet.rewards.formats import JsonSchema, Regex

ORDER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
BACKTRACKING = r"^(a+)+$"
"""Takes time that doubles with each further letter."""


def _schema(answer: str, **options: Any) -> float | None:
    return JsonSchema(**{"json_schema": ORDER, **options}).score([{"answer": answer}])[0]


def _regex(answer: str, **options: Any) -> float | None:
    return Regex(**options).score([{"answer": answer}])[0]


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ('{"n": 1}', 1.0),
        ('{"n": "1"}', 0.0),
        ('{"n": 1, "m": 2}', 0.0),
        ('{"n": NaN}', 0.0),
        ("n is 1", 0.0),
        ("", 0.0),
        ('Here it is:\n```json\n{"n": 1}\n```\nas you asked', 1.0),
        ('```\n{"n": 1}\n```\n```\n{"n": 2}\n```', 0.0),
        ("[" * 100_000, 0.0),
        ('{"n": ' + "1" * 10_000 + "}", 0.0),
    ],
)
def test_json_schema_accepts_only_json_that_follows_it(answer: str, score: float) -> None:
    assert _schema(answer) == score


def test_json_schema_may_refuse_text_around_the_json() -> None:
    assert _schema('```json\n{"n": 1}\n```', fenced=False) == 0.0


def test_json_schema_may_be_text() -> None:
    assert _schema('{"n": 1}', json_schema='{"required": ["n"]}') == 1.0


@pytest.mark.parametrize("schema", ["{", "[]", {"type": "number?"}, {"$ref": "https://example.com/schema.json"}, {"$ref": "other.json#/a"}])
def test_a_schema_that_cannot_be_used_is_an_error_of_the_loop_file(schema: Any) -> None:
    with pytest.raises(ConfigError, match="json_schema"):
        JsonSchema(json_schema=schema)


def test_a_pattern_of_a_schema_has_a_time_limit() -> None:
    schema = {"type": "string", "pattern": BACKTRACKING}
    scorer = JsonSchema(json_schema=schema, timeout=0.1)
    assert scorer.score([{"answer": f'"{"a" * 40}!"'}, {"answer": '"aa"'}]) == [None, 1.0]


@pytest.mark.parametrize(
    ("answer", "options", "score"),
    [
        ("ticket OPS-12", {"pattern": r"OPS-\d+"}, 1.0),
        ("ticket", {"pattern": r"OPS-\d+"}, 0.0),
        ("OPS-12!", {"pattern": r"OPS-\d+", "whole": True}, 0.0),
        ("As an AI", {"pattern": "(?i)as an ai", "forbid": True}, 0.0),
        ("Yes", {"pattern": "(?i)as an ai", "forbid": True}, 1.0),
    ],
)
def test_regex_matches(answer: str, options: dict[str, Any], score: float) -> None:
    assert _regex(answer, **options) == score


@pytest.mark.parametrize("forbid", [False, True])
def test_an_answer_on_which_the_pattern_takes_too_long_gets_no_score(forbid: bool) -> None:
    scorer = Regex(pattern=BACKTRACKING, timeout=0.1, forbid=forbid)
    assert scorer.score([{"answer": "a" * 40 + "!"}, {"answer": "aaa"}]) == [None, float(not forbid)]


def test_an_invalid_pattern_is_an_error_of_the_loop_file() -> None:
    with pytest.raises(ConfigError, match="pattern"):
        Regex(pattern="(")


def test_a_missing_option_is_named() -> None:
    with pytest.raises(ConfigError, match="option 'pattern': it is required"):
        Regex()


def test_code_blocks() -> None:
    assert code_blocks("a\n```Python\nx\n```\nb\n````\n```\ny\n````\n") == [("python", "x"), ("", "```\ny")]
    assert code_blocks("```\nnever closed") == [("", "never closed")]
    assert code_blocks("`inline` and ```inline```") == []
