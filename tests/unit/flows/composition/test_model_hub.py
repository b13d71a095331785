"""Tests of models by name, against a hub on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.contracts.errors import ConfigError, Permanent, Retryable
from ratchet.flows.composition.model_hub import HubModel, download, hub_name, look_up
from tests.hub import COMMIT, Hub, hub_of

FILES = {
    "model.safetensors": b"\0" * 5000,
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"x",
    "LICENSE": b"Apache License",
    "modeling.py": b"import os",
    "pytorch_model.bin": b"pickle",
    "onnx/model.onnx": b"onnx",
    "original/model.safetensors": b"copy",
    "../outside.json": b"{}",
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    (tmp_path / "none").mkdir()
    with hub_of(tmp_path / "none") as made:
        made.files = dict(FILES)
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # the library reads it once, at import
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield made


def found() -> HubModel:
    return look_up(hub_name("hub:org/tiny@main"))


def quiet(_what: str, _done: int, _total: int) -> None:
    """Report nothing."""


@pytest.mark.parametrize("text", ["hub:tiny@main", "hub:org/tiny/x@main", "hub:@main", "org/tiny@main", "hub:org/tiny@"])
def test_another_form_of_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not of the form hub:ORGANIZATION/MODEL@REVISION"):
        hub_name(text)


def test_a_name_without_a_revision_is_refused() -> None:
    with pytest.raises(ConfigError, match="names no revision, and the model behind a name can change"):
        hub_name("hub:org/tiny")


def test_the_revision_is_pinned_and_only_files_of_a_model_are_taken(hub: Hub) -> None:
    model = found()
    assert (model.commit, model.licence) == (COMMIT, "apache-2.0")
    assert [one.name for one in model.files] == ["LICENSE", "chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    assert set(model.left_out) == {"modeling.py", "pytorch_model.bin", "onnx/model.onnx", "original/model.safetensors", "../outside.json"}
    assert model.size == sum(len(FILES[one.name]) for one in model.files)


def test_every_file_is_downloaded_and_verified(hub: Hub, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    folder = download(found(), tmp_path / "model", lambda *one: told.append(one))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {one.name: FILES[one.name] for one in found().files}
    assert told[-1][1:] == (found().size, found().size)
    assert not (tmp_path / "outside.json").exists()


def test_an_interrupted_download_goes_on_with_the_files_that_are_missing(hub: Hub, tmp_path: Path) -> None:
    download(found(), tmp_path / "model", quiet)
    (tmp_path / "model" / "tokenizer.json").unlink()
    (tmp_path / "model" / "config.json").write_bytes(b"[]")
    hub.sent.clear()
    download(found(), tmp_path / "model", quiet)
    assert sorted(hub.sent) == ["config.json", "tokenizer.json"]


def test_a_file_with_another_digest_is_refused_and_not_kept(hub: Hub, tmp_path: Path) -> None:
    hub.stated["model.safetensors"] = "ab" * 32
    with pytest.raises(Permanent, match=r"model\.safetensors: the downloaded file has not the digest"):
        download(found(), tmp_path / "model", quiet)
    assert not (tmp_path / "model" / "model.safetensors").exists()


def test_a_model_without_safetensors_is_refused(hub: Hub) -> None:
    hub.files = {"pytorch_model.bin": b"pickle", "config.json": b"{}"}
    with pytest.raises(Permanent, match=r"has no \*\.safetensors weights at main"):
        found()


@pytest.mark.parametrize(("name", "problem"), [("org/other@main", "org/other does not exist"), ("org/tiny@v9", "has no revision v9")])
def test_a_model_or_revision_that_does_not_exist_is_named(hub: Hub, name: str, problem: str) -> None:
    with pytest.raises(Permanent, match=problem):
        look_up(hub_name(f"hub:{name}"))


def test_a_gated_model_needs_a_token_whose_value_is_never_shown(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token, hub.gated = "secret-value", "manual"
    with pytest.raises(Permanent, match="the owner asks for consent to terms") as refused:
        found()
    assert "secret-value" not in str(refused.value)
    monkeypatch.setenv("TEAM_TOKEN", "secret-value")
    model = look_up(hub_name("hub:org/tiny@main"), "TEAM_TOKEN")
    assert model.gated == "manual"
    assert "secret-value" not in repr(model)


def test_no_token_of_the_user_is_sent_unless_it_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.utils._headers.get_token", lambda: "from the login of the user")
    found()
    assert hub.seen_tokens == {""}


def test_a_hub_that_does_not_answer_is_tried_again_later(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Retryable, match="the hub does not answer for org/tiny at main"):
        found()


def test_without_a_network_the_reason_is_told(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        found()


def test_a_file_that_is_longer_than_stated_is_not_read_to_its_end(hub: Hub, tmp_path: Path) -> None:
    hub.lengths["model.safetensors"] = 100
    with pytest.raises(Permanent, match=r"model\.safetensors (is longer than the 100 bytes|: the downloaded file)"):
        download(found(), tmp_path / "model", quiet)
    assert not (tmp_path / "model" / "model.safetensors").exists()


@pytest.mark.parametrize("name", ["../x.json", "/etc/x.json", ".cache/x.json", "a\x1b[2Jb.json", "line\nbreak.json", "x" * 300 + ".json"])
def test_names_that_are_no_plain_paths_are_left_out(hub: Hub, name: str) -> None:
    hub.files[name] = b"{}"
    assert name not in [one.name for one in found().files]


def test_texts_of_the_hub_are_one_plain_line(hub: Hub) -> None:
    hub.card = {"license": "mit\nFAKE: licence accepted\x1b[2J", "license_link": "https://x\r\ny"}
    model = found()
    assert model.licence == "mit FAKE: licence accepted [2J"
    assert model.link == "https://x  y"


@pytest.mark.parametrize("change", [{"siblings": "x"}, {"sha": 5}, {"siblings": [{"rfilename": 5}]}, {"cardData": [1]}])
def test_an_answer_that_is_none_of_a_hub_is_told(hub: Hub, change: dict[str, object]) -> None:
    hub.changes = change
    with pytest.raises((Permanent, Retryable)):
        found()
