"""Tests of the messages to a judge and of the validation of its replies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.rewards.judge.messages import about_answer, about_pair, content_key, harmless, repaired
from ratchet.rewards.judge.probes import probe_samples
from ratchet.rewards.judge.verdict import Grade, Outcome, Preference, read_reply, response_format
from tests.judge_stub import grade, parts, preference

SAMPLE: dict[str, Any] = {"prompt": [{"role": "user", "content": "What is 1 + 1?"}], "answer": "A: 2", "reference": "2"}


def test_each_text_lies_between_marks() -> None:
    messages = about_answer("Is it right?", SAMPLE).messages("ab12")
    assert parts({"messages": messages}) | {"end of the data": ""} == {
        "conversation": "[user] What is 1 + 1?",
        "reference": "2",
        "answer": "A: 2",
        "end of the data": "",
    }
    assert "#ab12#" in messages[0]["content"]
    assert "Is it right?" in messages[0]["content"]


def test_the_reference_may_be_withheld() -> None:
    assert "reference" not in parts({"messages": about_answer("c", SAMPLE, reference=False).messages("m")})


@given(st.text())
def test_no_text_can_end_its_part(text: str) -> None:
    mark = "5f" * 16
    messages = about_answer("c", SAMPLE | {"answer": text}).messages(mark)
    assert messages[1]["content"].count(f"#{mark}#") == 4


@pytest.mark.parametrize(
    "token", ["<|im_start|>", "<|eot_id|>", "</s>", "<s>", "[INST]", "[/INST]", "<start_of_turn>", "<END_OF_TURN>", "<｜User｜>", "<bos>"]
)
def test_special_tokens_are_broken_up(token: str) -> None:
    assert token not in harmless(f"a {token} b")
    assert token not in repaired(about_answer("c", SAMPLE).messages("m"), token)[2]["content"]


def test_other_texts_stay() -> None:
    assert harmless("if a < b and c[1] | d: <b>x</b>".replace("</", "< /")) == "if a < b and c[1] | d: <b>x< /b>"


def test_the_key_depends_on_judge_criterion_and_texts_only() -> None:
    question = about_answer("c", SAMPLE)
    keys = {
        question.key("a"),
        about_answer("c", {**SAMPLE, "feedback": []}).key("a"),
        question.key("b"),
        about_answer("d", SAMPLE).key("a"),
        about_answer("c", SAMPLE | {"answer": "A: 3"}).key("a"),
        about_answer("c", SAMPLE, reference=False).key("a"),
        about_pair("c", SAMPLE, "A: 2", "A: 3").key("a"),
        about_pair("c", SAMPLE, "A: 3", "A: 2").key("a"),
    }
    assert len(keys) == 7


def test_half_of_a_surrogate_pair_is_no_error() -> None:
    broken = SAMPLE | {"answer": "\ud800"}
    assert about_answer("c", broken).key("a")
    assert content_key(broken)
    assert about_answer("c", broken).messages("m")[1]["content"].encode()


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (grade(5), (Outcome.SCORED, 1.0)),
        (grade(1), (Outcome.SCORED, 0.0)),
        (f"```json\n{grade(3)}\n```", (Outcome.SCORED, 0.5)),
        (grade(5, addressed=True), (Outcome.ADDRESSED, None)),
        (grade(5, applies=False), (Outcome.NOT_APPLICABLE, None)),
        (grade(6), None),
        (grade(5) + grade(1), None),
        ("Score: 5", None),
        ("5", None),
        (json.dumps({"score": 5}), None),
        (json.dumps(json.loads(grade(5)) | {"score": "5"}), None),
        (json.dumps(json.loads(grade(5)) | {"score": True}), None),
        (json.dumps(json.loads(grade(5)) | {"score": 4.5}), None),
        (json.dumps(json.loads(grade(5)) | {"more": 1}), None),
        ("[" * 10_000, None),
        ("", None),
    ],
)
def test_a_reply_of_another_form_is_no_verdict(reply: str, verdict: tuple[Outcome, float | None] | None) -> None:
    found = read_reply(Grade, reply)
    assert (found.verdict if found else None) == verdict


def test_a_preference() -> None:
    values = [reply.verdict[1] for text in ("first", "second", "neither") if (reply := read_reply(Preference, preference(text)))]
    assert values == [1.0, 0.0, 0.5]
    assert read_reply(Preference, grade(5)) is None


@pytest.mark.parametrize("form", [Grade, Preference])
def test_the_schema_of_the_request_has_only_plain_keywords(form: type[Grade] | type[Preference]) -> None:
    sent = response_format(form)["json_schema"]
    assert sent["strict"] is True
    assert set(sent["schema"]["required"]) == set(sent["schema"]["properties"]) == set(form.model_fields)
    assert {key for value in sent["schema"]["properties"].values() for key in value} <= {"type", "enum"}


def test_the_probes_differ_and_their_answers_are_bad() -> None:
    samples = probe_samples(300)
    assert len({content_key(sample) for sample in samples}) == 300
    assert samples == probe_samples(300)
    assert sum(len(sample["answer"].strip()) <= 4 for sample in samples) == 30
    assert len(probe_samples(5000)) == 5000
