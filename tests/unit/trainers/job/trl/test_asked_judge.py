"""Tests of GRPO jobs with TRL whose reward is a judge that asks a model. The server is real, the model is simulated."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobSpec, Method, ResumePoint
from ratchet.contracts.loop import RewardSettings
from ratchet.trainers.job.events import Events
from tests.judge_stub import Stub, grade, parts, serving, usage_of

pytestmark = pytest.mark.slow  # TRL takes seconds to load

KEY = "sk-secret-of-the-judge"
ANSWERS = 16
"""Answers of a step."""


def likes_yes(body: dict[str, Any]) -> str:
    """A simulated judge that likes answers with the word yes."""
    return grade(5 if "yes" in parts(body)["answer"].split() else 1)


@pytest.fixture
def stub() -> Iterator[Stub]:
    with serving(Stub(model=likes_yes, key=KEY)) as running:
        yield running


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "judge.key"
    file.write_text(KEY)
    return file


def _job(workshop: Any, stub: Stub, key_file: Path, steps: int = 2, recipe: Mapping[str, Any] | None = None, **options: Any) -> JobSpec:
    judge = {"url": stub.url, "model": "m", "in_jobs": True, "key_file": str(key_file), "patience": 60.0, **options}
    shape = {"steps": steps, "prompts_per_step": 2, "generations": ANSWERS // 2, "max_completion": 3, "micro_batch": 8, **(recipe or {})}
    spec: JobSpec = workshop.spec(workshop.plan(Method.GRPO, (RewardSettings(name="judge", options=judge),), **shape))
    return spec


def _tokens(workshop: Any, spec: JobSpec) -> list[float]:
    return [event.data["judge_tokens"] for event in workshop.executor.events(spec.name) if event.kind == "progress"]


def _asked(stub: Stub) -> list[str]:
    """The answers that the judge was asked about, without the question at the start of an incarnation."""
    answers = [parts(body)["answer"] for body in stub.bodies]
    return [answer for answer in answers if answer != "I'm sorry, but I can't help with that."]


def used(body: dict[str, Any]) -> int:
    """The tokens that the server reports for a request."""
    return sum(usage_of(body, likes_yes(body)).values())


@pytest.mark.parametrize("generation_batch", [0, ANSWERS // 2])
def test_a_job_trains_on_the_grades_of_a_judge_and_its_key_is_in_no_file(
    workshop: Any, stub: Stub, key_file: Path, generation_batch: int
) -> None:
    spec = _job(workshop, stub, key_file, steps=3, recipe={"generation_batch": generation_batch})
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    assert (status.outcome, status.step) == (Outcome.DONE, 3), (status, workshop.log(spec))
    told = [event for event in workshop.executor.events(spec.name) if event.kind == "progress"]
    asked = _asked(stub)
    assert 3 < len(asked) <= 3 * ANSWERS
    assert 0.0 < max(event.data["reward"] for event in told) < 1.0
    assert sum(_tokens(workshop, spec)) == sum(map(used, stub.bodies[1:])), "the first question is that before the training"
    folder = workshop.run_folder(spec)
    read = [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert read == []
    assert KEY not in spec.model_dump_json()


def test_a_job_counts_the_tokens_of_its_earlier_incarnations_and_ends_at_its_budget(workshop: Any, stub: Stub, key_file: Path) -> None:
    spec = _job(workshop, stub, key_file, steps=200, job_budget=60_000)
    workshop.executor.submit(spec, 1)
    workshop.preempt(spec, 2)
    used = sum(_tokens(workshop, spec))
    assert 0 < used < 60_000
    event = [one for one in workshop.executor.events(spec.name) if one.kind == "checkpoint"][-1]
    workshop.executor.pin(spec, ResumePoint(attempt=1, incarnation=1, step=event.step, **event.data))
    workshop.executor.submit(spec, 2)
    status = workshop.wait(spec)
    assert status.outcome == Outcome.PERMANENT, (status, workshop.log(spec))
    assert "used up the tokens of job_budget; raise it" in status.reason
    assert used < sum(_tokens(workshop, spec)) <= 60_000


def test_an_incarnation_whose_predecessors_used_all_tokens_ends_at_once(workshop: Any, stub: Stub, key_file: Path) -> None:
    spec = _job(workshop, stub, key_file, job_budget=60_000)
    before = workshop.run_folder(spec) / "i1"
    before.mkdir(parents=True)
    Events(before / "events.jsonl", 1, 2).write("progress", 1, judge_tokens=60_000.0)
    workshop.executor.submit(spec, 2)
    status = workshop.wait(spec)
    assert (status.outcome, stub.requests) == (Outcome.PERMANENT, 0), status
    assert "used up the tokens of job_budget" in status.reason


def test_a_judge_that_is_away_longer_than_a_step_does_not_stall_the_run(workshop: Any, stub: Stub, key_file: Path) -> None:
    """The wait belongs to the step. A refusal in the middle of a run ends the attempt, which can be repeated."""
    since: list[float] = []

    def model(body: dict[str, Any]) -> Any:
        if stub.requests > 40:
            since.append(time.monotonic())
        return (503, {}) if since and time.monotonic() < since[0] + 12.0 else likes_yes(body)

    stub.model = model
    health = {"stall_times": 3.0, "stall_least_seconds": 4.0}
    spec = _job(workshop, stub, key_file, steps=12, recipe={"health": health, "save_every": 12}, patience=60.0)
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    assert status.outcome == Outcome.DONE, (status, workshop.log(spec))
    stub.model = lambda body: (401, {}) if stub.requests > before + 20 else likes_yes(body)
    before = stub.requests
    spec = _job(workshop, stub, key_file, steps=12, recipe={"save_every": 6})
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    assert status.outcome == Outcome.FAILED, status
    assert "HTTP 401" in status.reason


@pytest.mark.parametrize("wrong", ["no file", "another key", "no server"])
def test_a_job_that_cannot_ask_its_judge_ends_before_it_trains(workshop: Any, stub: Stub, key_file: Path, wrong: str) -> None:
    url: dict[str, Any] = {}
    if wrong == "no file":
        key_file.unlink()
    elif wrong == "another key":
        key_file.write_text("sk-of-another-server")
    else:
        url = {"url": "http://127.0.0.1:9/v1", "patience": 2.0}
    spec = _job(workshop, stub, key_file, **url)
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    expected = {"no file": "is not readable", "another key": "answers HTTP 401", "no server": "does not answer"}[wrong]
    assert expected in status.reason
    assert status.outcome == (Outcome.FAILED if wrong == "no server" else Outcome.PERMANENT)
    assert not (workshop.run_folder(spec) / "i1" / "trainer.log").exists()
