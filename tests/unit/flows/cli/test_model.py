"""Tests of `ratchet model fetch`: the copy is the version's model, or there is no copy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratchet.contracts.errors import ConfigError, Permanent
from ratchet.contracts.model import ModelRef, model_ref
from ratchet.contracts.serving import ModelVersion
from ratchet.flows.cli.main import cli
from ratchet.flows.report.version_diff import Made
from ratchet.runtime.artifacts import FolderArtifacts
from tests.markers import install


@pytest.fixture
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderArtifacts:
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "home"))
    return FolderArtifacts(tmp_path / "home" / "artifacts")


def stored(artifacts: FolderArtifacts, folder: Path, weights: bytes, parent: ModelRef | None = None) -> ModelRef:
    """Store a small model, as an adapter if it has a parent."""
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_text("{}")
    return model_ref(folder, artifacts.put_folder(folder), parent.files if parent else None)


def named(monkeypatch: pytest.MonkeyPatch, model: ModelRef) -> None:
    """Let every name mean a version with this model."""
    version = ModelVersion(line="shop", number=3, tag="v-123", model=model, cycle="cycle/shop/0003")
    monkeypatch.setattr("ratchet.flows.cli.look.model.named_version", lambda *_: Made(version, None))


def test_the_copy_is_the_model_and_a_second_one_needs_a_new_folder(
    tmp_path: Path, artifacts: FolderArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    named(monkeypatch, stored(artifacts, tmp_path / "m", b"weights"))
    result = CliRunner().invoke(cli, ["model", "fetch", "shop/champion", str(tmp_path / "copy"), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["version"] == "v-123"
    assert {file.name: file.read_bytes() for file in (tmp_path / "copy").iterdir()} == {
        "model.safetensors": b"weights",
        "config.json": b"{}",
    }
    again = CliRunner().invoke(cli, ["model", "fetch", "shop/champion", str(tmp_path / "copy")])
    assert isinstance(again.exception, ConfigError)


def test_an_adapter_comes_with_its_base(tmp_path: Path, artifacts: FolderArtifacts, monkeypatch: pytest.MonkeyPatch) -> None:
    base = stored(artifacts, tmp_path / "b", b"base")
    named(monkeypatch, stored(artifacts, tmp_path / "a", b"adapter", base))
    assert CliRunner().invoke(cli, ["model", "fetch", "shop/3", str(tmp_path / "copy")]).exit_code == 0
    assert (tmp_path / "copy" / "model.safetensors").read_bytes() == b"adapter"
    assert (tmp_path / "copy" / "base" / "model.safetensors").read_bytes() == b"base"


def test_an_adapter_that_the_line_trained_is_copied_in_either_form(
    tmp_path: Path, artifacts: FolderArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, whole = stored(artifacts, tmp_path / "b", b"base"), stored(artifacts, tmp_path / "w", b"whole")
    named(monkeypatch, stored(artifacts, tmp_path / "a", b"adapter", base).model_copy(update={"merged": whole}))
    for folder, *options in (("copy",), ("one", "--merged")):
        result = CliRunner().invoke(cli, ["model", "fetch", "shop/3", str(tmp_path / folder), *options, "--json"])
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["adapter"] == (not options)
    assert (tmp_path / "copy" / "model.safetensors").read_bytes() == b"adapter"
    assert (tmp_path / "copy" / "base" / "model.safetensors").read_bytes() == b"base"
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == b"whole"
    assert not (tmp_path / "one" / "base").exists()


@pytest.mark.parametrize("how", ["damaged", "another model"])
def test_a_model_that_is_not_the_one_of_the_ledger_is_not_copied(
    how: str, tmp_path: Path, artifacts: FolderArtifacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = stored(artifacts, tmp_path / "m", b"weights")
    if how == "damaged":
        path = next(path for key, path in artifacts.contents() if path.read_bytes() == b"weights")
        path.chmod(0o600)
        path.write_bytes(b"WEIGHTS")
    else:
        model = model.model_copy(update={"weights": "0" * 64})
    named(monkeypatch, model)
    result = CliRunner().invoke(cli, ["model", "fetch", "shop/3", str(tmp_path / "copy")])
    assert isinstance(result.exception, Permanent)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "m"], "nothing is left behind"


def test_the_card_of_the_adopted_model_is_printed_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, 0)
    monkeypatch.setenv("RATCHET_HOME", str(tmp_path / "home"))
    printed = CliRunner().invoke(cli, ["model", "card", "shop"])
    assert printed.exit_code == 0, printed.output
    assert printed.stdout.startswith("# shop, version 0 (v")
    assert "licence unknown" in printed.stdout
    written = CliRunner().invoke(cli, ["model", "card", "shop", "0", "--out", str(tmp_path / "card.md"), "--json"])
    assert json.loads(written.stdout)["card"] == (tmp_path / "card.md").read_text() == printed.stdout
    unknown = CliRunner().invoke(cli, ["model", "card", "shop", "7"])
    assert isinstance(unknown.exception, ConfigError)
