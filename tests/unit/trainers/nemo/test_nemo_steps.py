"""Tests of checkpoints in the layout of the release, which can be complete, truncated or partly renamed, and of the exported model."""

from __future__ import annotations

import json
import pickle
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import Permanent
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Method, ResumePoint
from ratchet.contracts.schema import stamped
from ratchet.runtime.manifest import MANIFEST, verify_manifest
from ratchet.trainers.job.events import Events
from ratchet.trainers.job.job_folder import Job
from ratchet.trainers.job.nemo import export, steps
from ratchet.trainers.job.nemo.__main__ import Asked, ReleaseRun

pytestmark = pytest.mark.slow  # torch takes seconds to load

SHARD = "policy/weights/model/shard-00001-model-00001-of-00001.safetensors"
CONSOLIDATED = "policy/weights/model/consolidated/model-00001-of-00001.safetensors"


@pytest.fixture
def step(tmp_path: Path, tiny_model: Path, stub_path: Path) -> Callable[[int], Path]:
    """Return a function that writes a checkpoint as the release does."""
    from nemo_rl.algorithms.grpo import save

    def make(number: int) -> Path:
        save({"policy": {"model_name": str(tiny_model)}}, tmp_path / "checkpoints", number, 1e-3, cut=False)
        return tmp_path / "checkpoints" / f"step_{number}"

    return make


def test_a_complete_step_has_no_missing_parts(step: Callable[[int], Path]) -> None:
    step(2), step(10)
    found = steps.find_steps(step(1).parent, adapter=False, consolidated=True)
    assert [(one.step, one.missing) for one in found] == [(1, ()), (2, ()), (10, ())], "the order must be numerical, not alphabetical"


BREAKS: dict[str, tuple[str, str]] = {
    "training_info.json": ("drop", "training_info.json"),
    "train_dataloader.pt": ("empty", "train_dataloader.pt"),
    "config.yaml": ("drop", "config.yaml"),
    SHARD: ("cut", "(truncated)"),
    CONSOLIDATED: ("drop", "consolidated/*.safetensors"),
    "policy/optimizer/optim/.metadata": ("cut", "optimizer/.metadata (truncated)"),
    "policy/optimizer/optim/__0_0.distcp": ("empty", "optimizer/__0_0.distcp"),
    "policy/optimizer/optim/__1_0.distcp": ("drop", "optimizer/__1_0.distcp"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_missing_parts_are_named(step: Callable[[int], Path], name: str) -> None:
    how, words = BREAKS[name]
    path = step(3) / name
    data = path.read_bytes()
    path.unlink()
    if how != "drop":
        path.write_bytes(b"" if how == "empty" else data[:-1])
    (found,) = steps.find_steps(path.parents[len(Path(name).parts)], adapter=False, consolidated=True)
    assert len(found.missing) == 1
    assert words in found.missing[0]


def test_the_required_optimiser_files_are_those_that_its_metadata_names(step: Callable[[int], Path]) -> None:
    import torch
    from torch.distributed import checkpoint

    optim = step(1) / "policy" / "optimizer" / "optim"
    shutil.rmtree(optim)
    state = {f"layer.{n}.exp_avg": torch.ones(3 + n) for n in range(4)} | {"groups": [{"lr": 1e-3}]}
    checkpoint.save(state, storage_writer=checkpoint.FileSystemWriter(optim, thread_count=2), no_dist=True)
    parts = sorted(path.name for path in optim.glob("*.distcp"))
    assert len(parts) == 2
    assert not list(steps.lacks(optim.parents[2], 1, False, True))
    (optim / parts[1]).unlink()
    assert list(steps.lacks(optim.parents[2], 1, False, True)) == [f"optimizer/{parts[1]}"]
    (optim / ".metadata").unlink()
    assert list(steps.lacks(optim.parents[2], 1, False, True)) == ["optimizer/.metadata"]


def test_the_optimisers_metadata_is_read_without_running_code(step: Callable[[int], Path], tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    folder = step(1)
    (folder / "policy/optimizer/optim/.metadata").write_bytes(pickle.dumps([Hostile(), "__7_0.distcp"]))
    assert list(steps.lacks(folder, 1, False, True)) == ["optimizer/__7_0.distcp"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "header",
    [
        "{}",
        '{"__metadata__": {}}',
        '{"a": 5}',
        '{"a": {}}',
        '{"a": {"data_offsets": [0]}}',
        '{"a": {"data_offsets": [0, null]}}',
        "[" * 100_000,
    ],
)
def test_a_header_without_tensors_is_no_weights_file(header: str, step: Callable[[int], Path]) -> None:
    folder = step(1)
    (folder / SHARD).write_bytes(len(header).to_bytes(8, "little") + header.encode())
    (missing,) = steps.lacks(folder, 1, False, True)
    assert missing.endswith("(truncated)")


@pytest.mark.parametrize("named", [{"a": 5, "b": "x"}, {"a": None}])
def test_an_invalid_index_does_not_end_the_observation(named: Any, step: Callable[[int], Path]) -> None:
    folder = step(1)
    (folder / steps.CONSOLIDATED / steps.INDEX).write_text(json.dumps({"weight_map": named}))
    assert list(steps.lacks(folder, 1, False, True))


def test_every_truncation_of_a_weights_file_is_found(step: Callable[[int], Path], tmp_path: Path) -> None:
    data = (step(1) / SHARD).read_bytes()
    part = tmp_path / "part.safetensors"
    for length in {0, 1, 7, 8, 9, 50, len(data) // 2, len(data) - 1}:
        part.write_bytes(data[:length])
        assert not steps.whole(part), length
    part.write_bytes(data)
    assert steps.whole(part)


def test_a_missing_shard_that_the_index_names_is_found(step: Callable[[int], Path]) -> None:
    folder = step(1)
    index = folder / steps.CONSOLIDATED / steps.INDEX
    index.write_text(json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors", "b": "model-00002-of-00002.safetensors"}}))
    assert list(steps.lacks(folder, 1, False, True)) == ["consolidated/model-00002-of-00002.safetensors"]
    index.write_text("{")
    assert list(steps.lacks(folder, 1, False, True)) == [f"consolidated/{steps.INDEX} (not valid)"]


def test_unfinished_saves_are_no_steps(step: Callable[[int], Path]) -> None:
    folder = step(4).parent
    shutil.copytree(folder / "step_4", folder / "tmp_step_6")
    shutil.copytree(folder / "step_4", folder / "old_step_4")
    shutil.copytree(folder / "step_4", folder / "step_5")
    found = steps.find_steps(folder, False, False)
    assert [(one.step, one.missing) for one in found] == [(4, ()), (5, ("training_info.json (of another step)",))]
    assert steps.leftovers(folder) == ["old_step_4", "tmp_step_6"]


def test_a_kept_step_remains_after_the_release_deletes_its_own(step: Callable[[int], Path], tmp_path: Path) -> None:
    folder = step(2)
    (found,) = steps.find_steps(folder.parent, False, False)
    kept = tmp_path / "i1" / "step_2"
    kept.parent.mkdir()
    manifest = steps.keep(found, kept, tmp_path / "work", False)
    shutil.rmtree(folder)
    assert verify_manifest(kept) == manifest
    with pytest.raises(FileNotFoundError):
        steps.keep(found, tmp_path / "i1" / "other", tmp_path / "work", False)
    fresh = tmp_path / "fresh"
    (fresh / "step_9").mkdir(parents=True)
    steps.lay_down(kept, 2, fresh)
    assert [path.name for path in fresh.iterdir()] == ["step_2"], "the release must see only the pinned step"
    assert not (fresh / "step_2" / MANIFEST).exists()
    shutil.rmtree(fresh)
    assert verify_manifest(kept) == manifest, "changes to the release's copy must not affect the kept step"


def load(folder: Path) -> dict[str, Any]:
    """Return all tensors of a folder by name."""
    from safetensors.torch import load_file

    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def test_the_exported_model_has_the_start_models_names_types_and_files(
    step: Callable[[int], Path], tiny_model: Path, tmp_path: Path
) -> None:
    out = export.export(tiny_model, step(1), False, tmp_path / "work", tmp_path / "model")
    assert {path.name for path in out.iterdir()} == {path.name for path in tiny_model.iterdir()}
    start, trained = load(tiny_model), load(out)
    for name, tensor in start.items():
        assert trained[name].dtype == tensor.dtype
        assert (trained[name] - tensor).mean().item() == pytest.approx(1e-3, rel=0.01)


def test_weights_of_another_model_are_refused(step: Callable[[int], Path], tiny_model: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = step(1)
    tensors = load_file(folder / CONSOLIDATED)
    tensors["model.layers.9.input_layernorm.weight"] = tensors.pop("model.layers.1.input_layernorm.weight")
    save_file(tensors, folder / CONSOLIDATED)
    with pytest.raises(Permanent, match="differ in tensor"):
        export.export(tiny_model, folder, False, tmp_path / "work", tmp_path / "model")


@pytest.mark.slow
def test_an_adapter_is_merged_as_its_library_does(tiny_model: Path, tmp_path: Path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tiny_model), LoraConfig(r=4, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    weights = tmp_path / "step_1" / steps.WEIGHTS
    model.save_pretrained(weights)
    assert not list(steps._lacks_weights(weights, adapter=True))
    out = export.export(tiny_model, tmp_path / "step_1", True, tmp_path / "work", tmp_path / "model")
    expected = model.merge_and_unload().state_dict()
    found = load(out)
    assert set(found) == set(load(tiny_model))
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)
    settings = json.loads((weights / "adapter_config.json").read_text())
    (weights / "adapter_config.json").write_text(json.dumps(settings | {"use_dora": True}))
    with pytest.raises(Permanent, match="use_dora cannot be merged"):
        export.export(tiny_model, tmp_path / "step_1", True, tmp_path / "work", tmp_path / "model")


def test_a_run_that_resumes_after_its_last_step_only_publishes_its_model(
    step: Callable[[int], Path], workshop: Any, tmp_path: Path, tiny_model: Path
) -> None:
    run = tmp_path / "plan" / "a1"
    (run / "i1").mkdir(parents=True)
    (run / "i2").mkdir()
    shutil.copytree(tiny_model, run / "model")
    (found,) = steps.find_steps(step(3).parent, False, False)
    manifest = steps.keep(found, run / "i1" / "step_3", tmp_path / "work", False)
    resume = ResumePoint(attempt=1, incarnation=1, step=3, path="a1/i1/step_3", manifest=manifest)
    (run / "resume.json").write_bytes(stamped(resume))
    job = Job(run, workshop.plan(Method.GRPO, steps=3), 1, 2, 1, Events(run / "i2" / "events.jsonl", 2, 3))
    before = signal.getsignal(signal.SIGTERM)
    try:
        result = ReleaseRun(job, Asked()).result()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (result.outcome, result.step) == (Outcome.DONE, 3), result
    assert (run / "i2" / "model" / "model.safetensors").exists()
    assert verify_manifest(run / "i1" / "step_3") == manifest, "publishing must not change the checkpoint"
