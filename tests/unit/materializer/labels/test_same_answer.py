"""Tests of answers that differ in their form only."""

from __future__ import annotations

import pytest

from ratchet.materializer.labels.same_answer import is_same_answer


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": [2]}', ' {"b":[2],"a":1.0}\n'),
        ("SELECT name FROM t WHERE age > 93", "select name\n  from t where age > 93;"),
        ("80", "80.0"),
        ("Yes", "yes."),
        ("...", "..."),
    ],
)
def test_answers_of_another_form_are_the_same(one: str, other: str) -> None:
    assert is_same_answer(one, other)
    assert is_same_answer(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1}', '{"a": true}'),
        ('{"a": [1, 2]}', '{"a": [2, 1]}'),
        ('{"a": 1}', '{"a": 1'),
        ("80", "80 km"),
        ("-5", "5"),
        ("?", "!"),
        ("[" * 100_000, "[" * 99_999),
        ("1e999", "2e999"),
        ("9007199254740993.0", "9007199254740993"),
    ],
)
def test_other_answers_are_not(one: str, other: str) -> None:
    assert not is_same_answer(one, other)
    assert not is_same_answer(other, one)
