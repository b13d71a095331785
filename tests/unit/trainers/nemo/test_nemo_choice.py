"""Tests of the published step: validation uses the development prompts, the best step is published, also by a resumed run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.errors import Permanent
from ratchet.contracts.ids import Digest
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Checkpoint, JobSpec, ResumePoint
from ratchet.contracts.schema import parse
from ratchet.trainers.job.nemo.choice import MEASURED, Choice, best_of, due
from ratchet.trainers.job.nemo.figures import Reader
from ratchet.trainers.job.nemo.steps import CHOICE, WEIGHTS
from tests.unit.trainers.conftest import Workshop, store

pytestmark = pytest.mark.slow

PROMPTS = [f"p{number:02d}" for number in range(20)]


def scores(right: int) -> dict[str, float | None]:
    return {prompt: float(number < right) for number, prompt in enumerate(PROMPTS)}


def sealed(choice: Choice, folder: Path, step: int) -> Path:
    """Return a sealed checkpoint of `step` whose weights name it."""
    place = folder / f"step_{step}"
    (place / WEIGHTS).mkdir(parents=True)
    (place / WEIGHTS / "model.safetensors").write_text(str(step))
    choice.carry(place, step)
    choice.sealed(step, place)
    return place


def weights(place: tuple[int, Path]) -> tuple[int, str]:
    return place[0], (place[1] / WEIGHTS / "model.safetensors").read_text()


def test_the_best_step_is_published_from_any_later_checkpoint(tmp_path: Path) -> None:
    choice = Choice(dict.fromkeys(PROMPTS), 40)
    places: list[Path] = []
    for step, right in ((0, 4), (10, 8), (20, 16), (30, 10), (40, 9)):
        told = choice.add(step, scores(right))
        assert told is not None
        assert told["reason"]
        if step:
            places.append(sealed(choice, tmp_path, step))
    assert weights(choice.published(40, places[-1])) == (20, "20")
    assert choice.figures(20) == {
        "published_step": 20.0,
        "development_score": 0.8,
        "development_start": 0.2,
        "development_prompts": 20.0,
        "development_gain": pytest.approx(0.6),
        "development_gain_error": pytest.approx(0.112, abs=0.001),
    }
    again = Choice.read(places[-1], 40)
    assert again is not None
    assert weights(again.published(40, places[-1])) == (20, "20")
    assert again.over == choice.over
    earlier = Choice.read(places[0], 40)
    assert earlier is not None
    assert earlier.add(10, scores(20)) is None, "a step is measured once"
    assert weights(earlier.published(10, places[0])) == (10, "10")


def test_noise_does_not_give_up_a_longer_training(tmp_path: Path) -> None:
    choice = Choice(dict.fromkeys(PROMPTS), 40)
    for step, right in ((0, 4), (10, 11), (20, 12), (40, 11)):
        choice.add(step, scores(right))
        last = sealed(choice, tmp_path, step or 1)
    assert weights(choice.published(40, last)) == (40, "40"), "one prompt more is no reason to publish fewer steps"


def test_the_best_step_is_kept_while_another_one_is_as_good(tmp_path: Path) -> None:
    choice = Choice(dict.fromkeys(PROMPTS), 40)
    for step, right in ((0, 4), (10, 12), (20, 11), (30, 5)):
        choice.add(step, scores(right))
        if step:
            last = sealed(choice, tmp_path, step)
    assert weights(choice.published(30, last)) == (10, "10")


def test_a_worse_slice_is_not_published(tmp_path: Path) -> None:
    halves = {prompt: "first" if number < 10 else "second" for number, prompt in enumerate(PROMPTS)}
    choice = Choice(halves, 40)
    good = {prompt: float(number < 12) for number, prompt in enumerate(PROMPTS)}
    bad = {prompt: float(number >= 6) for number, prompt in enumerate(PROMPTS)}  # the first slice loses six of ten
    choice.add(0, good)
    for step, found in ((10, scores(13)), (20, bad)):
        choice.add(step, found)
        last = sealed(choice, tmp_path, step)
    assert choice.published(20, last)[0] == 10


def test_an_open_end_stays_over_when_a_later_validation_rises() -> None:
    choice = Choice(dict.fromkeys(PROMPTS), 200)
    for step, right in ((0, 4), (20, 12), (60, 10), (100, 10)):
        choice.add(step, scores(right))
    assert choice.over
    choice.add(180, scores(20))
    assert choice.over
    assert best_of(choice._measured, [None] * 20).step == 180


def test_an_open_end_is_measured_at_steps_that_double_and_are_saved() -> None:
    assert sorted(due(200, 20)) == [20, 60, 100, 180, 200]
    assert sorted(due(200, 1)) == [10, 20, 41, 83, 166, 200]
    assert sorted(due(6, 10)) == [6]


@given(st.lists(st.integers(0, 20), min_size=2, max_size=8), st.integers(1, 3))
def test_a_read_choice_is_the_one_that_was_carried(rights: list[int], every: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        choice, last = Choice(dict.fromkeys(PROMPTS), 100), None
        for number, right in enumerate(rights):
            choice.add(number * every, scores(right))
            last = sealed(choice, Path(folder), number * every) if number else None
        assert last is not None
        again = Choice.read(last, 100)
        assert again is not None
        step = (len(rights) - 1) * every
        assert weights(again.published(step, last)) == weights(choice.published(step, last))
        assert again.over == choice.over


def test_a_best_step_that_was_never_sealed_is_not_published(tmp_path: Path) -> None:
    choice = Choice(dict.fromkeys(PROMPTS), 40)
    for step, right in ((0, 4), (10, 16), (20, 8)):
        choice.add(step, scores(right))
    last = sealed(choice, tmp_path, 20)
    assert weights(choice.published(20, last)) == (20, "20")


def test_too_few_scores_and_no_start_decide_nothing(tmp_path: Path) -> None:
    few = Choice(dict.fromkeys(PROMPTS[:9]), 40)
    assert few.add(0, scores(4)) is None
    late = Choice(dict.fromkeys(PROMPTS), 40)
    assert late.add(10, scores(4)) is None
    assert not late.over
    last = sealed(late, tmp_path, 10)
    assert weights(late.published(10, last)) == (10, "10")
    assert Choice.read(last, 40) is None


def test_scores_that_are_not_finite_count_as_missing() -> None:
    choice = Choice(dict.fromkeys(PROMPTS), 40)
    assert choice.add(0, dict.fromkeys(PROMPTS, float("nan"))) is None
    figures = choice.add(0, scores(4) | {PROMPTS[0]: float("inf")})
    assert figures is not None
    assert figures["scores"][0] is None


@pytest.mark.parametrize("content", ["{", "[]", '{"prompts": {}, "measured": [{"step": "x"}], "best": 0}', '{"prompts": ["a"]}'])
def test_damaged_measurements_are_refused(tmp_path: Path, content: str) -> None:
    choice = Choice(dict.fromkeys(PROMPTS), 40)
    choice.add(0, scores(4))
    place = sealed(choice, tmp_path, 10)
    (place / CHOICE / MEASURED).write_text(content)
    with pytest.raises(Permanent, match="is not valid"):
        Choice.read(place, 40)


def test_scores_of_validations_are_told_apart(tmp_path: Path) -> None:
    figures, journal = tmp_path / "figures.jsonl", tmp_path / "journal.jsonl"
    batches = [{"a": 1.0}, {"b": None}, {"a": 0.0}, {"b": 1.0}]
    lines = [json.dumps({"answers": 1, "abstained": 0, "validation": batch}) for batch in batches]
    journal.write_text("\n".join([*lines, json.dumps({"answers": 4, "abstained": 1})]) + "\n")
    figures.write_text(
        "".join(
            json.dumps({"step": step, "prefix": prefix, "figures": {"accuracy": 0.5}}) + "\n"
            for step, prefix in ((0, "validation"), (1, "timing/train"), (2, "validation"), (2, "timing/train"))
        )
    )
    reader = Reader(figures, journal)
    steps = list(reader.steps())
    assert [step for step, _ in steps] == [1, 2]
    assert steps[0][1]["abstained"] == 0.25, "answers of validations are not counted"
    assert reader.validations() == [(0, {"a": 1.0, "b": None}), (2, {"a": 0.0, "b": 1.0})]
    assert reader.validations() == []


@pytest.fixture
def workshop(warm_workshop: Workshop) -> Workshop:
    return warm_workshop


@pytest.fixture
def development(workshop: Workshop) -> Digest:
    """Return development prompts: as many as a decision needs, and one that has no reference."""
    prompts = [json.dumps([{"role": "user", "content": f"{word} {word} up"}]) for word in ("one", "two", "three", "four", "five", "six")]
    prompts += [json.dumps([{"role": "user", "content": f"{word} down {word}"}]) for word in ("one", "two", "three", "four", "five", "six")]
    columns = {"prompt_id": [f"d{n:02d}" for n in range(12)], "prompt": prompts, "reference": [*["yes"] * 11, None]}
    return store(workshop.artifacts, workshop.folder / "development.parquet", {**columns, "slice": ["s"] * 12, "answer": ["yes"] * 12})


def moved(workshop: Workshop, spec: JobSpec, incarnation: int, tiny_model: Path) -> tuple[Checkpoint, int]:
    """Return the published checkpoint, and the step that its weights come from: the stand-in moves them by 0.001 a step."""
    from safetensors.torch import load_file

    bound = workshop.artifacts.resolve(f"checkpoint/{spec.plan}/a1/i{incarnation}")
    assert bound is not None
    checkpoint = parse(Checkpoint, workshop.artifacts.get(bound))
    folder = workshop.artifacts.fetch(checkpoint.files, workshop.folder / f"fetched{incarnation}")
    start, trained = (load_file(place / "model.safetensors") for place in (tiny_model, folder))
    return checkpoint, round((trained["model.norm.weight"] - start["model.norm.weight"]).mean().item() * 1000)


def test_a_run_publishes_its_best_step(workshop: Any, job: Callable[..., JobSpec], development: Digest, tiny_model: Path) -> None:
    spec = job(stub="plain", steps=12, save_every=2, keep_checkpoints=2, development=development, best=6)
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    assert status.outcome == Outcome.DONE, (status, workshop.log(spec))
    events = [event for event in workshop.executor.events(spec.name) if event.kind == "measured"]
    assert [event.step for event in events] == [0, 2, 4, 6, 8, 10, 12]
    assert all(event.data["prompts"] == 11 for event in events), "one of the prompts cannot be scored, so validation leaves it out"
    checkpoint, step = moved(workshop, spec, 1, tiny_model)
    assert (step, checkpoint.metrics["published_step"], checkpoint.step) == (6, 6.0, 12)


def test_a_preempted_run_publishes_the_same_step(workshop: Any, job: Callable[..., JobSpec], development: Digest, tiny_model: Path) -> None:
    spec = job(stub="again", hold=7, steps=12, save_every=2, keep_checkpoints=2, development=development, best=4)
    workshop.executor.submit(spec, 1)
    workshop.preempt(spec, step=6)
    event = [event for event in workshop.executor.events(spec.name) if event.kind == "checkpoint"][-1]
    workshop.executor.pin(spec, ResumePoint(attempt=1, incarnation=1, step=event.step, **event.data))
    workshop.executor.submit(spec, 2)
    status = workshop.wait(spec)
    assert status.outcome == Outcome.DONE, (status, workshop.log(spec))
    assert moved(workshop, spec, 2, tiny_model)[1] == 4


def test_a_run_that_cannot_be_measured_takes_all_steps(workshop: Any, job: Callable[..., JobSpec]) -> None:
    spec = job(stub="plain", steps="auto", most_steps=6)
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    assert (status.outcome, status.step) == (Outcome.DONE, 6), (status, workshop.log(spec))


def test_an_open_end_stops_where_scores_no_longer_rise(
    workshop: Any, job: Callable[..., JobSpec], development: Digest, tiny_model: Path
) -> None:
    spec = job(stub="plain", steps="auto", most_steps=400, save_every=20, development=development, best=20, seconds=0.01)
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    assert status.outcome == Outcome.DONE, (status, workshop.log(spec))
    checkpoint, step = moved(workshop, spec, 1, tiny_model)
    assert 100 <= checkpoint.step < 300
    assert step == checkpoint.metrics["published_step"] == 20
