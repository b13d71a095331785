"""Tests of the division of JSON arrays: the elements are those of a parser, and damage costs only what follows."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.materializer.receive.files import array_elements as module
from ratchet.materializer.receive.files.array_elements import array_elements

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10
)


def elements(data: bytes) -> list[Any]:
    return [json.loads(line) for line in array_elements(io.BytesIO(data))]


@pytest.mark.slow
@given(st.lists(VALUES, max_size=6), st.sampled_from([None, 2]), st.booleans(), st.integers(1, 9))
def test_the_elements_are_those_of_a_parser(values: list[Any], indent: int | None, escaped: bool, block: int) -> None:
    before, module._BLOCK = module._BLOCK, block
    try:
        assert elements(json.dumps(values, indent=indent, ensure_ascii=escaped).encode("utf-8", "surrogatepass")) == values
    finally:
        module._BLOCK = before


@pytest.mark.parametrize(
    ("data", "before", "why"),
    [
        (b'[{"a": 1}, {"a": 2', [{"a": 1}], "no end"),
        (b'[{"a": 1}, "x', [{"a": 1}], "no end"),
        (b'[{"a": 1}] {"b": 2}', [{"a": 1}], "follows"),
        (b'{"a": 1}', [], "no JSON array"),
    ],
)
def test_damage_costs_only_what_follows(data: bytes, before: list[Any], why: str) -> None:
    found = array_elements(io.BytesIO(data))
    assert [json.loads(next(found)) for _ in before] == before
    with pytest.raises(EOFError, match=why):
        next(found)


def test_an_element_that_is_too_large_ends_the_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", 100)
    monkeypatch.setattr(module, "MAX_ELEMENT", 1000)
    data = b'[1, "' + b"x" * 5000 + b'", 2]'
    with pytest.raises(EOFError, match="larger than"):
        list(array_elements(io.BytesIO(data)))
    assert elements(b"[]") == elements(b" [ ] \n") == []
