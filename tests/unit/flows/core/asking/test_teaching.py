"""Tests of what is sent to a teacher, of its budgets, and of the fold of its rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ratchet.contracts.cycle import Entry
from ratchet.contracts.data.beliefs import TeacherBelief
from ratchet.contracts.data.teaching import Sendable, SendablePrompt, TeacherOutcome, teacher_version
from ratchet.contracts.loop import TeacherSettings
from ratchet.contracts.rows import TeacherGot, TeacherSent, row_of
from ratchet.flows.core.asking.review import ReviewQuestion
from ratchet.flows.core.asking.teaching import (
    ASKED,
    INTERRUPTED,
    LOW,
    UNPROVEN,
    USED_EVIDENCE,
    Left,
    TeacherView,
    bound,
    choose_questions_to_send,
    fold_teacher,
    key_of,
    left,
)
from ratchet.materializer.training_sets.account import USED
from tests.builders import teacher_section

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def entries(*rows: tuple[str, str, Any, float]) -> list[Entry]:
    """Rows (kind, key, content, days before now)."""
    made = [(row_of(kind, content, key), days) for kind, key, content, days in rows]
    return [
        Entry(
            stream="teacher/a", seq=n, kind=row.kind, key=row.key, data=row.data, at=NOW - timedelta(days=days),
            epoch=0, previous="", hash="", schema_version=1,
        )
        for n, (row, days) in enumerate(made, 1)
    ]  # fmt: skip


def got(outcome: TeacherOutcome, cost: float = 0.1, **more: Any) -> TeacherGot:
    return TeacherGot(outcome=outcome, cost=cost, **more)


SENT = TeacherSent(highest=0.5)


def test_the_budget_counts_what_was_sent_also_without_a_reply() -> None:
    view = fold_teacher(
        entries(
            ("sent", "a", SENT, 40),
            ("got", "a", got(TeacherOutcome.ANSWERED, answer="x"), 40),
            ("sent", "b", SENT, 2),
            ("got", "b", got(TeacherOutcome.ANSWERED, requests=3, answer="y"), 2),
            ("sent", "c", SENT, 1),
        )
    )
    assert view.settled == {"a", "b", "c"}, "a question in flight at a crash is not sent again"
    assert view.spent(NOW - timedelta(days=30)) == (4, 0.6)
    assert view.outcomes() == {"answered": 2, INTERRUPTED: 1}
    assert view.answers() == ["x", "y"]
    settings = TeacherSettings(**teacher_section(max_requests=5, max_cost=1.0))
    assert left(settings, view, NOW) == Left(1, 0.4)


@pytest.mark.parametrize("outcome", list(TeacherOutcome))
def test_a_question_is_open_again_only_if_the_teacher_has_not_dealt_with_it(outcome: TeacherOutcome) -> None:
    view = fold_teacher(entries(("sent", "a", SENT, 1), ("got", "a", got(outcome, cost=0.0), 1)))
    assert ("a" in view.settled) == (outcome not in (TeacherOutcome.BUSY, TeacherOutcome.REFUSED, TeacherOutcome.UNREACHABLE))


def prompt(name: str, group: str | None = None, answered: bool = False) -> SendablePrompt:
    return SendablePrompt(
        prompt_id=name, trace=f"app/{name}", messages=({"role": "user", "content": name},), slice=group, answered=answered
    )


def question(name: str, gain: float) -> ReviewQuestion:
    return ReviewQuestion(
        prompt_id=name, trace=f"app/{name}", messages=(), answers=(), requests=1, wrong=1.0, slice=None, fell=False, expected_gain=gain
    )


def chosen(
    may: Sendable, missing: list[ReviewQuestion], *beliefs: TeacherBelief, view: TeacherView | None = None, **changes: Any
) -> tuple[list[str], dict[str, int]]:
    settings = TeacherSettings(**teacher_section(**changes))
    found, out = choose_questions_to_send(missing, may, beliefs, settings, "salt", view or TeacherView())
    return [one.prompt.prompt_id for one in found], out


QUESTIONS = [question("a", 0.3), question("b", 0.2), question("c", 0.1)]


def test_measuring_questions_come_first_then_the_highest_gains() -> None:
    prompts = (prompt("a", "s"), prompt("b", "t"), *(prompt(f"k{n}", "s", answered=True) for n in range(5)))
    may = Sendable(prompts=prompts, refused={"c": "they call tools"}, provable=True)
    names, out = chosen(may, QUESTIONS, measure=2, questions=1)
    assert [name[0] for name in names] == ["k", "k", "a"]
    assert out == {"teacher.questions = 1 is reached": 1, "they call tools": 1}
    assert names == chosen(may, QUESTIONS, measure=2, questions=1)[0], "the same ones are chosen again"


def test_nothing_is_asked_twice_of_one_version_and_a_new_version_is_asked_anew() -> None:
    may = Sendable(prompts=(prompt("a"), prompt("b"), prompt("c")), refused={}, provable=True)
    known = key_of("salt", teacher_version(TeacherSettings(**teacher_section())), "a")
    view = TeacherView(settled={known})
    assert chosen(may, QUESTIONS, view=view) == (["b", "c"], {ASKED: 1})
    assert chosen(may, QUESTIONS, view=view, version="2") == (["a", "b", "c"], {})


def test_a_repeat_after_a_crash_does_not_exceed_the_number_of_questions() -> None:
    may = Sendable(prompts=(prompt("a"), prompt("b"), prompt("c")), refused={}, provable=True)
    view = fold_teacher(entries(("sent", "x", SENT, 0), ("sent", "y", TeacherSent(highest=0.5, measures=True), 0)))
    assert chosen(may, QUESTIONS, view=view, questions=2)[0] == ["a"]


def test_no_money_is_spent_where_no_answer_would_count() -> None:
    known = prompt("x", "bad", answered=True), prompt("y", "good", answered=True)
    may = Sendable(prompts=(prompt("a", "bad"), prompt("b", "good"), *known), refused={}, provable=False)
    version = teacher_version(TeacherSettings(**teacher_section()))
    done = TeacherView(settled={key_of("salt", version, "x"), key_of("salt", version, "y")})
    figures: dict[str, Any] = {"version": version[:16], "slice": "bad", "compared": 20, "agreeing": 12, "used": False, "reason": "low"}
    assert chosen(may, QUESTIONS[:2], TeacherBelief(**figures), view=done) == (["b"], {LOW: 1})
    assert chosen(may, QUESTIONS[:2], TeacherBelief(**figures))[0] == ["x", "y", "a", "b"], "it is not measured completely yet"
    confirmed = may.model_copy(update={"provable": True})
    assert chosen(confirmed, QUESTIONS[:2], TeacherBelief(**figures), view=done)[0] == ["a", "b"], "a scorer may still confirm an answer"
    assert chosen(confirmed, QUESTIONS[:2], TeacherBelief(**figures, refuted=True), view=done)[0] == ["b"]
    assert chosen(may, QUESTIONS[:2], measure=0) == ([], {UNPROVEN: 2})
    alone = may.model_copy(update={"prompts": may.prompts[:3]})
    assert chosen(alone, QUESTIONS[:2], view=done) == (["a"], {UNPROVEN: 1}), "no right answer is known on the slice of b"


def test_the_bound_is_the_lesser_of_the_questions_and_the_budgets() -> None:
    may = Sendable(prompts=(prompt("a"), prompt("b")), refused={}, provable=True)
    settings = TeacherSettings(**teacher_section())
    found, _ = choose_questions_to_send(QUESTIONS, may, [], settings, "salt", TeacherView())
    requests, cost = bound(found, Left(100, 100.0))
    assert (requests, cost) == (2, sum(one.highest for one in found))
    assert bound(found, Left(1, 0.0)) == (1, 0.0)
    assert Left(0, 1.0).permits(found[0]) == "the budget of requests is used up (teacher.max_requests)"
    assert "max_cost" in str(Left(1, found[0].highest / 2).permits(found[0]))
    assert Left(1, found[0].highest).permits(found[0]) is None


def test_the_destinations_that_count_as_used_are_those_of_the_account() -> None:
    assert USED_EVIDENCE == USED
