"""Tests of whole training jobs on a tiny model, with the real libraries and real processes, within seconds on a CPU."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.ids import Digest
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobSpec, JobState, Method, ResumePoint
from ratchet.local.serve.generate import Model
from ratchet.runtime.manifest import MANIFEST
from ratchet.trainers.job.trl.grpo import GROUPS, groups_of
from ratchet.trainers.prompt_order import by_signal
from tests.unit.trainers.conftest import STEPS, Trained, Workshop, write_model
from tests.unit.trainers.runs import checkpoint_of, finish, kinds, pin_newest, weights
from tests.warm import Warm

pytestmark = pytest.mark.slow


@pytest.fixture
def workshop(warm_workshop: Workshop) -> Workshop:
    """Return the workshop with jobs that start fast."""
    return warm_workshop


def published(run: Trained) -> Digest:
    """Return the digest of the weights that a run published."""
    return weights(run.workshop.artifacts, checkpoint_of(run.workshop.artifacts, run.spec))


Undisturbed = Callable[[Method], Trained]


@pytest.mark.parametrize("method", [Method.DPO, Method.GRPO, Method.SFT])
def test_a_job_trains_and_publishes_a_model_that_loads(undisturbed: Undisturbed, method: Method, tiny_model: Path, tmp_path: Path) -> None:
    run = undisturbed(method)
    workshop, checkpoint = run.workshop, checkpoint_of(run.workshop.artifacts, run.spec)
    assert checkpoint.step == STEPS
    assert checkpoint.model.weights != workshop.start.weights
    same = {"weights", "files"}
    assert checkpoint.model.model_dump(exclude=same) == workshop.start.model_dump(exclude=same), "only weights may differ"
    folder = workshop.artifacts.fetch(checkpoint.files, tmp_path / "fetched")
    assert {path.name for path in folder.iterdir()} == {path.name for path in tiny_model.iterdir()}
    names = [json.loads(path.read_bytes())["name"] for path in (workshop.artifacts.root / "names").iterdir()]
    assert names
    assert all(name.startswith("checkpoint/") for name in names), "the service takes only checkpoints over"
    assert kinds(run.events)[0] == "started"
    assert kinds(run.events).count("progress") == STEPS
    rehearsed = [event.data.get("rehearsed") for event in run.events if event.kind == "progress"]
    assert rehearsed == [2.0 if method == Method.DPO else None] * STEPS, (
        "a step has pairs of 8 of 24 prompts, and the same share of the 6 other prompts"
    )
    assert kinds(run.events)[-2:] == ["published", "stopped"]

    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "one up"}]
    asked = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    assert model.generate(**asked, do_sample=False, max_new_tokens=3).shape[1] > asked["input_ids"].shape[1]


@pytest.mark.parametrize("method", [Method.DPO, Method.GRPO, pytest.param(Method.SFT, marks=pytest.mark.soak)])
def test_a_preempted_run_resumes_to_the_same_weights(workshop: Any, undisturbed: Undisturbed, method: Method) -> None:
    spec = workshop.spec(undisturbed(method).plan)
    workshop.executor.submit(spec, 1)
    workshop.preempt(spec, step=3)
    assert 3 <= pin_newest(workshop, spec).step < STEPS
    assert weights(workshop.artifacts, finish(workshop, spec, 2)) == published(undisturbed(method))
    assert [event.step for event in workshop.executor.events(spec.name) if event.kind == "progress"] == list(range(1, STEPS + 1))


def test_each_step_of_grpo_records_its_groups_and_chooses_the_next_prompts(undisturbed: Undisturbed) -> None:
    """The events have the share without signal, and the checkpoint has the groups that a resumed run continues with."""
    run = undisturbed(Method.GRPO)
    folder = run.workshop.run_folder(run.spec) / "i1" / f"step_{STEPS}"
    entries = [entry for entry in json.loads((folder / "trainer_state.json").read_bytes())["log_history"] if GROUPS in entry]
    shares = [event.data["groups_without_signal"] for event in run.events if event.kind == "progress"]
    assert [1 - sum(signal for _, signal in entry[GROUPS]) / 4 for entry in entries] == shares
    assert 0 < sum(shares) < STEPS, "the run must have groups of both kinds"
    probed = [("mixed", "equal", None)[place % 3] for place in range(24)]
    groups = groups_of(entries)
    for at in range(0, len(groups), 4):
        assert [prompt for prompt, _ in groups[at : at + 4]] == by_signal(probed, groups[:at], 4, run.plan.seed)


def test_answers_may_be_sampled_in_parts(workshop: Any, undisturbed: Undisturbed) -> None:
    """The memory remedy samples half of a step's answers at once. The steps and their learning rates stay the same."""
    spec = workshop.spec(workshop.plan(Method.GRPO, steps=STEPS, generation_batch=16))
    finish(workshop, spec)
    whole, parts = (
        [(event.step, event.data["learning_rate"]) for event in events if event.kind == "progress"]
        for events in (undisturbed(Method.GRPO).events, workshop.executor.events(spec.name))
    )
    assert parts == whole
    assert len(parts) == STEPS


def test_a_killed_run_resumes_and_loses_at_most_the_steps_between_two_checkpoints(workshop: Any, undisturbed: Undisturbed) -> None:
    """Reported steps after the pinned checkpoint are repeated. The step that the kill interrupts is not reported."""
    spec = workshop.spec(workshop.plan(Method.DPO, steps=STEPS, save_every=3))
    at = 0
    for incarnation in (1, 2, 3):
        workshop.executor.submit(spec, incarnation)
        workshop.wait(spec, lambda status, past=at + 4: status.step >= past or status.state == JobState.ENDED)
        os.kill(json.loads((workshop.run_folder(spec) / f"i{incarnation}" / "process.json").read_text())["pid"], signal.SIGKILL)
        assert workshop.wait(spec).outcome == Outcome.LOST, workshop.log(spec)
        told = [event.step for event in workshop.executor.events(spec.name) if (event.incarnation, event.kind) == (incarnation, "progress")]
        assert told == list(range(at + 1, told[-1] + 1)), "the run must continue right after the pinned step"
        at = pin_newest(workshop, spec).step
        assert at % 3 == 0
        assert told[-1] - 3 <= at <= told[-1]
    assert weights(workshop.artifacts, finish(workshop, spec, 4)) == published(undisturbed(Method.DPO))


def test_an_automatic_checkpoint_interval_changes_no_weight(workshop: Any, undisturbed: Undisturbed) -> None:
    plan = workshop.plan(Method.DPO, steps=STEPS, save_every="auto", interruption_hours=1e-4)
    spec = workshop.spec(plan)
    assert weights(workshop.artifacts, finish(workshop, spec)) == published(undisturbed(Method.DPO))
    saved = [event for event in workshop.executor.events(spec.name) if event.kind == "checkpoint"]
    assert saved[0].step == 3, "the first save measures the cost"
    assert saved[-1].step == STEPS, "a kill during the export must not lose steps"
    told = [event.kind for event in workshop.executor.events(spec.name)]
    assert told.count("saving") == len(saved)
    assert told.index("exporting") > len(told) - told[::-1].index("checkpoint") - 1
    again = workshop.spec(plan, attempt=2)
    point = ResumePoint(attempt=1, incarnation=1, step=saved[-2].step, **saved[-2].data)
    workshop.executor.pin(again, point)
    assert weights(workshop.artifacts, finish(workshop, again)) == published(undisturbed(Method.DPO))


def test_a_checkpoint_that_changed_after_it_was_pinned_is_not_loaded(workshop: Any, undisturbed: Undisturbed) -> None:
    spec, pinned, folder = undisturbed(Method.DPO).copied(workshop, attempt=2)
    workshop.executor.pin(spec, pinned)
    (folder / MANIFEST).write_bytes((folder / MANIFEST).read_bytes()[:-20])
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    assert status.outcome == Outcome.FAILED
    assert "missing or invalid" in status.reason


@pytest.mark.parametrize("held_in", [pytest.param("none", marks=pytest.mark.soak), "nf4"])
def test_an_adapter_is_resumed_and_merged_into_the_published_model(tmp_path: Path, warm: Warm, held_in: str) -> None:
    from safetensors.torch import load_file

    start = write_model(tmp_path / "start", width=64)  # four-bit weights are stored in blocks of 64
    workshop, first = Workshop(tmp_path, start, warm), Workshop(tmp_path, start)
    plan = workshop.plan(Method.DPO, steps=30, lora={"rank": 2, "dropout": 0.1, "quantize": held_in})
    undisturbed = weights(first.artifacts, finish(first, first.spec(plan, attempt=2)))
    spec = workshop.spec(plan)
    workshop.executor.submit(spec, 1)
    workshop.preempt(spec, step=2)
    assert pin_newest(workshop, spec).step < 30
    checkpoint = finish(workshop, spec, 2)
    assert weights(workshop.artifacts, checkpoint) == undisturbed
    assert checkpoint.model.parent is None
    folder = workshop.artifacts.fetch(checkpoint.files, workshop.folder / "merged")
    before, after = load_file(start / "model.safetensors"), load_file(folder / "model.safetensors")
    changed = {name for name, value in after.items() if not value.equal(before[name])}
    assert set(after) == set(before)
    assert changed == {name for name in before if "_proj" in name}, "only the linear layers may change"

    import torch
    from transformers import AutoModelForCausalLM

    whole = AutoModelForCausalLM.from_pretrained(folder)
    assert checkpoint.adapter is not None
    assert checkpoint.adapter.parent == plan.start.files
    adapter = workshop.artifacts.fetch(checkpoint.adapter.files, workshop.folder / "adapter")
    assert sorted(path.name for path in adapter.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert json.loads((adapter / "adapter_config.json").read_bytes())["base_model_name_or_path"] == plan.start.files
    served = Model(start, 1, adapter)
    ids = torch.arange(12).reshape(1, -1)
    with torch.inference_mode():
        torch.testing.assert_close(served._model(ids).logits, whole(ids).logits)


def test_an_unhealthy_run_is_stopped_with_a_reason(workshop: Any) -> None:
    spec = workshop.spec(workshop.plan(Method.DPO, steps=30, health={"grad_norm": {"limit": 1e-9, "patience": 2, "action": "stop"}}))
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    assert status.outcome == Outcome.FAILED
    assert "gradient norm" in status.reason
    assert status.step == 2
    assert status.proposal is None


def test_loading_the_resume_state_runs_no_code(undisturbed: Undisturbed) -> None:
    import torch
    from transformers.trainer_pt_utils import safe_globals

    run = undisturbed(Method.DPO)
    folder = run.workshop.run_folder(run.spec) / "i1" / f"step_{STEPS}"
    files = [path for path in folder.rglob("*") if path.suffix not in (".json", ".jinja", ".safetensors")]
    states = {path.name for path in files if path.suffix != ".md"}
    assert states == {"optimizer.pt", "scheduler.pt", "rng_state.pth"}
    with safe_globals():  # allows NumPy arrays, as the library does when it resumes
        for name in states:
            assert torch.load(folder / name, weights_only=True)


@pytest.mark.parametrize("method", [Method.DPO, Method.GRPO, Method.SFT])
def test_a_trainer_process_loads_no_library_that_its_run_does_not_need(undisturbed: Undisturbed, method: Method) -> None:
    """TRL loads MLflow for GRPO, and PEFT loads bitsandbytes and with it torch's compiler, if they are installed."""
    loaded = undisturbed(method).loaded
    assert {"torch", "peft", f"trl.trainer.{method.value}_trainer"} <= loaded
    for library in ("mlflow", "bitsandbytes"):
        importlib.metadata.version(library)  # raises if it is not installed; find_spec may not find it after a trainer run in this process
        assert not {name for name in loaded if name.partition(".")[0] == library}
    assert "torch._inductor.compile_fx" not in loaded


def mean_of(workshop: Any, spec: JobSpec, figure: str, part: slice) -> float:
    """Return the mean of a metric over some of the steps."""
    values = [event.data[figure] for event in workshop.executor.events(spec.name) if event.kind == "progress"][part]
    return float(sum(values) / len(values))


def test_dpo_learns_the_order_of_its_pairs(workshop: Any) -> None:
    """The run trains on pairs only. With rehearsal, the margin grows by only 0.13 in the same number of steps."""
    spec = workshop.spec(workshop.plan(Method.DPO, steps=40, save_every=40, learning_rate=5e-3, rehearsal=0.0))
    finish(workshop, spec)
    assert mean_of(workshop, spec, "margin", slice(-5, None)) > mean_of(workshop, spec, "margin", slice(5)) + 0.2
    assert mean_of(workshop, spec, "pairs_in_order", slice(-5, None)) > 0.8


def test_grpo_learns_the_rewarded_answer(workshop: Any) -> None:
    spec = workshop.spec(workshop.plan(Method.GRPO, steps=40, save_every=40, learning_rate=5e-3, beta=0.0))
    finish(workshop, spec)
    assert mean_of(workshop, spec, "reward", slice(-5, None)) > mean_of(workshop, spec, "reward", slice(5)) + 0.3


def test_an_attempt_ends_at_its_timeout(workshop: Any) -> None:
    spec = workshop.spec(workshop.plan(Method.DPO, steps=100_000, grace_seconds=30), timeout=0.5)
    workshop.executor.submit(spec, 1)
    status = workshop.wait(spec)
    assert (status.outcome, status.reason) == (Outcome.FAILED, "the attempt exceeded its timeout of 0.5 s")
