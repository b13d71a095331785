"""What must not be taken for a good answer: failures, placeholders of tools, lost parts, one text that answers everything."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.contracts.data.decoding import Decoded, Limits
from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.decode import decode
from ratchet.materializer.dialects.screening.outcome import has_failed, span_has_failed
from ratchet.materializer.dialects.screening.placeholders import PLACEHOLDERS, Placeholder, is_redacted, may_be_redacted
from ratchet.materializer.dialects.screening.sample import first_records, look, repeated_answer
from ratchet.materializer.privacy.masking import contents
from ratchet.materializer.privacy.search import Joined
from tests.unit.materializer.records import T0, attribute, batch, evaluation, log, logs, raw, request_of, span, spans

LIMITS = Limits(now=T0 // 1000 + 10**12, assume_consent=True)


def record(**more: Any) -> dict[str, Any]:
    return {"id": "a", "timestamp": T0, "messages": "What is due?", "response": "Nothing."} | more


def read(*records: Any, kind: str = "jsonl", limits: Limits = LIMITS) -> Decoded:
    return decode(batch(*records, kind=kind), limits)


@pytest.mark.parametrize("word", ["ok", "SUCCESS", "succeeded", "Completed", 200, "204", True, None, "", {"code": 200}])
def test_known_words_are_a_success(word: Any) -> None:
    assert not has_failed(word)


@pytest.mark.parametrize(
    "word",
    [
        *(
            "failure",
            "ERROR",
            "Failed",
            500,
            "429",
            404.0,
            "timeout",
            "Timed Out",
            "time-out-error",
            "cancelled",
            False,
            {"status": "failed"},
        ),
        *("RateLimitError", "ValidationException", "content_filter", 302, "step_failed"),
    ],
)
def test_known_words_are_a_failure(word: Any) -> None:
    assert has_failed(word)


@pytest.mark.parametrize("word", ["pending", "weird", 7, 3.5, ["ok"], "okk", "running", {"x": 1}])
def test_a_word_that_is_not_known_is_no_success(word: Any) -> None:
    with pytest.raises(Rejected, match="unknown_status"):
        has_failed(word)
    assert [bad.reason for bad in read(record(status=word)).bad] == ["unknown_status"]


def test_a_failed_call_without_content_is_a_failed_call() -> None:
    for failed in (record(status="failure", response=None), record(status="failure", response=None, messages=None), record(error="429")):
        [row] = read(failed).traces
        assert (row["status"], row["answer"]) == ("error", None)


@pytest.mark.parametrize(
    ("status", "error", "failed"),
    [
        ({}, "timeout", True),
        (None, "500", True),
        ({"code": 0}, "X", True),
        ({"code": "STATUS_CODE_UNSET"}, "X", True),
        ({"code": 1}, "X", False),
        ({"code": "Error"}, None, True),
        ({"code": 2}, None, True),
        ({}, None, False),
        ({}, "", False),
    ],
)
def test_the_status_of_a_span(status: Any, error: Any, failed: bool) -> None:
    assert span_has_failed(status, error) == failed
    [row] = read(spans(span(1, error__type=error) | {"status": status}), kind="otlp-json").traces
    assert row["status"] == ("error" if failed else "ok")


def test_an_unknown_status_of_a_span_is_quarantined() -> None:
    assert [bad.reason for bad in read(spans(span(1) | {"status": {"code": 9}}), kind="otlp-json").bad] == ["unknown_status"]


TEXTS = (
    *("redacted-by-litellm", "default-message-value", "[REDACTED]", "[Scrubbed due to 'password']", "<REDACTED>", "***", "[Filtered]"),
    *(
        "__REDACTED__",
        "REDACTED",
        " [redacted] ",
        '"[REDACTED]"',
        "<redacted>",
        "[CONTENT REDACTED]",
        "[MASKED]",
        "********",
        "{{redacted}}",
    ),
    *("[REDACTED: pii]", "<fully masked due to failed mask function>", "xxxxxxxx", "[removed]", "(omitted)"),
    *(
        "<PERSON>",
        "<PERSON> <EMAIL_ADDRESS>",
        "[PERSON_NAME]",
        "[NAME], [ADDRESS].",
        "{NAME}",
        "{{EMAIL_ADDRESS_1}}",
        "<PHONE_NUMBER_2>",
        "########",
    ),
    *("Sum up @@@langfuseMedia:type=application/pdf|id=x|source=bytes@@@",),
    *("[Blob substitute]", "[Non-text content object: <Part>]", "[User input redacted.]", "[Assistant output redacted.]"),
    *("Read ... (litellm_truncated 129 chars) ... end", "(litellm_truncated skipped 9 chars)", "a[TRUNCATED: Field exceeded size limit]"),
    *("***REDACTED***", "[REDACTED_EMAIL]", "--redacted--", "<truncated due to size exceeding limit>", "REDACTED_BY_LITELLM"),
)
KEPT = (
    *(
        "[EMAIL_1] wrote to [NAME_2]",
        "[PERSON_1]",
        "Write to <EMAIL_ADDRESS> today.",
        "<address>",
        "[name]",
        "{NAME} is a field.",
        "# Title",
        "[TODO]",
        "<DIV>",
        "The word REDACTED is censored.",
        "Use *** for bold.",
        "a [REDACTED] name in a text",
        "x",
    ),
    *("**bold**", "[x] done", "filtered water", "[Filtered water]"[:8] + " water]", "masked", "<b>hidden</b> text", "xx", "..."),
)


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_that_a_tool_wrote_in_place_of_content_is_quarantined_everywhere(text: str) -> None:
    for one in (record(messages=text), record(response=text), record(correction=text), record(reference=text)):
        assert [bad.reason for bad in read(one).bad] == ["redacted_content"], one
    assert [bad.reason for bad in read(spans(span(1, text)), spans(span(2, "q", text)), kind="otlp-json").bad] == ["redacted_content"] * 2


@pytest.mark.parametrize("text", KEPT)
def test_other_texts_are_kept(text: str) -> None:
    assert not is_redacted(text)
    assert read(record(messages=text, response=text)).traces[0]["answer"] == text


def test_an_unmistakable_placeholder_counts_inside_of_a_text_and_the_loop_file_adds_more() -> None:
    assert any(one.unmistakable for one in PLACEHOLDERS)
    assert is_redacted("before redacted-by-litellm after")
    assert is_redacted("my login is [Scrubbed due to 'session']. Why?")
    assert not is_redacted("before <gone> after")
    assert [bad.reason for bad in read(record(response="a <gone> b"), limits=replace(LIMITS, placeholders=("<gone>",))).bad] == [
        "redacted_content"
    ]


@settings(max_examples=300)
@given(st.sampled_from([one for one in PLACEHOLDERS if one.unmistakable]), st.data())
def test_the_words_that_are_searched_first_find_every_unmistakable_placeholder(one: Placeholder, data: st.DataObject) -> None:
    found = data.draw(st.from_regex(re.compile(one.pattern, re.IGNORECASE | re.ASCII), fullmatch=True))
    assert is_redacted(f"before {found} behind, and a long text " + "that says a lot more " * 12)


def test_a_placeholder_in_a_call_or_a_part_is_found() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "Look:"}, {"type": "text", "text": "[REDACTED]"}]}]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"text": "redacted-by-litellm"}'}}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert [bad.reason for bad in read(record(messages=parts), record(response=answer)).bad] == ["redacted_content"] * 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"droppedAttributesCount": 1}, "dropped_content"),
        ({"droppedAttributesCount": "3"}, "dropped_content"),
        ({"droppedAttributesCount": 0, "droppedEventsCount": 0, "droppedLinksCount": 9}, None),
        ({"droppedEventsCount": 2}, None),  # the content is in attributes, and no event has any
        ({"events": [{"name": "gen_ai.choice", "attributes": [], "droppedAttributesCount": 1}]}, "dropped_content"),
        ({"events": [{"name": "exception", "attributes": [], "droppedAttributesCount": 1}]}, None),
        ({"status": {"code": 2}, "droppedAttributesCount": 1}, None),  # a failed call has no answer to lose
    ],
)
def test_a_span_that_may_have_lost_content_is_quarantined(change: dict[str, Any], reason: str | None) -> None:
    found = read(spans(span(1) | change), kind="otlp-json")
    assert [bad.reason for bad in found.bad] == ([reason] if reason else [])


@pytest.mark.parametrize("name", ["gen_ai.client.inference.operation.details", "gen_ai.choice"])
def test_a_log_record_that_lost_attributes_is_quarantined(name: str) -> None:
    values = {item["key"]: item for item in span(1)["attributes"]}
    parts = [{"eventName": "gen_ai.user.message", "attributes": [attribute("content", "q")]}] if name == "gen_ai.choice" else []
    last = {"eventName": name, "attributes": [*values.values(), attribute("message", json.dumps({"content": "a"}))]}
    ids = {"traceId": "1" * 32, "spanId": "1" * 16, "timeUnixNano": str(T0)}
    records = [one | ids for one in (*parts, last)]
    assert len(read(logs(*records), kind="otlp-json").traces) == 1
    records[-1]["droppedAttributesCount"] = 1
    assert [bad.reason for bad in read(logs(*records), kind="otlp-json").bad] == ["dropped_content"]


def test_events_that_were_dropped_count_where_the_content_is_in_events() -> None:
    events = [
        {"name": "gen_ai.user.message", "attributes": [attribute("content", "q")]},
        {"name": "gen_ai.choice", "attributes": [attribute("message", json.dumps({"content": "a"}))]},
    ]
    item = span(1, gen_ai__input__messages=None, gen_ai__output__messages=None, events=events)
    assert read(spans(item), kind="otlp-json").traces[0]["answer"] == "a"
    assert [bad.reason for bad in read(spans(item | {"droppedEventsCount": 1}), kind="otlp-json").bad] == ["dropped_content"]


def test_one_short_text_that_answers_many_prompts_is_found() -> None:
    rows = read(*[record(id=str(n), messages=f"q{n}", response="Sorry." if n % 2 else f"a{n}") for n in range(60)]).traces
    found = repeated_answer(rows)
    assert found is not None
    assert (found.text, found.prompts, found.calls) == ("Sorry.", 30, 60)
    assert repeated_answer(rows[:12]) is None
    assert repeated_answer(read(*[record(id=str(n), messages="one", response="Same.") for n in range(60)]).traces) is None


@pytest.mark.parametrize("kind", ["jsonl", "otlp-proto"])
def test_a_look_reads_the_first_records_only(kind: str) -> None:
    body = request_of(2).SerializeToString()
    frame = b"T" + len(body).to_bytes(4, "big") + body
    data = frame * 5 if kind == "otlp-proto" else b"".join(json.dumps(record(id=str(n), user_id="u")).encode() + b"\n" for n in range(5))
    assert first_records(raw(data, kind=kind), 3)[1] == 3
    seen = look([raw(data, kind=kind)] * 2, replace(LIMITS, now=LIMITS.now + 10**13), records=7)
    assert seen.shares[0].read == (14 if kind == "otlp-proto" else 7)
    assert (seen.shares[2].calls > 0) == (kind == "jsonl")


def test_the_name_of_an_evaluation_may_have_blanks_around_it() -> None:
    said = evaluation(" user_correction ", text="Four.")
    assert [row["text"] for row in read(logs(log(1, said)), kind="otlp-json").feedback] == ["Four."]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.one_of(*(st.from_regex(re.compile(one.pattern, re.IGNORECASE), fullmatch=True) for one in PLACEHOLDERS)),
    st.sampled_from(["", " ", "\n", '"', "' ", "said: ", "a\n"]),
)
def test_the_search_in_many_texts_leads_to_every_redacted_one(text: str, before: str) -> None:
    texts = ["What is due?", before + text + before, "Nothing."]
    assert {number for number, one in enumerate(texts) if is_redacted(one)} <= may_be_redacted(texts, Joined(contents(texts)))
    both = ["A plain question?", text]
    assert may_be_redacted(both, Joined(contents(both)), [text]) - {0} == {1}


@pytest.mark.parametrize("data", ["__REDACTED__", "[Blob substitute]", "data:image/png;base64,[Blob substitute]", "[REDACTED]"])
def test_a_placeholder_in_place_of_an_image_is_found(data: str) -> None:
    parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": data}}]
    assert [bad.reason for bad in read(record(messages=[{"role": "user", "content": parts}])).bad] == ["redacted_content"]
    parts[1] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    assert len(read(record(messages=[{"role": "user", "content": parts}])).traces) == 1
