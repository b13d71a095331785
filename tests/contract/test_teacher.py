"""The rules of the port `Teacher`, for the client over HTTP and its fake."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ratchet.contracts.data.teaching import TeacherOutcome
from ratchet.contracts.fakes import FakeTeacher
from ratchet.contracts.loop import TeacherSettings
from ratchet.contracts.ports import Teacher
from ratchet.materializer.teacher.client import HttpTeacher
from tests.builders import teacher_section
from tests.judge_stub import Stub, serving

RIGHT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 3?"}]
CLOSED = [{"role": "user", "content": "closed"}]


@pytest.fixture(params=["http", "fake"])
def teacher(request: pytest.FixtureRequest) -> Iterator[Teacher]:
    """A teacher that answers 5, and takes no request named `closed`."""
    if request.param == "fake":
        yield FakeTeacher(lambda asked: TeacherOutcome.REFUSED if asked[-1]["content"] == "closed" else "5")
        return
    with serving(Stub(lambda body: (403, {}) if body["messages"][-1]["content"] == "closed" else "5")) as stub:
        yield HttpTeacher(TeacherSettings(**teacher_section(url=stub.url)))


def test_an_answer_has_a_text_and_its_tokens(teacher: Teacher) -> None:
    found = teacher.ask(RIGHT, 1)
    assert (found.outcome, found.text, found.requests) == (TeacherOutcome.ANSWERED, "5", 1)
    assert found.input_tokens is not None
    assert found.output_tokens is not None


def test_a_failure_is_an_outcome_with_a_reason_and_without_content(teacher: Teacher) -> None:
    found = teacher.ask(CLOSED, 1)
    assert (found.outcome, found.text) == (TeacherOutcome.REFUSED, None)
    assert found.detail
    assert "closed" not in found.detail


def test_nothing_is_remembered(teacher: Teacher) -> None:
    assert teacher.ask(RIGHT, 1) == teacher.ask(RIGHT, 1)
