"""Tests of the masking of conversations and of decoded rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ratchet.contracts.conversation import answer_message, stored_answer
from ratchet.contracts.errors import Rejected
from ratchet.contracts.loop import PrivacySettings
from ratchet.materializer.privacy import masking
from ratchet.materializer.privacy.masking import Masker, Masking, detectors, texts_of
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.records import batch, evaluation, log, logs, span, spans

MAIL, OTHER = "anna.schmidt@uni-bonn.de", "kim@naver.com"


def masked(row: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Return the masked row."""
    Masker(PrivacySettings(**settings)).mask(row)
    return row


def test_equal_values_get_equal_placeholders_in_all_texts_of_a_row() -> None:
    said = [{"role": "user", "content": f"I am {MAIL}, write to {OTHER}"}, {"role": "assistant", "content": f"To {OTHER.upper()}?"}]
    row = {"messages": json.dumps(said), "answer": f"Sent to {OTHER} for {MAIL}.", "reference": MAIL, "user": MAIL}
    counts = Masker(PrivacySettings()).mask(row)
    assert json.loads(row["messages"]) == [
        {"role": "user", "content": "I am [EMAIL_1], write to [EMAIL_2]"},
        {"role": "assistant", "content": "To [EMAIL_2]?"},
    ]
    assert (row["answer"], row["reference"], row["user"]) == ("Sent to [EMAIL_2] for [EMAIL_1].", "[EMAIL_1]", MAIL)
    assert counts == {"email": 6}


def test_row_without_personal_data_keeps_its_bytes() -> None:
    text = '[{"role":"user",  "content":"{\\"a\\": 1.0, \\"b\\": [2]}"}]'
    assert masked({"messages": text, "answer": "A: 2"}) == {"messages": text, "answer": "A: 2"}


def test_arguments_of_tool_calls_are_masked_inside_their_json() -> None:
    arguments = json.dumps({"to": MAIL, "note": f"a\n{MAIL}\t", "phone": 2125550123, "n": 3, MAIL: None, "deep": [{"x": [OTHER]}]})
    call = {"id": "call_1", "type": "function", "function": {"name": "send", "arguments": arguments}}
    row = masked({"messages": json.dumps([{"role": "assistant", "content": None, "tool_calls": [call]}]), "answer": None})
    found = json.loads(json.loads(row["messages"])[0]["tool_calls"][0]["function"]["arguments"])
    assert found == {
        "to": "[EMAIL_1]",
        "note": "a\n[EMAIL_1]\t",
        "phone": "[PHONE_1]",
        "n": 3,
        "[EMAIL_1]": None,
        "deep": [{"x": ["[EMAIL_2]"]}],
    }


def test_answer_that_calls_tools_stays_one() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "send", "arguments": json.dumps({"to": MAIL})}}
    said = [{"role": "user", "content": f"Write to {MAIL}"}]
    row = masked({"messages": json.dumps(said), "answer": stored_answer({"role": "assistant", "content": "", "tool_calls": [call]})})
    assert json.loads(answer_message(row["answer"])["tool_calls"][0]["function"]["arguments"]) == {"to": "[EMAIL_1]"}


def test_bytes_of_images_are_left() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "AKIA" + "ABCDEFGHIJKLMNOP/0101234567801012345678=="}}
    text = json.dumps([{"role": "user", "content": [image]}])
    assert masked({"messages": text})["messages"] == text


def test_placeholders_of_the_text_are_not_given_to_other_values() -> None:
    assert masked({"text": f"[EMAIL_3] and {MAIL}"})["text"] == "[EMAIL_3] and [EMAIL_4]"


def test_settings_select_kinds_add_patterns_and_allow_values() -> None:
    text = f"{MAIL} has K-12345 and support@firma.io, 81.23.45.67"
    row = masked({"text": text}, mask=("email",), patterns={"customer": r"K-\d{5}"}, allow=("Support@firma.io",))
    assert row["text"] == "[EMAIL_1] has [CUSTOMER_1] and support@firma.io, 81.23.45.67"
    assert masked({"text": text}, mask=())["text"] == text


def test_invalid_settings_are_refused() -> None:
    for bad in ({"patterns": {"x y": "a"}}, {"patterns": {"own": "("}}, {"mask": ["names"]}, {"phone_regions": ["Germany"]}):
        with pytest.raises(ValidationError):
            PrivacySettings.model_validate(bad)


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_masking_is_idempotent_and_keeps_the_shape(value: Any) -> None:
    found = detectors(PrivacySettings())
    once = Masking(found).content(value)
    assert Masking(found).content(once) == once
    assert type(once) is type(value) or isinstance(value, int)


@pytest.mark.slow
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text()
        | st.sampled_from(["user", "role", "data:a;base64,x", '{"a": ["b", 1]}', "[", "{}"]),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.text() | st.sampled_from(["role", "type", "content", "x"]), inner)
            | inner.map(lambda one: json.dumps({"role": one}))
        ),
        max_leaves=20,
    )
)
def test_the_texts_that_are_searched_before_are_those_that_are_masked(value: Any) -> None:
    searched: list[str] = []

    def note(text: str) -> list[Any]:
        searched.append(text)
        return []

    assert Masking([note]).content(value) == value
    assert list(texts_of(value)) == searched


def test_deep_values_are_searched_as_they_are_masked() -> None:
    searched: list[str] = []
    deep: Any = MAIL
    for _ in range(70):
        deep = {"a": [deep]}
    Masking([lambda text: searched.append(text) or ()]).content(deep)  # type: ignore[func-returns-value]
    assert list(texts_of(deep)) == searched


def test_roles_and_known_keys_are_not_searched() -> None:
    said = json.dumps([{"role": "user", "content": "user role"}])
    row = masked({"messages": said}, patterns={"word": "user|role|content"})
    assert json.loads(row["messages"]) == [{"role": "user", "content": "[WORD_1] [WORD_2]"}]


def test_ingest_stores_and_reports_placeholders_only(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    wrong = evaluation("user_correction", None, text=f"It is {MAIL}")
    report = datasets.ingest(batch(spans(span(1, prompt=f"Who is {MAIL}?", answer=f"{MAIL} is Anna.")), logs(log(1, wrong))))
    assert (report.traces.kept, report.feedback.kept, report.masked) == (1, 1, {"email": 3})
    row = datasets.lake.scan("traces").to_dicts()[0]
    assert (json.loads(row["messages"])[-1]["content"], row["answer"]) == ("Who is [EMAIL_1]?", "[EMAIL_1] is Anna.")
    assert datasets.lake.scan("feedback")["text"].to_list() == ["It is [EMAIL_1]"]
    assert not [path for path in (tmp_path / "lake").rglob("*") if path.is_file() and MAIL.encode() in path.read_bytes()]


def test_masked_record_that_comes_again_is_a_duplicate(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    item = span(1, prompt=f"Who is {MAIL}?")
    assert datasets.ingest(batch(spans(item))).traces.kept == 1
    assert datasets.ingest(batch(spans(item, span(2)))).traces.duplicate == 1


def test_record_that_cannot_be_masked_is_quarantined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(text: str) -> list[Any]:
        if "two" in text:
            raise RuntimeError(text)
        return []

    monkeypatch.setattr(masking, "detectors", lambda _settings: [broken])
    report = make_datasets(tmp_path, make_loop()).ingest(batch(spans(span(1, prompt="one"), span(2, prompt="two"))))
    assert (report.traces.kept, report.traces.reasons) == (1, {"masking_failed": 1})
    with pytest.raises(Rejected, match="RuntimeError") as error:
        Masker(PrivacySettings()).mask({"text": "two"})
    assert "two" not in error.value.detail


def test_deep_json_is_masked_as_a_text() -> None:
    deep: Any = MAIL
    for _ in range(500):
        deep = [deep]
    assert MAIL not in masked({"messages": json.dumps(deep)})["messages"]
