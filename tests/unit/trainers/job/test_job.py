"""Tests of the parts of a training job that need no torch: sampler, events, checkpoints, and plans that the supervisor refuses."""

from __future__ import annotations

import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.errors import Permanent
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Checkpoint, JobEvent, JobState, Method, ResumePoint
from ratchet.contracts.model import model_ref
from ratchet.contracts.schema import stamped
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.manifest import MANIFEST, verify_manifest
from ratchet.trainers.job import checkpoints
from ratchet.trainers.job.events import Events
from ratchet.trainers.job.trl.sampler import draw
from ratchet.trainers.prompt_order import uniform


def test_equal_weights_give_ordinary_epochs() -> None:
    drawn = draw([0.7] * 10, 30, seed=1)
    assert [sorted(drawn[at : at + 10]) for at in (0, 10, 20)] == [list(range(10))] * 3
    assert drawn[:10] != drawn[10:20]


@pytest.mark.slow
@given(st.lists(st.floats(0.05, 1), min_size=1, max_size=20), st.integers(0, 99))
def test_pairs_are_sampled_in_proportion_to_their_weights(weights: list[float], seed: int) -> None:
    n = 4000
    drawn = Counter(draw(weights, n, seed))
    for index, weight in enumerate(weights):
        expected = n * weight / sum(weights)
        assert drawn[index] == pytest.approx(expected, rel=0.25, abs=40)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20).filter(any), st.integers(1, 50), st.integers(0, 99))
def test_sampling_is_repeatable_and_skips_rows_of_weight_zero(weights: list[float], n: int, seed: int) -> None:
    drawn = draw(weights, n, seed)
    assert drawn == draw(weights, n, seed)
    assert len(drawn) == n
    assert all(weights[index] > 0 for index in drawn)


@pytest.mark.parametrize("weights", [[], [0.0, 0.0]])
def test_pairs_without_a_positive_weight_are_refused(weights: list[float]) -> None:
    with pytest.raises(Permanent, match="positive weight"):
        draw(weights, 4, 0)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -0.5, None, "1"])
@pytest.mark.parametrize("n", [1, 2])
def test_an_invalid_weight_is_refused_with_its_row(weight: Any, n: int) -> None:
    """With a NaN, sampling would never end. With an infinite weight, only that row would be sampled."""
    with pytest.raises(Permanent, match=f"row {n}: its weight is {weight}"):
        draw([0.5] * n + [weight], 4, 0)


@given(st.integers(1, 9), st.integers(1, 40))
def test_every_prompt_is_used_before_any_is_used_again(prompts: int, n: int) -> None:
    drawn = uniform([None] * prompts, [], n, seed=5)
    assert len(drawn) == n
    for at in range(0, n, prompts):
        assert len(set(drawn[at : at + prompts])) == len(drawn[at : at + prompts])


def test_events_keep_metrics_that_json_cannot_represent(tmp_path: Path) -> None:
    events = Events(tmp_path / "events.jsonl", incarnation=2, total=9)
    events.write("progress", 1, loss=float("nan"), reward=0.5)
    event = JobEvent.model_validate_json((tmp_path / "events.jsonl").read_bytes())
    assert (event.incarnation, event.step, event.total, event.data) == (2, 1, 9, {"loss": "nan", "reward": 0.5})


def written(folder: Path) -> Path:
    """Write the files of a small checkpoint into `folder`."""
    (folder / "sub").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "sub" / "state.json").write_text("{}")
    return folder


def point(plan_folder: Path, folder: Path) -> ResumePoint:
    """Return a resume point at the checkpoint in `folder`."""
    return ResumePoint(attempt=1, incarnation=1, step=5, path=folder.relative_to(plan_folder).as_posix(), manifest=verify_manifest(folder))


def test_a_sealed_checkpoint_can_be_resumed_from(tmp_path: Path) -> None:
    folder = tmp_path / "a1" / "i1" / "step_5"
    folder.parent.mkdir(parents=True)
    assert checkpoints.seal(written(tmp_path / "work"), folder) == verify_manifest(folder)
    assert checkpoints.resume_folder(tmp_path, point(tmp_path, folder)) == folder


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / MANIFEST).unlink(),
        lambda folder: (folder / MANIFEST).write_bytes((folder / MANIFEST).read_bytes()[:-9]),
        lambda folder: (folder / MANIFEST).write_bytes(b'{"files":{}}'),
        lambda folder: (folder / "model.safetensors").write_bytes(b"weight"),
        lambda folder: (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "sub" / "added.pkl").write_bytes(b"x"),
        lambda folder: checkpoints.seal(written(folder.parent / "again"), folder),
    ],
)
def test_only_the_pinned_checkpoint_is_resumed_from(tmp_path: Path, damage: Any) -> None:
    folder = tmp_path / "a1" / "i1" / "step_5"
    folder.parent.mkdir(parents=True)
    source = written(tmp_path / "work")
    (source / "model.safetensors").write_bytes(b"other weights")
    checkpoints.seal(source, folder)
    resume = point(tmp_path, folder)
    damage(folder)
    with pytest.raises(Permanent):
        checkpoints.resume_folder(tmp_path, resume)


def test_a_resume_point_outside_the_plan_is_refused(tmp_path: Path) -> None:
    folder = checkpoints_elsewhere = tmp_path / "elsewhere"
    checkpoints.seal(written(tmp_path / "work"), folder)
    resume = ResumePoint(attempt=1, incarnation=1, step=1, path="../elsewhere", manifest=verify_manifest(checkpoints_elsewhere))
    with pytest.raises(Permanent, match="outside"):
        checkpoints.resume_folder(tmp_path / "plan", resume)


def test_pruning_keeps_the_newest_and_the_pinned(tmp_path: Path) -> None:
    incarnation = tmp_path / "a1" / "i1"
    for step in (2, 4, 6, 8, 10):
        (incarnation / f"step_{step}").mkdir(parents=True)
        (incarnation / f"step_{step}" / MANIFEST).write_text("{}")
    pinned = ResumePoint(attempt=1, incarnation=1, step=2, path="a1/i1/step_2", manifest="0" * 64)
    checkpoints.prune(incarnation, 2, pinned)
    assert {folder.name for folder in incarnation.iterdir()} == {"step_2", "step_8", "step_10"}


def safetensors(path: Path, **tensors: tuple[str, int]) -> None:
    """Write a safetensors file of zero bytes with these types and sizes."""
    header, at = {}, 0
    for name, (dtype, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))


def test_the_published_model_is_the_start_model_with_other_weights(tmp_path: Path) -> None:
    start, trained = tmp_path / "start", tmp_path / "trained"
    start.mkdir()
    trained.mkdir()
    safetensors(start / "model.safetensors", a=("BF16", 8), b=("F32", 4))
    for name in ("config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json", "pytorch_model.bin", "modeling_own.py"):
        (start / name).write_text(f"start's {name}")
    safetensors(trained / "model.safetensors", a=("BF16", 16))
    (trained / "config.json").write_text("the library's")
    (start / "additional_chat_templates").mkdir()
    (start / "additional_chat_templates" / "tools.jinja").write_text("start's tools")
    folder = checkpoints.publishable(start, trained, tmp_path / "out")
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    kept = {"config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json", "additional_chat_templates/tools.jinja"}
    assert names == kept | {"model.safetensors"}
    assert model_ref(folder, "f").others == model_ref(start, "s").others
    assert (folder / "config.json").read_text() == "start's config.json"
    assert checkpoints.stored_dtype(start) == "BF16"


def test_a_model_without_safetensors_is_not_published(tmp_path: Path) -> None:
    for name in ("start", "trained"):
        (tmp_path / name).mkdir()
    (tmp_path / "trained" / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(Permanent, match="no weights"):
        checkpoints.publishable(tmp_path / "start", tmp_path / "trained", tmp_path / "out")
    with pytest.raises(Permanent, match="no safetensors"):
        checkpoints.stored_dtype(tmp_path / "start")


@pytest.fixture
def bare(tmp_path: Path) -> Any:
    """Return plans for a start model that consists of one small file, for jobs that end before the training."""
    from tests.unit.trainers.conftest import Workshop

    model = tmp_path / "bare"
    model.mkdir()
    safetensors(model / "model.safetensors", a=("F32", 4))
    return Workshop(tmp_path, model)


@pytest.mark.slow
def test_a_plan_for_other_code_is_refused(bare: Any) -> None:
    spec = bare.spec(bare.plan(Method.DPO).model_copy(update={"code": "0" * 64}))
    bare.executor.submit(spec, 1)
    status = bare.wait(spec)
    assert (status.state, status.outcome) == (JobState.ENDED, Outcome.PERMANENT)
    assert "plan again" in status.reason


@pytest.mark.slow
def test_a_plan_for_other_scorers_is_refused(bare: Any) -> None:
    plan = bare.plan(Method.GRPO)
    foreign = plan.scorers[0].model_copy(update={"code": "0" * 64})
    spec = bare.spec(plan.model_copy(update={"scorers": (foreign,)}))
    bare.executor.submit(spec, 1)
    status = bare.wait(spec)
    assert status.outcome == Outcome.PERMANENT
    assert "exact_match" in status.reason


@pytest.mark.slow
def test_a_checkpoint_of_an_earlier_incarnation_is_not_trained_again(bare: Any, tmp_path: Path) -> None:
    plan = bare.plan(Method.DPO)
    spec = bare.spec(plan)
    done = Checkpoint(plan=plan.id, attempt=1, incarnation=1, step=9, files=bare.start.files, model=bare.start, metrics={})
    drop = FolderArtifacts(bare.run_folder(spec) / "drop")
    assert drop.put_folder(bare.artifacts.fetch(bare.start.files, tmp_path / "trained")) == done.files
    bound = drop.bind(f"checkpoint/{plan.id}/a1/i1", drop.put(stamped(done)))
    bare.executor.submit(spec, 2)
    status = bare.wait(spec)
    assert status.outcome == Outcome.DONE
    assert "earlier incarnation" in status.reason
    assert bare.artifacts.resolve(f"checkpoint/{plan.id}/a1/i2") == bound


@pytest.mark.slow
def test_four_bit_training_without_its_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    from transformers.quantizers import AutoQuantizationConfig

    from ratchet.trainers.job.trl.runner import quantization
    from ratchet.trainers.recipes.completion import complete
    from ratchet.trainers.recipes.dpo import DPORecipe

    assert quantization(complete(DPORecipe, {"lora": {"rank": 2}}), bf16=True) == {}
    four_bits = complete(DPORecipe, {"lora": {"quantize": "nf4"}})
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(Permanent, match="needs bitsandbytes"):
        quantization(four_bits, bf16=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    read = AutoQuantizationConfig.from_dict(quantization(four_bits, bf16=True)["quantization_config"])
    assert (read.load_in_4bit, read.bnb_4bit_quant_type, read.bnb_4bit_use_double_quant) == (True, "nf4", True)
