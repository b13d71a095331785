"""Tests of the JSON of streamed events: the fast way gives what the strict one gives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ratchet.router.apis.api import as_bytes, as_object
from ratchet.runtime.http_replies import strict_json

TEXTS = st.text(st.characters(codec=None) | st.sampled_from("\ud800\udfff\u2028\x85\x00\"\\é😀"), max_size=8)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.dictionaries(TEXTS, VALUES, max_size=5), st.booleans())
@example({"n": 2**64}, True)
@example({"n": -(2**63) - 1}, True)
@example({"text": "\ud800"}, True)
@example({"\ud800": None}, False)
def test_an_event_is_passed_on_with_the_same_value_in_ascii(value: dict[str, Any], in_ascii: bool) -> None:
    data = json.dumps(value, ensure_ascii=in_ascii).encode("utf-8", "surrogatepass")
    try:
        expected = strict_json(data.decode("utf-8", "surrogatepass"))  # as Python's own parser reads bytes
    except ValueError:
        with pytest.raises(ValueError):
            as_object(data)
        return
    found = as_object(data)
    assert found == expected
    assert json.dumps(found) == json.dumps(expected), "and the same types"
    passed = as_bytes(found)
    assert passed.isascii()
    assert json.loads(passed) == expected


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"1", b"{", b'{"a": NaN}', b'{"a": 1e999}', b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}", b'{"a": "\xff"}', b'{"a": 1} x'],
)
def test_other_events_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        as_object(data)
