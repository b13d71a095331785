"""Tests of whole jobs on the stand-in for the release: executor, supervisor, observing process and run.

The first test uses a real Ray and the product's real actor.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Checkpoint, JobSpec, ResumePoint
from ratchet.contracts.loop import RewardSettings
from ratchet.contracts.schema import parse
from ratchet.runtime.manifest import verify_manifest
from tests.judge_stub import Stub, grade, parts, serving
from tests.unit.trainers.conftest import Workshop

pytestmark = pytest.mark.slow


@pytest.fixture
def workshop(warm_workshop: Workshop) -> Workshop:
    """Return the workshop with jobs that start fast. The jobs of test_nemo_judged.py start their own interpreters."""
    return warm_workshop


def pinned(workshop: Any, spec: JobSpec) -> ResumePoint:
    """Pin the job's newest checkpoint and return it."""
    event = [event for event in workshop.executor.events(spec.name) if event.kind == "checkpoint"][-1]
    resume = ResumePoint(attempt=1, incarnation=event.incarnation, step=event.step, **event.data)
    workshop.executor.pin(spec, resume)
    return resume


def test_a_run_is_observed_saved_and_published(workshop: Any, job: Callable[..., JobSpec], tiny_model: Path) -> None:
    spec = job()
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    assert status.outcome == Outcome.DONE, (status, workshop.log(spec))
    events = workshop.executor.events(spec.name)
    progress = [event for event in events if event.kind == "progress"]
    assert [event.step for event in progress] == [1, 2, 3, 4]
    assert progress[0].data["answer_tokens"] == 1.0
    assert progress[0].data["generation_seconds"] == 0.1
    assert progress[0].data["abstained"] == 0.0
    assert 0 <= progress[0].data["reward"] <= 1
    assert [event.step for event in events if event.kind == "checkpoint"] == [2, 4]
    bound = workshop.artifacts.resolve(f"checkpoint/{spec.plan}/a1/i1")
    checkpoint = parse(Checkpoint, workshop.artifacts.get(bound))
    same = {"weights", "files"}
    assert checkpoint.model.model_dump(exclude=same) == workshop.start.model_dump(exclude=same), "only weights may differ"
    folder = workshop.artifacts.fetch(checkpoint.files, workshop.folder / "fetched")
    assert {path.name for path in folder.iterdir()} == {path.name for path in tiny_model.iterdir()}

    from safetensors.torch import load_file

    start, trained = (load_file(place / "model.safetensors") for place in (tiny_model, folder))
    moved = (trained["model.norm.weight"] - start["model.norm.weight"]).mean().item()
    assert moved == pytest.approx(4e-3, rel=0.05)


def test_a_preempted_run_saves_at_the_next_step_and_resumes_from_the_pinned_step(workshop: Any, job: Callable[..., JobSpec]) -> None:
    spec = job(stub="plain", seconds=0.2, hold=3, steps=60, save_every=50, keep_checkpoints=2, nemo={"validate_every": 0})
    workshop.executor.submit(spec, 1)
    workshop.preempt(spec, step=2)
    resume = pinned(workshop, spec)
    assert 2 <= resume.step < 50, "the stop request must cause a save between the regular ones"
    verify_manifest(workshop.run_folder(spec).parent / resume.path, resume.manifest)
    stray = workshop.run_folder(spec) / "i1" / "work" / "checkpoints" / "step_59"
    stray.mkdir()  # the release would resume from the highest step that it finds
    workshop.executor.submit(spec, 2)
    workshop.preempt(spec, step=resume.step + 2)
    events = workshop.executor.events(spec.name)
    again = [event for event in events if event.incarnation == 2]
    assert min(event.step for event in again if event.kind == "progress") == resume.step + 1
    assert any("KL reference" in event.data.get("reason", "") for event in again if event.kind == "warning")


def test_an_incomplete_last_step_is_neither_kept_nor_published(workshop: Any, job: Callable[..., JobSpec]) -> None:
    spec = job(stub="cut")
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    assert status.outcome == Outcome.FAILED
    assert "model-00001-of-00001.safetensors (truncated)" in status.reason, (status, workshop.log(spec))
    assert workshop.artifacts.resolve(f"checkpoint/{spec.plan}/a1/i1") is None


@pytest.mark.parametrize(("stub", "words"), [("raise", "Dynamic sampling has reached"), ("nan", "grad_norm is nan at step 2")])
def test_a_failing_run_ends_with_a_reason(workshop: Any, job: Callable[..., JobSpec], stub: str, words: str) -> None:
    spec = job(stub=stub, save_every=1)
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    assert status.outcome == Outcome.FAILED
    assert words in status.reason, (status, workshop.log(spec))
    kept = [event.step for event in workshop.executor.events(spec.name) if event.kind == "checkpoint"]
    assert kept in ([], [1]), "a failed step must not be kept"
    assert status.step < 3, "no step may follow the failed one"


def test_a_run_whose_judge_may_use_no_more_tokens_is_not_repeated(workshop: Any, job: Callable[..., JobSpec]) -> None:
    """The error comes from the actor, through Ray and the process of the run."""
    with serving(Stub(model=lambda body: grade(5 if parts(body)["answer"] == "yes" else 1))) as stub:
        judge = RewardSettings(name="judge", options={"url": stub.url, "model": "m", "in_jobs": True, "job_budget": 10_000})
        spec = job(rewards=(judge,), steps=40)
        workshop.executor.submit(spec, 1)
        status = workshop.wait(spec)
    assert status.outcome == Outcome.PERMANENT, (status, workshop.log(spec))
    assert "used up the tokens of job_budget" in status.reason
    told = [event.data.get("judge_tokens", 0) for event in workshop.executor.events(spec.name) if event.kind == "progress"]
    assert 0 < sum(told) <= 10_000


def test_a_release_that_ignores_stop_requests_is_killed_and_lost_steps_are_named(workshop: Any, job: Callable[..., JobSpec]) -> None:
    spec = job(stub="deaf", seconds=0.3, steps=90, save_every=3, nemo={"validate_every": 0})
    workshop.executor.submit(spec, 1)
    status = workshop.preempt(spec, step=5)
    assert pinned(workshop, spec).step % 3 == 0
    assert "steps lost" in status.reason or status.step % 3 == 0


def test_a_container_without_the_release_is_refused_with_a_remedy(workshop: Any, job: Callable[..., JobSpec], release_folder: Path) -> None:
    spec = job()
    (release_folder / "examples" / "run_grpo.py").unlink()
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    assert status.outcome == Outcome.PERMANENT
    assert "run in a NeMo RL image" in status.reason


REFUSED = [
    ({"prompts_per_step": 26}, "fewer than the 26 of one step"),
    ({"nemo": {"max_prompt": 64}}, "set nemo.max_prompt to 63 or less"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_an_invalid_job_is_refused_before_anything_is_loaded(
    workshop: Any, job: Callable[..., JobSpec], changes: dict[str, Any], words: str
) -> None:
    spec = job(**changes)
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    assert status.outcome == Outcome.PERMANENT
    assert words in status.reason
    assert json.loads((workshop.run_folder(spec) / "i1" / "ended.json").read_text())["outcome"] == "permanent"
