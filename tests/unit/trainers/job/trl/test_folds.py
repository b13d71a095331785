"""Tests of runs that find their number of steps by cross-validation, with the real libraries and real processes."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.contracts.ids import digest
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Attempt, JobEvent, Method, ResumePoint, TrainingPlan
from ratchet.runtime.jobs.job_protocol import RunFile
from ratchet.trainers.backends.trl import SFT
from tests.unit.trainers.conftest import CONTENT, Workshop, store
from tests.unit.trainers.job.test_parallel import on_two
from tests.unit.trainers.runs import asked, finish, weights
from tests.waiting import has_result

pytestmark = pytest.mark.slow
SOAK = pytest.mark.soak

MOST = 60
FOLDS = 2


@pytest.fixture
def workshop(warm_workshop: Workshop) -> Workshop:
    """Return a workshop whose questions have a rule that can be learnt: the answer repeats the first word."""
    return warm_workshop


def planned(
    workshop: Workshop, method: Method, development: int = 0, prompts: int = 96, misled: bool = False, **changes: Any
) -> TrainingPlan:
    """Return a plan with `prompts` training prompts, of which two each are a cluster, and `development` development prompts.

    If `misled`, the right answer to the development prompts is their second word, six times.
    """
    questions = [(one, other) for one in CONTENT for other in CONTENT]
    trained, kept = questions[1 : 2 * prompts : 2], [one for one in questions[::2] if one[0] != one[1]][::10][:development]
    ids = [digest(list(question)) for question in trained]
    right = [question[0] for question in trained]
    wrong = [CONTENT[(CONTENT.index(word) + 3) % len(CONTENT)] for word in right]
    texts = [asked(*question) for question in trained]
    folder, artifacts, common = workshop.folder, workshop.artifacts, {"prompt_id": ids, "prompt": texts, "weight": [1.0] * len(ids)}
    checked = {"prompt_id": ids, "prompt": texts, "reference": right, "slice": ["a"] * len(ids), "answer": right}
    held = {"prompt_id": [digest(list(question)) for question in kept], "prompt": [asked(*question) for question in kept]}
    told = [" ".join([q[1]] * 6) if misled else q[0] for q in kept]
    held |= {"reference": told, "slice": ["a"] * len(kept), "answer": told}
    clusters = [ids[2 * (n // 2)] for n in range(len(ids))]
    data = {
        "demonstrations": store(artifacts, folder / "d.parquet", {**common, "answer": right}),
        "pairs": store(artifacts, folder / "p.parquet", {**common, "chosen": right, "rejected": wrong}),
        "cross_validation": store(artifacts, folder / "c.parquet", {**checked, "cluster": clusters}),
        "development": store(artifacts, folder / "h.parquet", held) if kept else None,
        "answer_tokens": 3,
    }
    settings = {"steps": "auto", "most_steps": MOST, "batch": 16, "micro_batch": 16, "learning_rate": 1e-2, "save_every": 7, "folds": FOLDS}
    return workshop.plan(method, **{**settings, **changes}).model_copy(update=data)


def of_folds(events: list[JobEvent]) -> dict[tuple[int, int], list[float]]:
    return {
        (event.data["fold"], event.data["fold_step"]): event.data["scores"]
        for event in events
        if event.kind == "measured" and "fold" in event.data
    }


def chosen(events: list[JobEvent]) -> JobEvent:
    return next(event for event in events if event.kind == "cross_validated")


@pytest.mark.parametrize("method", [pytest.param(Method.SFT, marks=SOAK), Method.DPO])
def test_the_number_of_steps_is_found_on_prompts_that_each_fold_is_not_trained_on(workshop: Workshop, method: Method) -> None:
    spec = workshop.spec(planned(workshop, method))
    checkpoint = finish(workshop, spec)
    events = workshop.executor.events(spec.name)
    found = of_folds(events)
    assert {fold for fold, _ in found} == {1, 2}
    assert {step for fold, step in found if fold == 1} == {step for fold, step in found if fold == 2}
    assert sum(len(found[fold, 0]) for fold in (1, 2)) == 48, "one prompt of each cluster"
    result = chosen(events)
    assert checkpoint.step == checkpoint.metrics["published_step"] == result.data["steps"] <= MOST
    assert checkpoint.metrics["cross_validated_steps"] == result.step
    assert checkpoint.metrics["cross_validated_gain"] > 0.3
    assert "chosen by cross-validation over 48 prompts" in result.data["reason"]
    steps = [event for event in events if event.kind == "progress"]
    assert [event.step for event in steps] == list(range(1, checkpoint.step + 1)), "steps of folds are no steps of the run"
    assert steps[-1].data["learning_rate"] < 0.5 * max(event.data["learning_rate"] for event in steps)
    assert any("cross_validated_score" in event.data for event in steps)


@pytest.mark.parametrize(
    ("after", "method"),
    [
        pytest.param("first fold", Method.SFT, marks=SOAK),
        ("in the second fold", Method.DPO),
        pytest.param("run", Method.SFT, marks=SOAK),
        pytest.param("first fold", Method.DPO, marks=SOAK),
        pytest.param("in the second fold", Method.SFT, marks=SOAK),
        pytest.param("run", Method.DPO, marks=SOAK),
    ],
)
def test_a_preempted_run_trains_each_finished_fold_once_and_publishes_the_same(workshop: Workshop, method: Method, after: str) -> None:
    plan = planned(workshop, method)
    whole = workshop.spec(plan)
    expected = finish(workshop, whole)
    spec = workshop.spec(plan, attempt=2)
    workshop.executor.submit(spec, 1)
    preempt(workshop, spec, after)
    before = workshop.executor.events(spec.name)
    pin(workshop, spec)
    again = finish(workshop, spec, 2)
    assert weights(workshop.artifacts, again) == weights(workshop.artifacts, expected)
    events = workshop.executor.events(spec.name)
    assert of_folds(events) == of_folds(workshop.executor.events(whole.name))
    assert {key: value for key, value in again.metrics.items() if key.startswith("cross")} == {
        key: value for key, value in expected.metrics.items() if key.startswith("cross")
    }
    second = {fold for fold, _ in of_folds(events[len(before) :])}
    assert second == (set() if after == "run" else {2})


def preempt(workshop: Workshop, spec: Any, after: str) -> None:
    """Ask the job to stop after its first fold, within its second one, or in the run itself."""

    def reached(events: list[JobEvent]) -> bool:
        match after:
            case "first fold":
                return any(event.kind == "checkpoint" for event in events)
            case "in the second fold":
                return any(event.kind == "fold" and event.data["fold"] == 2 and event.data["fold_step"] >= 3 for event in events)
            case _:
                return any(event.kind == "checkpoint" and event.step > FOLDS for event in events)

    workshop.wait(spec, lambda status: has_result(status) or reached(workshop.executor.events(spec.name)))
    workshop.executor.cancel(spec.name)
    assert workshop.wait(spec).outcome == Outcome.PREEMPTED, workshop.log(spec)


def pin(workshop: Workshop, spec: Any) -> None:
    event = [event for event in workshop.executor.events(spec.name) if event.kind == "checkpoint"][-1]
    workshop.executor.pin(spec, ResumePoint(attempt=2, incarnation=event.incarnation, step=event.step, **event.data))


def test_development_prompts_are_measured_too_and_too_few_training_prompts_are_not_divided(workshop: Workshop) -> None:
    spec = workshop.spec(planned(workshop, Method.SFT, development=6))
    checkpoint = finish(workshop, spec)
    events = workshop.executor.events(spec.name)
    own = [event for event in events if event.kind == "measured" and "fold" not in event.data]
    assert [event.step for event in own] == [0, checkpoint.step]
    assert "on 6 development prompts" in own[-1].data["reason"]
    assert not any("worse" in event.data.get("reason", "") for event in events if event.kind == "warning")
    few = workshop.spec(planned(workshop, Method.SFT, prompts=20))
    finish(workshop, few)
    events = workshop.executor.events(few.name)
    assert not of_folds(events)
    assert any("not measured" in event.data.get("reason", "") for event in events if event.kind == "warning")


def test_a_result_that_is_worse_on_the_development_prompts_gives_a_warning(workshop: Workshop) -> None:
    spec = workshop.spec(planned(workshop, Method.SFT, development=8, misled=True))
    checkpoint = finish(workshop, spec)
    warnings = [event.data["reason"] for event in workshop.executor.events(spec.name) if event.kind == "warning"]
    assert "the final model is worse on the development prompts than the start model" in warnings
    assert checkpoint.metrics["cross_validated_gain"] > 0.3


def test_several_processes_have_no_folds_and_say_so(workshop: Workshop) -> None:
    plan = planned(workshop, Method.SFT)
    spec = workshop.spec(plan)
    assert RunFile.CROSS_VALIDATION in spec.inputs
    assert RunFile.CROSS_VALIDATION not in SFT().job(plan, Attempt(number=1, timeout=60, gpus=2)).inputs
    spec = on_two(spec)
    finish(workshop, spec)
    events = workshop.executor.events(spec.name)
    assert not of_folds(events)
    assert any("one process" in event.data.get("reason", "") for event in events if event.kind == "warning")
