"""Records that applications, vendors and public data sets have in files: read with a mapping, without one record of our own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.jsonl import decode_record
from ratchet.materializer.dialects.values import rating

NOW = 4_000_000_000_000_000
BASE = {"id": "1", "timestamp": "2026-01-05T09:00:00Z"}


def read(record: dict[str, Any], **mapping: str) -> Decoded:
    found = Decoded()
    decode_record(record, "line 1", Limits(NOW, True, mapping=mapping), found)
    return found


def row_of(record: dict[str, Any], **mapping: str) -> dict[str, Any]:
    found = read(record, **mapping)
    assert [(bad.reason, bad.detail) for bad in found.bad] == []
    return found.traces[0]


def test_the_last_message_of_a_conversation_is_its_answer() -> None:
    turns = [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello."}]
    whole = row_of(BASE | {"messages": [{"role": "system", "content": "Be brief."}, *turns]})
    assert (whole["answer"], [one["role"] for one in json.loads(whole["messages"])]) == ("Hello.", ["system", "user"])
    shared = [{"from": "human", "value": "Hi?"}, {"from": "gpt", "value": "Hello."}]
    assert row_of(BASE | {"conversations": shared}, messages="conversations")["answer"] == "Hello."


@pytest.mark.parametrize(
    "messages", [[{"role": "assistant", "content": "Hello."}], [{"role": "user", "content": "Hi?"}], "Hi?"], ids=["alone", "user", "text"]
)
def test_a_record_without_an_answer_is_still_quarantined(messages: Any) -> None:
    assert [bad.reason for bad in read(BASE | {"messages": messages}).bad] == ["empty_response"]


def test_an_answer_of_its_own_decides_over_the_last_message() -> None:
    turns = [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "And?"}]
    assert row_of(BASE | {"messages": turns, "response": "Bye."})["answer"] == "Bye."
    assert [bad.reason for bad in read(BASE | {"messages": turns[:2], "response": ""}).bad] == ["empty_response"]


def test_objects_that_are_json_text_are_looked_into() -> None:
    request = json.dumps({"messages": [{"role": "user", "content": "Hi?"}], "user": {"id": "ada"}})
    found = row_of(BASE | {"request": request, "response": "Hello."}, messages="request.messages", user_id="request.user.id")
    assert (found["answer"], found["user"]) == ("Hello.", "ada")


def test_choices_without_their_completion_are_an_answer() -> None:
    choice = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "Hello."}}
    found = row_of(BASE | {"messages": "Hi?", "output": [choice]}, response="output")
    assert (found["answer"], found["finish_reason"]) == ("Hello.", "length")


def test_records_without_id_and_time_get_them_from_the_mapping() -> None:
    record = {"messages": "Hi?", "response": "Hello."}
    mapping = {"id": "#", "timestamp": "=2026-01-31", "model": "=gpt-4.1"}
    first, again, other = (row_of(one, **mapping) for one in (record, dict(reversed(record.items())), record | {"response": "Bye."}))
    assert first["id"] == again["id"] != other["id"]
    assert (first["time"], first["model"]) == (1_769_817_600_000_000, "gpt-4.1")


@pytest.mark.parametrize(
    ("given", "value"),
    [("like", 1.0), ("Dislike", 0.0), ("thumbs-up", 1.0), ("Thumbs Down", 0.0), ("\U0001f44d", 1.0), ("0.5", 0.5), (True, 1.0), (0, 0.0)],
)
def test_words_are_ratings(given: Any, value: float) -> None:
    assert rating(given) == value


@pytest.mark.parametrize("given", ["meh", "", 5, -1, None, {}, float("nan")])
def test_other_values_are_no_rating(given: Any) -> None:
    with pytest.raises(Rejected, match="a rating must be"):
        rating(given)


def test_the_rating_of_a_feedback_object_is_read() -> None:
    record = BASE | {"messages": "Hi?", "response": "Hello."}
    for given, values in (({"rating": "like"}, [1.0]), ({"score": 0, "comment": "?"}, [0.0]), ({"rating": None}, [])):
        found = read(record | {"feedback": given})
        assert ([row["value"] for row in found.feedback], found.bad) == (values, [])
    assert [bad.reason for bad in read(record | {"feedback": {"stars": 5}}).bad] == ["bad_value"]
