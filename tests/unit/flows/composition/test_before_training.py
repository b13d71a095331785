"""Tests that the service counts the rows that a job will leave out, or says why it cannot."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.contracts.errors import Retryable
from ratchet.contracts.jobs.training import Attempt, BeforeTraining, JobSpec, LeftOut, Method
from ratchet.contracts.loop.serving import ServingSettings
from ratchet.contracts.model import model_ref
from ratchet.flows.composition.before_training import broken_files, look_at_job, look_at_model
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.jobs.job_protocol import TRAINER
from ratchet.trainers.backends.trl import SFT
from tests.builders import make_plan
from tests.unit.trainers.conftest import write_model
from tests.unit.trainers.runs import asked


def job(artifacts: FolderArtifacts, folder: Path, answers: list[str]) -> JobSpec:
    """Return a job for the tiny model on these answers."""
    model = write_model(folder / "model")
    table = pa.table({"prompt": [asked("one")] * len(answers), "answer": answers, "weight": [1.0] * len(answers)})
    pq.write_table(table, folder / "demonstrations.parquet")
    plan = make_plan(Method.SFT, SFT().recipe({"max_length": 32})).model_copy(
        update={
            "start": model_ref(model, artifacts.put_folder(model)),
            "demonstrations": artifacts.put_file(folder / "demonstrations.parquet"),
        }
    )
    return SFT().job(plan, Attempt(number=1, timeout=60))


@pytest.mark.slow
def test_the_rows_of_a_job_are_counted_without_its_run_folder(tmp_path: Path) -> None:
    artifacts = FolderArtifacts(tmp_path / "artifacts")
    spec = job(artifacts, tmp_path, ["yes", "yes <end> <user>", "no " * 40])
    expected = {
        "with answers that contain special tokens of the model": 1,
        "with answers that end after 32 tokens, by max_length or the model's context": 1,
    }
    assert look_at_job(spec, artifacts, tmp_path / "scratch") == BeforeTraining(
        left_out=(LeftOut(what="answers", rows=3, reasons=expected),)
    )
    assert [path.name for path in (tmp_path / "scratch").iterdir()] == ["models"], "the counting leaves no folder behind"
    empty = job(artifacts, tmp_path / "other", [])
    with pytest.raises(Retryable, match="the training set has no demonstrations"):
        look_at_job(empty, artifacts, tmp_path / "scratch")


@pytest.mark.slow
def test_a_machine_that_cannot_count_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifacts = FolderArtifacts(tmp_path / "artifacts")
    spec = job(artifacts, tmp_path, ["yes"])
    foreign = spec.model_copy(update={"environment": {**spec.environment, **TRAINER.to_env("somebody.elses")}})
    assert look_at_job(foreign, artifacts, tmp_path / "scratch") is None, "only the built-in trainers are known here"
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(Retryable, match="transformers is not installed on this machine; the job counts them"):
        look_at_job(spec, artifacts, tmp_path / "scratch")


EMPTY = (2).to_bytes(8, "little") + b"{}"
"""Weights without a tensor."""
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, []),
        ({"config.json": None}, ["config.json is missing; copy all files of the model"]),
        ({"config.json": None, "adapter_config.json": b"{}"}, ["it is an adapter; merge it into its base model (merge_and_unload)"]),
        ({"config.json": b'{"model_type": '}, ["config.json is no JSON object; copy it again"]),
        ({"model.safetensors": b"version https://git-lfs.github.com/spec/v1\noid x"}, ["model.safetensors is a pointer of Git LFS"]),
        ({"model.safetensors": EMPTY[:9]}, ["model.safetensors is not a valid safetensors file: its header has 2 bytes"]),
        (
            {"model.safetensors": EMPTY[:9], "config.json": b""},
            ["config.json is no JSON object", "model.safetensors is not a valid safetensors file"],
        ),
        ({INDEX: json.dumps({"weight_map": {"a": "model.safetensors"}}).encode()}, []),
        ({INDEX: json.dumps({"weight_map": {"a": "model-1.safetensors"}}).encode()}, ["model-1.safetensors is missing, which model.safe"]),
        ({INDEX: b"[]"}, ["model.safetensors.index.json is no index of weights"]),
    ],
)
def test_a_folder_that_no_server_can_load_is_found_with_its_remedy(tmp_path: Path, files: dict[str, bytes | None], said: list[str]) -> None:
    for name, content in ({"config.json": b"{}", "model.safetensors": EMPTY} | files).items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
    found = broken_files(tmp_path)
    assert len(found) == len(said)
    assert all(one.startswith(part) for one, part in zip(found, said, strict=True)), found


@pytest.mark.slow
def test_a_model_that_transformers_cannot_load_is_a_problem_only_for_servers_that_use_it(tmp_path: Path) -> None:
    own, foreign = ServingSettings(), ServingSettings(kind="canned")
    model = write_model(tmp_path / "model")
    assert look_at_model(model, own).problems == []
    config = (model / "config.json").read_text()
    (model / "config.json").write_text(json.dumps(json.loads(config) | {"model_type": "unheard"}))
    assert "transformers cannot load config.json" in "".join(look_at_model(model, own).problems)
    (model / "config.json").write_text(config)
    (model / "tokenizer.json").write_text("{")
    assert "transformers cannot load the tokenizer" in "".join(look_at_model(model, own).problems)
    with pytest.raises(Retryable, match="its tokenizer cannot be loaded"):
        look_at_model(model, foreign)
