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


def test_the_last_message_keeps_its_finish_reason() -> None:
    def turns(**more: Any) -> dict[str, Any]:
        return BASE | {"messages": [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello.", **more}]}

    cut, stopped = row_of(turns(finish_reason="length")), row_of(turns(finish_reason="content_filter"))
    assert (cut["finish_reason"], stopped["status"], stopped["answer"]) == ("length", "error", None)
    assert [bad.reason for bad in read(turns(prefix=True)).bad] == ["empty_response"]


def test_a_missing_reply_is_not_replaced_by_an_earlier_answer() -> None:
    turns = [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "{"}]
    cut = read(BASE | {"messages": turns, "output": '{"text": "Hel'}, response="output.text")
    request = read(BASE | {"request": {"model": "m", "messages": turns}, "reply": None}, messages="request")
    null = read(BASE | {"messages": turns, "response": None})
    two = read(BASE | {"messages": [*turns, {"role": "assistant", "content": "And."}]})
    assert [[bad.reason for bad in one.bad] for one in (cut, request, null, two)] == [["empty_response"]] * 4


def test_a_refusal_in_json_text_counts() -> None:
    record = BASE | {"messages": "Hi?", "response": "Hello."}
    inside = row_of(record | {"user": '{"id": "ada", "consent": false}'}, user_id="user.id")
    assert (inside["answer"], inside["user"]) == (None, "ada")
    for text in ('{"agreed": false, "x": NaN}', "{'agreed': False}", '{"agreed": true'):
        assert row_of(record | {"extra_info": text}, consent="extra_info.agreed")["answer"] is None, text
    for key, text in (("opt_out", '{"reason": "asked"}'), ("training_consent", '{"a'), ("consent", '{"a')):
        assert row_of(record | {key: text})["answer"] is None, key
    agreed = row_of(record | {"consent": '{"given": true}'}, consent="consent.given")
    assert (agreed["answer"], agreed["consent"]) == ("Hello.", True)


def test_a_statement_needs_an_id_and_a_time_of_its_own() -> None:
    said = {"consent_for": "trace", "id": "t1", "consent": False, "timestamp": "2026-11-01T00:00:00Z"}
    [row] = read(said, timestamp="=2026-01-31").consents
    assert row["time"] == 1_793_491_200_000_000
    for mapping, record in (({"id": "#"}, said), ({"timestamp": "=2026-01-31"}, said | {"timestamp": None})):
        found = read(record, **mapping)
        assert (found.consents, [bad.reason for bad in found.bad]) == ([], ["missing_id"])


def test_a_value_of_the_record_decides_over_that_for_all_records() -> None:
    record = BASE | {"messages": "Hi?", "response": "Hello.", "confidentiality": "restricted"}
    found = row_of(record, confidentiality="=public", region="=eu")
    assert (found["confidentiality"], found["region"]) == ("restricted", "eu")


def test_a_record_that_nests_too_deeply_for_a_digest_is_named_so() -> None:
    deep: Any = "end"
    for _ in range(300):
        deep = {"a": deep}
    assert [bad.reason for bad in read({"timestamp": "2026-01-05T09:00:00Z", "deep": deep}, id="#").bad] == ["too_deep"]


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


@pytest.mark.parametrize("given", ["meh", "", -1, None, {}, float("nan")])
def test_other_values_are_no_rating(given: Any) -> None:
    with pytest.raises(Rejected, match="a rating must be"):
        rating(given)
    with pytest.raises(Rejected, match="a rating is above 1"):
        rating(5)


def test_the_rating_of_a_feedback_object_is_read() -> None:
    record = BASE | {"messages": "Hi?", "response": "Hello."}
    for given, values in (({"rating": "like"}, [1.0]), ({"score": 0, "comment": "?"}, [0.0]), ({"rating": None}, [])):
        found = read(record | {"feedback": given})
        assert ([row["value"] for row in found.feedback], found.bad) == (values, [])
    for other in ({"stars": 5}, {"score": 1, "max_score": 5}, {"name": "toxicity", "value": 1}):
        assert [bad.reason for bad in read(record | {"feedback": other}).bad] == ["bad_value"], other
