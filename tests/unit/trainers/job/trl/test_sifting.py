"""Tests of runs that compare the answers of teachers with a model that was trained without them, with the real libraries."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from ratchet.contracts.ids import digest
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobEvent, Method, ResumePoint, TrainingPlan
from tests.unit.trainers.conftest import CONTENT, Workshop, store
from tests.unit.trainers.job.trl.test_folds import FOLDS, planned
from tests.unit.trainers.runs import asked, finish, weights
from tests.waiting import has_result

pytestmark = pytest.mark.slow
SOAK = pytest.mark.soak

TAUGHT, WRONG = 40, 10


@pytest.fixture
def workshop(warm_workshop: Workshop) -> Workshop:
    """Return a workshop whose questions have a rule that can be learnt: the answer repeats the first word."""
    return warm_workshop


def taught(workshop: Workshop, taught: int = TAUGHT) -> TrainingPlan:
    """Return a plan whose demonstrations have answers of a teacher, too. The first WRONG of them are wrong, and it is not known which."""
    plan = planned(workshop, Method.SFT)
    path = workshop.folder / "known.parquet"
    workshop.artifacts.fetch(plan.demonstrations, path)
    known = pq.read_table(path).to_pydict()
    questions = [(one, other) for one in CONTENT for other in CONTENT][::2][:taught]
    answers = [CONTENT[(CONTENT.index(one) + 5) % len(CONTENT)] if n < WRONG else one for n, (one, _) in enumerate(questions)]
    rows = {
        "prompt_id": [*known["prompt_id"], *(digest(list(question)) for question in questions)],
        "prompt": [*known["prompt"], *(asked(*question) for question in questions)],
        "answer": [*known["answer"], *answers],
        "weight": [*known["weight"], *[0.5] * taught],
        "source": [*["reference"] * len(known["prompt"]), *["teacher"] * taught],
    }
    return plan.model_copy(update={"demonstrations": store(workshop.artifacts, workshop.folder / "t.parquet", rows)})


def sifted(events: list[JobEvent]) -> list[JobEvent]:
    return [event for event in events if event.kind == "sifted"]


def test_wrong_answers_of_a_teacher_are_left_out_and_the_others_are_trained_on(workshop: Workshop) -> None:
    spec = workshop.spec(taught(workshop))
    checkpoint = finish(workshop, spec)
    events = workshop.executor.events(spec.name)
    [found] = sifted(events)
    assert found.data["answers"] == TAUGHT
    assert WRONG / 2 <= found.data["left_out"] <= TAUGHT * 0.25
    assert (checkpoint.metrics["teacher_answers"], checkpoint.metrics["teacher_answers_left_out"]) == (TAUGHT, found.data["left_out"])
    measured = {event.data["fold"] for event in events if event.kind == "measured" and "fold" in event.data}
    assert measured == set(range(1, FOLDS + 1)), "the model of the comparison is not measured"
    assert [event.step for event in events if event.kind == "progress"][-1] == checkpoint.step


def test_few_answers_of_a_teacher_are_not_compared(workshop: Workshop) -> None:
    spec = workshop.spec(taught(workshop, 12))
    assert "teacher_answers" not in finish(workshop, spec).metrics
    assert not sifted(workshop.executor.events(spec.name))


@pytest.mark.parametrize("after", ["in the comparison", pytest.param("comparison", marks=SOAK), pytest.param("run", marks=SOAK)])
def test_a_preempted_run_compares_once_and_publishes_the_same(workshop: Workshop, after: str) -> None:
    plan = taught(workshop)
    expected = finish(workshop, whole := workshop.spec(plan))
    spec = workshop.spec(plan, attempt=2)
    workshop.executor.submit(spec, 1)

    def reached(events: list[JobEvent]) -> bool:
        match after:
            case "in the comparison":
                return any(event.kind == "fold" and event.data["fold"] == FOLDS + 1 for event in events)
            case "comparison":
                return any(event.kind == "checkpoint" and event.step == FOLDS + 1 for event in events)
            case _:
                return any(event.kind == "checkpoint" and event.step > FOLDS + 1 for event in events)

    workshop.wait(spec, lambda status: has_result(status) or reached(workshop.executor.events(spec.name)))
    workshop.executor.cancel(spec.name)
    assert workshop.wait(spec).outcome == Outcome.PREEMPTED, workshop.log(spec)
    newest = [event for event in workshop.executor.events(spec.name) if event.kind == "checkpoint"][-1]
    workshop.executor.pin(spec, ResumePoint(attempt=2, incarnation=newest.incarnation, step=newest.step, **newest.data))
    again = finish(workshop, spec, 2)
    assert weights(workshop.artifacts, again) == weights(workshop.artifacts, expected)
    assert [event.data for event in sifted(workshop.executor.events(spec.name))] == [
        event.data for event in sifted(workshop.executor.events(whole.name))
    ]
