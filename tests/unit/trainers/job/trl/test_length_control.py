"""Tests of runs that find their own number of steps, with the real libraries and real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.contracts.ids import Digest
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobEvent, Method, TrainingPlan
from ratchet.runtime.jobs.job_protocol import RunFile
from ratchet.trainers.job.events import Events
from ratchet.trainers.job.job_folder import Job
from ratchet.trainers.length import points
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.sft import SFTRecipe
from tests.unit.trainers.conftest import CONTENT, TEMPLATE, Workshop, store
from tests.unit.trainers.job.test_parallel import on_two
from tests.unit.trainers.runs import asked, finish, pin_newest, weights

pytestmark = pytest.mark.slow

MOST = 160


@pytest.fixture
def workshop(warm_workshop: Workshop) -> Workshop:
    """Return a workshop whose questions have a rule that can be learnt: the answer repeats the second word."""
    return warm_workshop


def planned(
    workshop: Workshop, method: Method, development: int = 24, answers: bool = True, taught: int = 0, always: str = "", **changes: Any
) -> TrainingPlan:
    """Return a plan with development prompts whose answer is the first word. The training prompts teach the word number `taught`.

    `always` is the answer to all prompts instead.
    """
    questions = [(one, other) for one in CONTENT for other in CONTENT]
    kept, trained = questions[5 :: len(questions) // development][:development], []
    trained = [question for question in questions if question not in kept]
    prompts, right = [asked(*question) for question in trained], [always or question[taught] for question in trained]
    weight = [1.0] * len(trained)
    wrong = [CONTENT[(CONTENT.index(word) + 3) % len(CONTENT)] for word in right]
    held = {
        "prompt_id": [f"p{n}" for n in range(len(kept))],
        "prompt": [asked(*question) for question in kept],
        "reference": [always or question[0] if answers else None for question in kept],
        "slice": ["even" if n % 2 else "odd" for n in range(len(kept))],
        "answer": [question[0] for question in kept],
    }
    folder = workshop.folder
    schema = {name: values if any(value is not None for value in values) else [""] * len(values) for name, values in held.items()}
    if not answers:
        schema["reference"] = pa.array([None] * len(kept), pa.string())
    data = {
        "demonstrations": store(workshop.artifacts, folder / "d.parquet", {"prompt": prompts, "answer": right, "weight": weight}),
        "pairs": store(workshop.artifacts, folder / "p.parquet", {"prompt": prompts, "chosen": right, "rejected": wrong, "weight": weight}),
        "prompts": store(workshop.artifacts, folder / "g.parquet", {"prompt": prompts, "reference": right}),
        "development": store(workshop.artifacts, folder / "h.parquet", schema) if development else None,
        "answer_tokens": 1 if method is Method.GRPO else 3,  # GRPO's answers have one token, so it does not learn to end them
    }
    own = {"prompts_per_step": 8, "generations": 8} if method is Method.GRPO else {"batch": 16}
    settings = {"steps": "auto", "most_steps": MOST, **own, "micro_batch": 16, "learning_rate": 1e-2, "save_every": 7}
    return workshop.plan(method, **{**settings, **changes}).model_copy(update=data)


def measured(events: list[JobEvent]) -> dict[int, float]:
    return {event.step: event.data["score"] for event in events if event.kind == "measured"}


@pytest.mark.parametrize("method", [Method.SFT, pytest.param(Method.DPO, marks=pytest.mark.soak)])
def test_a_run_ends_when_unseen_answers_no_longer_become_better(workshop: Workshop, method: Method) -> None:
    spec = workshop.spec(planned(workshop, method))
    checkpoint = finish(workshop, spec)
    events = workshop.executor.events(spec.name)
    scores = measured(events)
    assert scores[0] < 0.3
    last = [event for event in events if event.kind == "measured"][-1]
    assert last.data["action"] == "end"
    assert scores[int(last.data["kept"])] > 0.9, scores
    assert last.step <= MOST
    assert checkpoint.metrics["published_step"] == last.data["kept"]
    assert checkpoint.metrics["development_gain"] > 0.6
    rates = {event.step: event.data["learning_rate"] for event in events if event.kind == "progress"}
    assert rates[max(rates)] < 0.3 * max(rates.values()), "the rate falls at the end"


def test_the_published_weights_are_those_that_were_measured_best(workshop: Workshop) -> None:
    """The training data teach another rule, so the model first becomes better by chance and then worse. The better one is published."""
    spec = workshop.spec(planned(workshop, Method.SFT, taught=1))
    checkpoint = finish(workshop, spec)
    events = workshop.executor.events(spec.name)
    kept = int(checkpoint.metrics["published_step"])
    assert kept < max(event.step for event in events), measured(events)
    folder = next(iter((workshop.run_folder(spec) / "i1").glob(f"step_{max(e.step for e in events if e.kind == 'checkpoint')}")))
    carried = folder / "kept" / "weights" / "model.safetensors"
    assert carried.exists()
    assert tensors(carried) == tensors(workshop.artifacts.fetch(checkpoint.files, workshop.folder / "out") / "model.safetensors")


def tensors(path: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return {name: value.tolist() for name, value in load_file(path).items()}


@pytest.mark.parametrize(
    ("step", "method"),
    [
        (12, Method.DPO),
        pytest.param(70, Method.SFT, marks=pytest.mark.soak),
        pytest.param(12, Method.SFT, marks=pytest.mark.soak),
        pytest.param(70, Method.DPO, marks=pytest.mark.soak),
    ],
)
def test_a_preempted_run_measures_and_publishes_the_same(workshop: Workshop, method: Method, step: int) -> None:
    whole = workshop.spec(planned(workshop, method))
    expected = published(workshop, whole, finish(workshop, whole))
    spec = workshop.spec(planned(workshop, method), attempt=2)
    assert spec.plan == whole.plan
    workshop.executor.submit(spec, 1)
    workshop.preempt(spec, step)
    pin_second(workshop, spec)
    status_weights = published(workshop, spec, finish(workshop, spec, 2))
    assert status_weights == expected
    assert measured(workshop.executor.events(spec.name)) == measured(workshop.executor.events(whole.name))


@pytest.mark.parametrize("temperature", [0.5, pytest.param(None, marks=pytest.mark.soak)])
def test_grpo_measures_its_model_and_publishes_the_same_after_a_preemption(workshop: Workshop, temperature: float | None) -> None:
    """Sampled answers to the development prompts are the same after a resume, and do not change the draws of the training."""
    plan = planned(workshop, Method.GRPO, most_steps=60, beta=0.0, learning_rate=1e-2, always="yes")
    plan = plan.model_copy(update={"answer_temperature": temperature})
    whole = workshop.spec(plan)
    checkpoint = finish(workshop, whole)
    scores = measured(workshop.executor.events(whole.name))
    assert [step for step in scores if step in points(60)] == list(points(60))
    assert checkpoint.metrics["published_step"] in scores
    assert checkpoint.metrics["development_score"] == scores[int(checkpoint.metrics["published_step"])] > scores[0]
    spec = workshop.spec(plan, attempt=2)
    workshop.executor.submit(spec, 1)
    workshop.preempt(spec, 20)
    pin_second(workshop, spec)
    assert published(workshop, spec, finish(workshop, spec, 2)) == published(workshop, whole, checkpoint)
    assert measured(workshop.executor.events(spec.name)) == scores


def pin_second(workshop: Workshop, spec: Any) -> None:
    event = [event for event in workshop.executor.events(spec.name) if event.kind == "checkpoint"][-1]
    from ratchet.contracts.jobs.training import ResumePoint

    workshop.executor.pin(spec, ResumePoint(attempt=2, incarnation=event.incarnation, step=event.step, **event.data))


def published(workshop: Workshop, spec: Any, checkpoint: Any) -> Digest:
    assert checkpoint.attempt == spec.attempt
    return weights(workshop.artifacts, checkpoint)


def test_without_references_the_likelihood_of_right_answers_decides(workshop: Workshop) -> None:
    spec = workshop.spec(planned(workshop, Method.SFT, answers=False))
    checkpoint = finish(workshop, spec)
    events = [event for event in workshop.executor.events(spec.name) if event.kind == "measured"]
    assert {event.data["by"] for event in events} == {"likelihood"}
    assert events[0].data["score"] < events[-1].data["score"] < 0
    assert checkpoint.metrics["published_step"] > 0


@pytest.mark.parametrize("development", [0, 6])
def test_too_few_development_prompts_train_for_three_passes(workshop: Workshop, development: int) -> None:
    spec = workshop.spec(planned(workshop, Method.SFT, development=development) if development else without(workshop))
    checkpoint = finish(workshop, spec)
    events = workshop.executor.events(spec.name)
    assert checkpoint.step == (36 if development else 37), "three passes over 190 or 195 rows in batches of 16"
    assert any("not measured" in event.data.get("reason", "") for event in events if event.kind == "warning")
    assert not measured(events)


def without(workshop: Workshop) -> TrainingPlan:
    plan = planned(workshop, Method.SFT, development=1)
    return plan.model_copy(update={"development": None, "answer_tokens": None})


def test_an_adapter_is_restored_from_the_best_measurement(workshop: Workshop) -> None:
    plan = planned(workshop, Method.SFT, lora={"rank": 8}, learning_rate=3e-2)
    whole, spec = workshop.spec(plan), workshop.spec(plan, attempt=2)
    expected = published(workshop, whole, finish(workshop, whole))
    workshop.executor.submit(spec, 1)
    workshop.preempt(spec, 20)
    pin_second(workshop, spec)
    assert published(workshop, spec, finish(workshop, spec, 2)) == expected


def test_a_run_that_dies_while_it_publishes_trains_no_further_step(workshop: Workshop) -> None:
    plan = planned(workshop, Method.SFT)
    whole = workshop.spec(plan)
    expected = published(workshop, whole, finish(workshop, whole))
    spec = workshop.spec(plan, attempt=2)
    point = pin_newest(workshop, whole)
    workshop.executor.pin(spec, point)
    assert published(workshop, spec, finish(workshop, spec)) == expected
    assert not [event for event in workshop.executor.events(spec.name) if event.kind == "progress"]
    assert workshop.executor.observe(spec.name).outcome == Outcome.DONE


def test_two_processes_measure_and_publish_as_one_does(workshop: Workshop) -> None:
    plan = planned(workshop, Method.SFT, answers=False)
    alone, both = workshop.spec(plan), on_two(workshop.spec(plan, attempt=2))
    one, two = finish(workshop, alone), finish(workshop, both)
    assert one.metrics["published_step"] == two.metrics["published_step"]
    scores, same = (measured(workshop.executor.events(spec.name)) for spec in (alone, both))
    assert same == pytest.approx(scores, rel=0.05, abs=1e-3)


def test_a_prompt_that_the_chat_template_refuses_is_left_out(workshop: Workshop, tiny_model: Path, tmp_path: Path) -> None:
    """It only measures, so it must not end the run."""
    from transformers import AutoTokenizer

    from ratchet.trainers.job.trl.development import Development

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TEMPLATE
    system = json.dumps([{"role": "system", "content": "one"}, {"role": "user", "content": "two"}])
    rows = {"prompt": [system, *(asked(word) for word in CONTENT)], "reference": ["one"] * 15, "slice": ["a"] * 15, "answer": ["one"] * 15}
    pq.write_table(pa.table(rows), tmp_path / RunFile.DEVELOPMENT)
    plan = planned(workshop, Method.SFT)
    job = Job(tmp_path, plan, 1, 1, 0, Events(tmp_path / "events.jsonl", 1, 1))
    found = Development(job, tokenizer, complete(SFTRecipe, plan.recipe))
    assert [row["prompt"][0]["content"] for row in found.rows] == list(CONTENT)
    assert (found.enough, found.by) == (True, "answers")
