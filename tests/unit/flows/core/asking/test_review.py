"""Tests of the choice of questions for reviewers, and of the files in which they go out and come back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ratchet.contracts.data.datasets import TrainingSides
from ratchet.contracts.errors import ConfigError
from ratchet.flows.core.asking.review import ReviewAnswer, ReviewQuestion, agreement, choose_questions
from ratchet.flows.core.asking.review_forms import as_lines, as_tasks, read_answers


def row(key: str, reward: float | None = 0.0, repeats: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "prompt_id": key,
        "prompt": [{"role": "user", "content": key}],
        "answer": "a",
        "reward": reward,
        "tier": "verifiable",
        "votes": 0,
        "repeats": repeats,
        "trace": f"log/{key}",
        "origin": "traffic",
        "slice": None,
        **changes,
    }


def chosen(
    rows: list[dict[str, Any]],
    answered: tuple[str, ...] = (),
    fallen: tuple[str, ...] = (),
    count: int = 9,
    sides: TrainingSides | None = None,
) -> tuple[list[ReviewQuestion], int]:
    return choose_questions(rows, frozenset(answered), frozenset(fallen), count, sides or TrainingSides())


def keys(rows: list[dict[str, Any]], answered: tuple[str, ...] = (), count: int = 9, sides: TrainingSides | None = None) -> list[str]:
    return [one.prompt_id for one in chosen(rows, answered, count=count, sides=sides)[0]]


def test_frequent_and_wrong_questions_come_first() -> None:
    assert keys([row("rare"), row("often", repeats=5), row("half", reward=0.5, repeats=5)]) == ["often", "half", "rare"]


def test_what_has_a_right_answer_is_not_asked() -> None:
    rows = [row("known"), row("right", reward=1.0), row("mixed"), row("mixed", reward=1.0, answer="b"), row("open")]
    assert keys(rows, answered=("known",)) == ["open"]


@pytest.mark.parametrize(("votes", "asked"), [(1, ["q"]), (2, []), (9, [])])
def test_one_good_rating_does_not_show_that_an_answer_is_right(votes: int, asked: list[str]) -> None:
    """Each of several wrong answers to a question has a chance to be rated well by mistake."""
    rated = [row("q", answer="a", tier="feedback", votes=3), row("q", reward=1.0, answer="b", tier="feedback", votes=votes)]
    assert keys(rated) == asked
    several = [row("q", reward=1.0, answer="b", tier="feedback", votes=1) for _ in range(votes)]
    assert keys([*rated[:1], *several]) == asked, "also if equal answers are in rows of their own"


def test_answers_that_nobody_judged_count_as_half_wrong() -> None:
    [one] = chosen([row("q", reward=None, repeats=3)])[0]
    assert (one.wrong, one.requests, one.expected_gain) == (0.5, 3, 0.5)


def test_answers_that_nobody_judged_count_as_wrong_as_often_as_those_of_their_slice() -> None:
    judged = [row(f"{slice_}{n}", reward=reward, slice=slice_) for slice_, reward in (("bad", 0.0), ("good", 1.0)) for n in range(90)]
    found = {
        one.prompt_id: one for one in chosen([*judged, *(row(f"new {name}", None, slice=name) for name in ("bad", "good"))], count=99)[0]
    }
    assert found["new bad"].wrong == pytest.approx(0.95)
    assert found["new good"].wrong == pytest.approx(0.05)
    assert found["new bad"].expected_gain == pytest.approx(0.95 / 182)


def test_a_few_judged_answers_do_not_decide_for_a_slice() -> None:
    rows = [row("one", reward=0.0, slice="s"), row("new", reward=None, slice="s")]
    assert {one.prompt_id: round(one.wrong, 2) for one in chosen(rows)[0]} == {"one": 1.0, "new": 0.59}


def test_development_prompts_promise_no_gain_and_come_last_once_enough_are_known() -> None:
    sides = TrainingSides(development=("often", "seldom", *(f"known{n}" for n in range(99))), neither=("lost",))
    rows = [row("often", repeats=7), row("seldom", repeats=3), row("rare"), row("lost", repeats=2)]
    rows += [row(f"known{n}", reward=1.0) for n in range(99)]
    found, total = chosen(rows, sides=sides)
    assert [(one.prompt_id, one.measures) for one in found] == [("often", True), ("rare", False), ("seldom", True)]
    assert [one.expected_gain for one in found] == [0.0, 1 / 112, 0.0]
    assert total == 112


def test_near_duplicates_of_a_question_with_a_right_answer_come_later() -> None:
    """The answers of a cluster teach a part of the same. Without an answer in the cluster, a question comes first."""
    clusters = {"known": "c", "near": "c", "twin": "d", "other twin": "d"}
    rows = [row("known"), row("near", repeats=3), row("twin", repeats=4), row("other twin", repeats=4), row("alone", repeats=2)]
    assert keys(rows, answered=("known",), sides=TrainingSides(clusters=clusters)) == ["other twin", "twin", "alone", "near"]
    found, _ = chosen(rows, answered=("known",), sides=TrainingSides(clusters=clusters))
    assert {one.prompt_id: one.expected_gain for one in found}["near"] == pytest.approx(3 / 14), "only the order changes"


def test_slices_that_fell_count_twice_in_the_order_but_not_in_the_gain() -> None:
    rows = [row("other", repeats=3, slice="a"), row("fallen", repeats=2, slice="b")]
    found, total = chosen(rows, fallen=("b",))
    assert [(one.prompt_id, round(one.expected_gain, 2)) for one in found] == [("fallen", 0.4), ("other", 0.6)]
    assert total == 5


def test_the_gains_of_all_questions_are_the_share_of_wrong_answers() -> None:
    rows = [row(f"q{n}", reward=n / 10, repeats=n + 1) for n in range(10)]
    found, total = chosen(rows, count=100)
    wrong = sum((1 - n / 10) * (n + 1) for n in range(10)) / total
    assert sum(one.expected_gain for one in found) == pytest.approx(wrong)


def test_only_answers_of_the_line_in_traffic_count() -> None:
    assert keys([row("probe", origin="probe"), row("no trace", trace=None)]) == []


def test_the_newest_trace_and_the_most_frequent_answers_are_shown() -> None:
    rows = [
        row("q", trace="log/1", answer="x"),
        row("q", trace="log/2", answer="y", repeats=3),
        *(row("q", answer=f"z{n}") for n in range(4)),
    ]
    [one] = chosen(rows, count=1)[0]
    assert one.trace == "log/q"
    assert [text for text, _ in one.answers] == ["y", "x", "z0"]


def test_agreement_ignores_case_and_space() -> None:
    def said(key: str, who: str, text: str) -> ReviewAnswer:
        return ReviewAnswer(key, f"log/{key}", text, who, "")

    assert agreement([said("a", "x", "In  Drawer"), said("a", "y", "in drawer"), said("a", "z", "no"), said("b", "x", "only")]) == (1, 3)
    assert agreement([]) == (0, 0)


QUESTIONS = chosen([row("q1", slice="s"), row("q2", repeats=2)])[0]


def test_lines_come_back_with_their_answers() -> None:
    records = [json.loads(line) for line in as_lines(QUESTIONS).splitlines()]
    records[0] |= {"answer": " yes ", "reviewer": "ada"}
    text = "\n".join(map(json.dumps, records))
    assert read_answers(text, "f", None, "now") == ([ReviewAnswer("q2", "log/q2", "yes", "ada", "now")], 1)


def test_tasks_of_label_studio_come_back_with_their_annotations() -> None:
    tasks = json.loads(as_tasks(QUESTIONS))
    assert tasks[0]["data"]["heading"] == "asked 2 times, wrong in 100%"
    area = {"from_name": "answer", "to_name": "dialogue", "type": "textarea", "value": {"text": ["first", "second"]}}
    mark = {"from_name": "other", "type": "choices", "value": {"choices": ["x"]}}
    done = [
        {"data": tasks[0]["data"], "annotations": [{"completed_by": 3, "created_at": "2026-01-01T00:00:00Z", "result": [mark, area]}]},
        {"data": tasks[1]["data"], "annotations": [{"was_cancelled": True, "result": [area]}]},
    ]
    found = read_answers(json.dumps(done), "f", None, "now")
    assert found == ([ReviewAnswer("q2", "log/q2", "first\nsecond", "3", "2026-01-01T00:00:00Z")], 1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "f, line 1: it is not JSON"),
        ("3", "f, line 1: it must be an object, not int"),
        ('{"answer": "x", "trace": "log/1", "reviewer": "a"}', "f, line 1: review of the question is missing"),
        ('{"answer": ["x"], "review": "q", "trace": "log/1"}', "answer must be a text or a number, not list"),
        ('{"answer": "\\ud800", "review": "q", "trace": "log/1"}', "answer has half of a character"),
        ("[" * 100_000, "nested too deeply|not JSON"),
        ('[{"data": {}, "annotations": 5}]', "annotations must be a list of objects"),
        ('[{"data": {}, "annotations": [{"result": [{"from_name": "answer", "value": {"text": [1]}}]}]}]', "the area answer has no text"),
        ('{"answer": "x", "review": "q", "trace": "log/1"}', "names no reviewer; add `reviewer`, or pass --reviewer NAME"),
        ('[{"id": 1}]', "f, task 1: it has no data; export the project as JSON"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_place(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        read_answers(text, "f", None, "now")


def test_a_number_is_an_answer_and_separators_of_lines_are_parts_of_texts() -> None:
    [one] = chosen([row("q1", prompt=[{"role": "user", "content": "pasted\u2028text\u0085"}])])[0]
    record = json.loads(as_lines([one]))
    assert as_lines([one]).count("\n") == 1
    text = json.dumps(record | {"answer": 0, "reviewer": 7}, ensure_ascii=False) + "\r\n"
    [answer] = read_answers(text, "f", None, "now")[0]
    assert (answer.answer, answer.reviewer) == ("0", "7")


def test_a_corrected_annotation_has_the_time_of_its_correction() -> None:
    area = {"from_name": "answer", "value": {"text": "right"}}
    mark = {"completed_by": 1, "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-02T00:00:00Z", "result": [area]}
    done = [{"data": {"review": "q", "trace": "log/1"}, "annotations": [mark]}]
    assert read_answers(json.dumps(done), "f", None, "now")[0][0].time == "2026-01-02T00:00:00Z"
