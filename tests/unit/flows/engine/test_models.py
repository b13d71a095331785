"""Tests that a model is only what the operator has given: adopted without foreign files, and trained without other files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.contracts.errors import Permanent
from ratchet.contracts.ids import digest
from ratchet.contracts.steps import State
from ratchet.flows.engine.line import adopt
from tests.simulation.simulated_line import Scenario, SimulatedLine


def _model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"x")
    return folder


@pytest.mark.parametrize("kind", ["absolute", "relative"])
def test_a_link_out_of_the_model_folder_is_not_adopted(tmp_path: Path, kind: str) -> None:
    folder, secret = _model(tmp_path / "model"), tmp_path / "secret.json"
    secret.write_text("token")
    (folder / "extra.json").symlink_to(secret if kind == "absolute" else "../secret.json")
    sim = SimulatedLine(Scenario(seed=1))
    with pytest.raises(Permanent, match=r"extra\.json is a link to .*secret\.json, which is outside"):
        adopt(sim.context, folder, "ada")
    assert b"token" not in repr(vars(sim.world.artifacts)).encode(), "nothing may be stored"


def test_links_inside_the_folder_and_into_its_hub_cache_are_adopted(tmp_path: Path) -> None:
    cache = tmp_path / "models--org--name"
    folder = _model(cache / "snapshots" / "0a1b")
    (cache / "blobs").mkdir()
    (cache / "blobs" / "ff").write_text("{}")
    (folder / "tokenizer.json").symlink_to("../../blobs/ff")
    (folder / "same.json").symlink_to("config.json")
    sim = SimulatedLine(Scenario(seed=1))
    with pytest.raises(Permanent, match="has already adopted"):  # the simulated line has a model; the folder itself was accepted
        adopt(sim.context, folder, "ada")
    for target, problem in (("../../refs", "is outside"), ("../../blobs/missing", "does not exist")):
        (folder / "other.json").unlink(missing_ok=True)
        (folder / "other.json").symlink_to(target)
        with pytest.raises(Permanent, match=problem):
            adopt(sim.context, folder, "ada")


def test_a_job_that_changes_other_files_than_the_weights_fails_its_cycle() -> None:
    sim = SimulatedLine(Scenario(seed=1, people="auto"))
    read = sim.context.read_model

    def changed(path: Path, files: str, parent: str | None) -> object:
        found = read(path, files, parent)
        return found.model_copy(update={"others": digest("another template")}) if found.weights != digest("base") else found

    sim.context = replace(sim.context, read_model=changed)  # type: ignore[arg-type]
    sim.live()
    view = sim.view()
    assert view.state is State.FAILED
    assert "changes files of the start model that hold no weights" in view.reason
