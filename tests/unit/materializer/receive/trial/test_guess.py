"""Tests of the guessed mapping and of the recognised kinds: what is sure, what is a guess, and what is left to the user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.materializer.receive.files.storage import open_storage
from ratchet.materializer.receive.trial.guess import ends_with_answers, guess_mapping
from ratchet.materializer.receive.trial.recognition import recognise_place
from tests.unit.materializer.dialects.exports.test_litellm import payload
from tests.unit.materializer.receive.files.test_file_source import COLLECTOR
from tests.unit.materializer.receive.files.test_tables import write
from tests.unit.materializer.receive.langfuse.test_export import FIRST, generation, score
from tests.unit.materializer.receive.langfuse.test_export import write as write_export


def rows(**keys: Any) -> list[dict[str, Any]]:
    """Ten records. A value that can be called gets the number of its record."""
    return [{key: value(number) if callable(value) else value for key, value in keys.items()} for number in range(10)]


def test_keys_are_guessed_from_names_and_values() -> None:
    records = rows(
        request={"id": "same", "trace": "x"},
        call_id=lambda number: f"c{number}",
        created=lambda number: f"2026-01-01T00:00:0{number}Z",
        chat=[{"role": "user", "content": "hi"}],
        reply={"text": "hello"},
        customer={"id": "u"},
        thumbs_up=lambda number: number % 2 == 0,
        ground_truth="hello",
    )
    guesses, doubts = guess_mapping(records)
    assert {guess.column: (guess.key, guess.sure) for guess in guesses} == {
        "id": ("call_id", "likely"),
        "timestamp": ("created", "likely"),
        "messages": ("chat", "guess"),
        "response": ("reply", "likely"),
        "user_id": ("customer.id", "likely"),
        "feedback": ("thumbs_up", "likely"),
    }
    assert doubts == []


def test_a_rating_on_another_scale_is_not_read_and_the_reason_is_said() -> None:
    guesses, doubts = guess_mapping(rows(id=str, rating=lambda number: number % 5 + 1))
    assert [guess.column for guess in guesses] == ["id"]
    assert [(doubt.column, doubt.key) for doubt in doubts] == [("feedback", "rating")]
    assert "1 to 5" in doubts[0].why


def test_an_id_that_repeats_is_no_id_and_a_rare_time_is_no_time() -> None:
    guesses, _ = guess_mapping([{"id": "same", "timestamp": 1_790_000_000} if number < 5 else {"id": "same"} for number in range(10)])
    assert guesses == []


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=25)
@given(st.lists(st.dictionaries(st.text(max_size=8), _VALUES, max_size=4), max_size=4))
def test_any_records_can_be_looked_at_and_no_key_has_two_columns(records: list[dict[str, Any]]) -> None:
    guesses, _ = guess_mapping(records)
    assert len({guess.key for guess in guesses}) == len(guesses) == len({guess.column for guess in guesses})


def _langfuse(folder: Path) -> None:
    write_export(folder, "observations_v2", FIRST, [generation("o")])
    write_export(folder, "scores", FIRST, [score("r")])


PLACES = {
    "langfuse": _langfuse,
    "litellm": lambda folder: (folder / "a.json").write_text(json.dumps(payload())),
    "otlp": lambda folder: (folder / "traces").write_bytes(COLLECTOR["proto-with-zstd"]),
    "parquet": lambda folder: write(folder / "calls.parquet"),
    "jsonl": lambda folder: (folder / "a.log").write_text('{"id": "1", "timestamp": "2026-01-01", "messages": "q", "response": "a"}\n'),
}


@pytest.mark.parametrize("kind", list(PLACES))
def test_a_place_is_recognised_by_its_content(kind: str, tmp_path: Path) -> None:
    PLACES[kind](tmp_path)
    assert recognise_place(open_storage(str(tmp_path), tmp_path, "PLACE")).kind == kind


def test_a_part_of_an_export_leads_to_the_whole_export(tmp_path: Path) -> None:
    _langfuse(tmp_path)
    for part in (f"prefix/project/scores/{FIRST}.jsonl", "prefix/project/observations_v2"):
        found = recognise_place(open_storage(part, tmp_path, "PLACE"))
        assert (found.kind, found.path) == ("langfuse", str(tmp_path / "prefix" / "project"))


def test_a_folder_that_is_only_called_traces_is_no_export(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "a.json").write_bytes(COLLECTOR["traces.json"])
    assert recognise_place(open_storage("traces", tmp_path, "PLACE")).kind == "otlp"


def test_nothing_is_recognised_in_files_without_calls(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"version": 1}')
    (tmp_path / "b.png").write_bytes(b"\x89PNG")
    found = recognise_place(open_storage(str(tmp_path), tmp_path, "PLACE"))
    assert found.kind is None


def keys_of(rows: list[dict[str, object]]) -> dict[str, str]:
    return {guess.column: guess.key for guess in guess_mapping(rows)[0]}


def test_a_second_conversation_is_not_taken_for_the_reply_to_the_first() -> None:
    def turns(answer: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": answer}]

    rows: list[dict[str, object]] = [{"question_id": f"q{n}", "conversation_a": turns("A"), "conversation_b": turns("B")} for n in range(9)]
    assert keys_of(rows) == {"id": "question_id", "messages": "conversation_a"}
    assert ends_with_answers(rows, "conversation_a")
    assert not ends_with_answers(rows, "question_id")


def test_columns_of_support_tools_are_found() -> None:
    rows: list[dict[str, object]] = [
        {"ticket_id": n, "customer_id": f"c{n}", "created": f"2026-05-01 10:{n:02d}", "customer_message": "Hi?", "agent_reply": "Hello."}
        for n in range(9)
    ]
    found = {"id": "ticket_id", "timestamp": "created", "messages": "customer_message", "response": "agent_reply", "user_id": "customer_id"}
    assert keys_of(rows) == found


def test_a_state_that_is_a_place_is_no_status() -> None:
    rows: list[dict[str, object]] = [{"id": n, "state": state, "status": "ok"} for n, state in enumerate(("Texas", "Ohio", "Utah"))]
    assert keys_of(rows)["status"] == "status"
    assert "status" not in keys_of([{"id": n, "state": row["state"]} for n, row in enumerate(rows)])


def test_ratings_in_words_are_feedback() -> None:
    rows: list[dict[str, object]] = [{"id": n, "feedback": {"rating": word}} for n, word in enumerate(("like", "dislike", "like"))]
    assert keys_of(rows)["feedback"] in ("feedback", "feedback.rating")


def test_ids_of_people_and_ratings_of_another_scale_are_not_guessed() -> None:
    people = ("phone_number", "patient_id", "employee_id", "email_hash", "account_number")
    for key in people:
        assert "id" not in keys_of([{key: f"x{n}", "label": "positive", "messages": "Hi?"} for n in range(20)]), key
    assert "feedback" not in keys_of([{"id": n, "label": "positive"} for n in range(20)])
    assert "feedback" not in keys_of([{"id": n, "stars": 5 if n == 7 else 1} for n in range(20)])
