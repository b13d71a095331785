"""What is stored in clear of a quarantined record: no text under a key that is not known, whatever its form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.materializer.quarantine.shown import shown, shown_text
from tests.unit.materializer.records import attribute

SECRET = "ada-lovelace-1815"
PSEUDONYM = "u1_" + "a" * 26
PLACES: list[Any] = [
    {"user_idx": SECRET},
    {"userx": {"id": SECRET}},
    {"userx": [{"content": SECRET}]},
    {"metadata": {"userx": SECRET}},
    {"metadata": json.dumps({"userx": SECRET})},
    {"metadata": f'{{"userx": "{SECRET}"'},
    {"metadata": repr({"userx": SECRET})},
    {"metadata": SECRET},
    {"attributes": [attribute("user.idx", SECRET)]},
    {"attributes": [attribute("metadata.userx", SECRET)]},
    {"attributes": [{"keyx": "user.id", "value": {"stringValue": SECRET}}]},
    {"attributes": [{"key": "user.id", "valuex": {"stringValue": SECRET}}]},
    {"attributes": [{"key": "gen_ai.input.messages", "value": {"stringValue": json.dumps([{"userx": SECRET}])}}]},
    {"attributes": [{"key": "metadata", "value": {"kvlistValue": {"values": [attribute("userx", SECRET)]}}}]},
    {"output": f'[{{"content": "an answer"NaN{{"user_id": "{SECRET}"'},
    [[SECRET]],
]


@pytest.mark.parametrize("record", PLACES, ids=str)
def test_no_text_under_an_unknown_key_is_in_clear(record: Any) -> None:
    found = json.dumps(shown(record))
    assert SECRET not in found
    assert "1815" not in found


def test_content_times_and_pseudonyms_are_in_clear() -> None:
    record = {
        "id": "a-1",
        "timestamp": 1790000000,
        "user_id": PSEUDONYM,
        "messages": [{"role": "user", "content": "a question"}],
        "setting": 7,
        "flags": {"a": 1, "b": 2},
        "consent": True,
    }
    assert shown(record) == record | {"setting": "[number]", "flags": "[object of 2]"}
    item = {"attributes": [attribute("user.id", PSEUDONYM), attribute("gen_ai.operation.name", "chat")]}
    assert shown(item) == item


@pytest.mark.parametrize("record", [{"x": {"user_id": PSEUDONYM}}, {"x": [7, [PSEUDONYM]]}, {"x": json.dumps({"user": PSEUDONYM})}])
def test_every_pseudonym_stays_so_that_an_erasure_finds_it(record: Any) -> None:
    assert PSEUDONYM in json.dumps(shown(record))
    assert PSEUDONYM in shown_text(f"x{json.dumps(record)[:-1]};")


def test_of_an_unreadable_record_only_its_structure_is_in_clear() -> None:
    text = f'{{"user_id": "{PSEUDONYM}", "messages": "a riddle", "userx": "{SECRET}", "ä'
    assert shown_text(text) == f'{{"user_id": "{PSEUDONYM}", "messages": "[1] [6]", "[5]": "[17]", "[1]'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.just(SECRET),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["key", "value", "metadata", "userx", "attributes"]), inner)
    ),
    max_leaves=12,
)


@given(JSON)
def test_no_record_of_holders_alone_shows_a_text(record: Any) -> None:
    assert SECRET not in json.dumps({"outer": shown(record)}).replace(f'"key": "{SECRET}"', "")
