"""Tests of the form in which a trained candidate is served."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.contracts.errors import Permanent
from ratchet.contracts.fakes import fake_model
from ratchet.contracts.ids import digest
from ratchet.contracts.jobs.training import Checkpoint
from ratchet.contracts.model import ModelRef, model_ref
from ratchet.contracts.steps import State
from ratchet.flows.engine.choice.adapters import served_form
from ratchet.flows.engine.context import LineContext
from ratchet.runtime.artifacts import FolderArtifacts
from tests.simulation.simulated_line import Scenario, SimulatedLine

START = fake_model("start")
MERGED = fake_model("merged")


@pytest.fixture
def context(tmp_path: Path) -> LineContext:
    """Return a line context whose artifacts are real."""
    sim = SimulatedLine(Scenario(seed=1))
    return replace(sim.context, artifacts=FolderArtifacts(tmp_path / "artifacts"), read_model=model_ref, scratch=tmp_path / "scratch")


def trained(context: LineContext, folder: Path, base: str = START.files, **files: str) -> Checkpoint:
    """Return a checkpoint whose adapter consists of `adapter_config.json`, `adapter_model.safetensors` and `files`."""
    folder.mkdir()
    written = {"adapter_config.json": '{"r": 2}', "adapter_model.safetensors": "x"} | {
        name.replace("__", "."): text for name, text in files.items()
    }
    for name, text in written.items():
        (folder / name).write_text(text)
    assert isinstance(context.artifacts, FolderArtifacts)
    adapter = model_ref(folder, context.artifacts.put_folder(folder), base)
    return Checkpoint(plan=digest("p"), attempt=1, incarnation=1, step=3, files=MERGED.files, model=MERGED, metrics={}, adapter=adapter)


def test_the_setting_selects_the_form(context: LineContext, tmp_path: Path) -> None:
    checkpoint = trained(context, tmp_path / "a")
    assert served_form(context, checkpoint, START, "merged") == MERGED
    served = served_form(context, checkpoint, START, "own server")
    assert checkpoint.adapter is not None
    assert (served.files, served.parent, served.base) == (checkpoint.adapter.files, START.files, START.files)
    assert served.whole == MERGED, "the next training starts from the whole model"
    assert served.alone == checkpoint.adapter
    assert served.id == checkpoint.adapter.id != MERGED.id


def test_a_run_without_an_adapter_is_served_as_the_whole_model(context: LineContext, tmp_path: Path) -> None:
    checkpoint = trained(context, tmp_path / "a").model_copy(update={"adapter": None})
    assert served_form(context, checkpoint, START, "own server") == MERGED


def test_an_adapter_of_another_base_is_refused(context: LineContext, tmp_path: Path) -> None:
    with pytest.raises(Permanent, match="its base is not the start model"):
        served_form(context, trained(context, tmp_path / "a", digest("another base")), START, "own server")


def test_an_adapter_with_other_digests_than_claimed_is_refused(context: LineContext, tmp_path: Path) -> None:
    checkpoint = trained(context, tmp_path / "a")
    assert checkpoint.adapter is not None
    forged = checkpoint.model_copy(update={"adapter": checkpoint.adapter.model_copy(update={"weights": digest("w")})})
    with pytest.raises(Permanent, match="does not match its job's claim"):
        served_form(context, forged, START, "own server")


@pytest.mark.parametrize("name", ["model__py", "chat_template__jinja", "tokenizer__json"])
def test_an_adapter_holds_no_other_files(context: LineContext, tmp_path: Path, name: str) -> None:
    with pytest.raises(Permanent, match="must consist of adapter_config"):
        served_form(context, trained(context, tmp_path / "a", **{name: "{}"}), START, "own server")


def test_an_adapter_names_no_code(context: LineContext, tmp_path: Path) -> None:
    with pytest.raises(Permanent, match="auto_map"):
        served_form(context, trained(context, tmp_path / "a", adapter_config__json='{"r": 2, "auto_map": {}}'), START, "own server")


def test_what_a_reference_without_a_merged_model_looks_like_does_not_change() -> None:
    assert "merged" not in START.model_dump()
    assert ModelRef.model_validate(START.model_dump(mode="json")) == START
    both = START.model_copy(update={"merged": MERGED})
    assert ModelRef.model_validate(both.model_dump(mode="json")) == both
    assert both.id == START.id


@pytest.mark.parametrize("parent", [None, digest("a golden set")])
def test_a_job_cannot_claim_a_base_for_the_whole_model(parent: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.contracts.fakes.jobs.fake_model", lambda name: fake_model(name).model_copy(update={"parent": parent}))
    sim = SimulatedLine(Scenario(seed=1, people="auto"))
    sim.context = replace(
        sim.context,
        read_model=lambda _path, files, base: fake_model("x").model_copy(update={"weights": files, "files": files, "parent": base}),
    )
    sim.live()
    assert (sim.view().state is State.FAILED) == (parent is not None), sim.view().reason
