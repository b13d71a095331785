"""Tests of jobs that fail, in real processes.

They cover metrics that are not finite, too little memory, a trainer that hangs, a reward that can be exploited, and manipulated files. Each
job ends with its reason, and the next attempt continues from the last good step.
"""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest

from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Adjustment, Attempt, JobSpec, JobState, JobStatus, Method, ResumePoint
from ratchet.contracts.model import model_ref
from ratchet.runtime.manifest import write_manifest
from ratchet.trainers.backends.trl import DPO
from tests.unit.trainers.conftest import Trained, Workshop, store
from tests.unit.trainers.troubled import meddle

pytestmark = pytest.mark.slow


@pytest.fixture
def workshop(warm_workshop: Workshop) -> Workshop:
    """Return the workshop with jobs that start fast."""
    return warm_workshop


BROKEN_WEIGHT = """
plain = module.Stepwise.training_step
def training_step(self, model, inputs, *more):
    if self.state.global_step == 3:
        next(iter(self.accelerator.unwrap_model(model).parameters())).data.fill_(float("nan"))
    return plain(self, model, inputs, *more)
module.Stepwise.training_step = training_step
"""
NO_MEMORY = """
import torch
plain = module.Stepwise.training_step
def training_step(self, model, inputs, *more):
    if self.state.global_step == 2:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7.00 GiB.")
    return plain(self, model, inputs, *more)
module.Stepwise.training_step = training_step
"""
PAID_BY_LENGTH = """
class Panel:
    judges = ()
    def without_reference(self):
        return True
    def label_unseen(self, samples):
        return [module.Label(min(1.0, len(sample["answer"].split()) / 40), None, {}, 0) for sample in samples]
module.planned_scorer_set = lambda plan, verdicts: Panel()
"""
DEAD_DISK = """
plain, written = module.seal, []
def seal(*places):
    written.append(places)
    while len(written) > 2:
        time.sleep(1)
    return plain(*places)
import time
module.seal = seal
"""
TALKATIVE = """
def training_step(self, *_):
    raise ValueError("cannot tokenise: my bank account is 4711")
module.Stepwise.training_step = training_step
"""
AWAY = """
class Panel:
    asked, judges = 0, ()
    def label_unseen(self, samples):
        self.asked += 1
        known = 0.5 if self.asked == 1 else None
        return [module.Label(known if n else None, None, {}, 0) for n, _ in enumerate(samples)]
    def without_reference(self):
        return False
def planned_scorer_set(plan, verdicts):
    import ratchet.trainers.job.online_rewards
    ratchet.trainers.job.online_rewards.PAUSES = (0.0,)
    return Panel()
module.planned_scorer_set = planned_scorer_set
"""


def ended(workshop: Any, spec: JobSpec, incarnation: int = 1) -> JobStatus:
    """Run an incarnation to its end and return its status."""
    workshop.executor.submit(spec, incarnation)
    return workshop.wait(spec)


def points(workshop: Any, spec: JobSpec) -> list[ResumePoint]:
    """Return resume points for all checkpoints of the job."""
    events = [event for event in workshop.executor.events(spec.name) if event.kind == "checkpoint"]
    return [ResumePoint(attempt=spec.attempt, incarnation=event.incarnation, step=event.step, **event.data) for event in events]


def adjusted_attempt(workshop: Any, spec: JobSpec, plan: Any, status: JobStatus) -> JobSpec:
    """Return attempt 2 as the ledger creates it, pinned to the newest good step."""
    again = DPO().job(plan, Attempt(number=2, timeout=300, adjustment=Adjustment().then(status.proposal, status.reason)))
    good = [point for point in points(workshop, spec) if point.step <= status.proposal.good]
    workshop.executor.pin(again, good[-1])
    return again


def progress(workshop: Any, spec: JobSpec) -> dict[int, dict[str, Any]]:
    """Return the metrics of each step."""
    return {event.step: event.data for event in workshop.executor.events(spec.name) if event.kind == "progress"}


def test_after_a_metric_that_is_not_finite_training_continues_at_half_the_rate(
    workshop: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    meddle(monkeypatch, tmp_path / "hook", "ratchet.trainers.job.trl.dpo_trainer", BROKEN_WEIGHT)
    plan = workshop.plan(Method.DPO, steps=6, schedule="cosine", learning_rate=1e-3)
    spec = workshop.spec(plan)
    status = ended(workshop, spec)
    assert status.outcome == Outcome.FAILED, workshop.log(spec)
    assert "is nan at step 4" in status.reason
    assert status.proposal is not None
    assert (status.proposal.rule, status.proposal.good) == ("not_finite", 3)
    assert [point.step for point in points(workshop, spec)] == [1, 2, 3], "a failed step must not be kept"
    again = adjusted_attempt(workshop, spec, plan, status)
    assert ended(workshop, again).outcome == Outcome.DONE, workshop.log(again)
    found = progress(workshop, again)
    assert sorted(found) == [4, 5, 6]
    shares = {step: (1 + math.cos(math.pi * (step - 1) / 6)) / 2 for step in found}
    assert {step: row["learning_rate"] for step, row in found.items()} == pytest.approx({s: 5e-4 * share for s, share in shares.items()})


def test_after_out_of_memory_training_continues_with_less_in_memory(workshop: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    meddle(monkeypatch, tmp_path / "hook", "ratchet.trainers.job.trl.dpo_trainer", NO_MEMORY)
    plan = workshop.plan(Method.DPO, steps=4)
    spec = workshop.spec(plan)
    status = ended(workshop, spec)
    assert status.outcome == Outcome.FAILED
    assert status.reason.startswith("out of memory: OutOfMemoryError")
    assert status.proposal is not None
    assert (status.proposal.rule, status.proposal.adjustment.memory) == ("memory", 0.5)
    again = adjusted_attempt(workshop, spec, plan, status)
    assert ended(workshop, again).outcome == Outcome.DONE, workshop.log(again)
    assert sorted(progress(workshop, again)) == [3, 4]


def test_a_hanging_trainer_is_ended_after_a_multiple_of_its_step_time(workshop: Any) -> None:
    watch = {"stall_times": 20, "stall_least_seconds": 5.0}
    plan = workshop.plan(Method.DPO, steps=100_000, save_every=100_000, grace_seconds=3, health=watch)  # saves have a separate limit
    spec = workshop.spec(plan)
    workshop.executor.submit(spec, 1)
    workshop.wait(spec, lambda status: status.step >= 8 or status.state == JobState.ENDED)
    wrapper = psutil.Process(json.loads((workshop.run_folder(spec) / "i1" / "process.json").read_text())["pid"])
    (trainer,) = wrapper.children()
    os.kill(trainer.pid, signal.SIGSTOP)
    status = workshop.wait(spec)
    assert status.outcome == Outcome.FAILED
    assert "the run is stalled" in status.reason
    assert status.proposal is not None
    assert (status.proposal.rule, status.proposal.adjustment) == ("stall", Adjustment())
    assert status.proposal.good == max(progress(workshop, spec))
    assert not trainer.is_running()


def test_a_hanging_save_is_ended_after_a_multiple_of_earlier_saves(workshop: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    meddle(monkeypatch, tmp_path / "hook", "ratchet.trainers.job.checkpoints", DEAD_DISK)
    watch = {"stall_times": 5, "stall_least_seconds": 15.0}
    plan = workshop.plan(Method.DPO, steps=12, save_every=3, grace_seconds=3, health=watch)
    status = ended(workshop, spec := workshop.spec(plan))
    assert (status.outcome, status.step) == (Outcome.FAILED, 9)
    assert "no progress of the save for" in status.reason
    assert "the run is stalled" in status.reason
    assert [point.step for point in points(workshop, spec)] == [3, 6]
    assert status.proposal is not None
    assert status.proposal.good == 9


UNPAIRED = "9 demonstrations of prompts without a pair"


@pytest.mark.parametrize(
    ("method", "what"), [(Method.DPO, ["24 pairs", UNPAIRED]), pytest.param(Method.SFT, ["30 answers"], marks=pytest.mark.soak)]
)
def test_answers_with_special_tokens_are_excluded(workshop: Any, tmp_path: Path, method: Method, what: list[str]) -> None:
    """A correction such as `words <end> …` would teach the model to end there and then to write the user's next message."""
    poison(workshop, tmp_path, 3)
    status = ended(workshop, spec := workshop.spec(workshop.plan(method, steps=2)))
    assert status.outcome == Outcome.DONE, workshop.log(spec)
    warnings = [event.data["reason"] for event in workshop.executor.events(spec.name) if event.kind == "warning"]
    assert warnings == [f"of {rows}, excluded: 3 with answers that contain special tokens of the model" for rows in what]
    poison(workshop, tmp_path, 30)
    status = ended(workshop, workshop.spec(workshop.plan(method, steps=3)))
    assert status.outcome == Outcome.PERMANENT
    assert f"all {what[0]} are excluded" in status.reason


@pytest.mark.parametrize("number", ["float64", "float8_e4m3fn"])
def test_a_model_with_an_unsupported_number_format_is_refused_before_the_first_step(
    workshop: Any, tiny_model: Path, tmp_path: Path, number: str
) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree(tiny_model, tmp_path / "other")
    weights = load_file(folder / "model.safetensors")
    save_file({name: value.to(getattr(torch, number)) for name, value in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    workshop.start = model_ref(folder, workshop.artifacts.put_folder(folder))
    status = ended(workshop, spec := workshop.spec(workshop.plan(Method.SFT, steps=2)))
    assert (status.outcome, status.step) == (Outcome.PERMANENT, 0), workshop.log(spec)
    assert "train from float32, bfloat16 or float16 weights" in status.reason
    assert not progress(workshop, spec)


def poison(workshop: Any, folder: Path, n: int) -> None:
    """Put an end-of-turn token into the first `n` chosen answers."""
    for kind, column in (("pairs", "chosen"), ("demonstrations", "answer")):
        columns = pq.read_table(io.BytesIO(workshop.artifacts.get(getattr(workshop, kind)))).to_pydict()
        columns[column] = [f"{text} <end> {text}" if number < n else text for number, text in enumerate(columns[column])]
        setattr(workshop, kind, store(workshop.artifacts, folder / f"{kind}-{n}.parquet", columns))


def test_messages_of_libraries_that_may_contain_user_text_stay_in_the_log(
    workshop: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    meddle(monkeypatch, tmp_path / "hook", "ratchet.trainers.job.trl.dpo_trainer", TALKATIVE)
    status = ended(workshop, spec := workshop.spec(workshop.plan(Method.DPO, steps=2)))
    assert status.outcome == Outcome.FAILED
    assert "4711" not in status.reason
    assert status.reason.startswith("unexpected ValueError at ")
    assert "4711" in workshop.log(spec)


def test_a_reward_for_length_is_detected(workshop: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    meddle(monkeypatch, tmp_path / "hook", "ratchet.rewards.scorer_set", PAID_BY_LENGTH)
    watch = {"length_grows": {"limit": 1.8, "patience": 3}, "entropy_collapse": {"limit": 0.98, "patience": 3, "action": "note"}}
    wide = {"kl": {"action": "off"}, "grad_norm": {"limit": 1e6}, "generation_slow": {"action": "off"}, "loss_spike": {"action": "off"}}
    plan = workshop.plan(Method.GRPO, steps=120, save_every=10, learning_rate=2e-3, max_completion=44, beta=0.02, health={**watch, **wide})
    spec = workshop.spec(plan)
    status = ended(workshop, spec)
    assert status.outcome == Outcome.FAILED, (status, progress(workshop, spec))
    assert status.proposal is not None
    assert (status.proposal.rule, status.proposal.adjustment) == ("length_grows", Adjustment(kl=2.0))
    rules = [event.data["rule"] for event in workshop.executor.events(spec.name) if event.kind == "warning"]
    assert rules.count("length_grows") == 1
    rewards = [row["reward"] for row in progress(workshop, spec).values()]
    assert rewards[-1] > rewards[0] + 0.2, "the exploited reward must have risen"


def test_scorers_that_always_abstain_end_the_run_and_no_user_text_is_logged(
    workshop: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the first step one answer is not scored, and the run continues. In the second step no answer is scored."""
    meddle(monkeypatch, tmp_path / "hook", "ratchet.rewards.scorer_set", AWAY)
    spec = workshop.spec(workshop.plan(Method.GRPO, steps=3))
    status = ended(workshop, spec)
    assert status.outcome == Outcome.FAILED, workshop.log(spec)
    assert sorted(progress(workshop, spec)) == [1]
    assert "every scorer abstained" in status.reason
    assert "the yes" not in workshop.log(spec)
    assert "'role': 'user'" not in workshop.log(spec)


class _Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_a_malicious_file_with_a_valid_manifest_runs_no_code(
    workshop: Any, undisturbed: Callable[[Method], Trained], tmp_path: Path, name: str
) -> None:
    spec, point, folder = undisturbed(Method.DPO).copied(workshop, attempt=2)
    mark = tmp_path / "owned"
    (folder / name).write_bytes(pickle.dumps(_Evil(mark)))
    workshop.executor.pin(spec, point.model_copy(update={"manifest": write_manifest(folder)}))
    status = ended(workshop, spec)
    assert status.outcome == Outcome.FAILED, workshop.log(spec)
    assert "UnpicklingError" in status.reason, "the job must have read the file"
    assert not mark.exists()
    pickle.loads((folder / name).read_bytes())
    assert mark.exists()
