"""Contract tests for every implementation of the port Artifacts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratchet.contracts.errors import Permanent
from ratchet.contracts.fakes import MemoryArtifacts
from ratchet.contracts.ids import digest
from ratchet.runtime.artifacts import FolderArtifacts


@pytest.fixture(params=["folder", "memory"])
def artifacts(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return FolderArtifacts(tmp_path / "artifacts") if request.param == "folder" else MemoryArtifacts()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(st.binary(max_size=300))
def test_content_is_returned_for_its_digest(artifacts: Any, data: bytes) -> None:
    assert artifacts.put(data) == digest(data) == artifacts.put(data)
    assert artifacts.get(digest(data)) == data


def test_name_is_bound_only_once(artifacts: Any) -> None:
    first, second = artifacts.put(b"first"), artifacts.put(b"second")
    assert artifacts.resolve("checkpoint/p/a1") is None
    assert artifacts.bind("checkpoint/p/a1", first) == first
    assert artifacts.bind("checkpoint/p/a1", second) == first
    assert artifacts.resolve("checkpoint/p/a1") == first
    assert artifacts.resolve("checkpoint/p/a") is None


def test_missing_content_is_an_error(artifacts: Any) -> None:
    with pytest.raises(Permanent):
        artifacts.get("0" * 64)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "a.json").write_text("{}")
    (tmp_path / "in" / "sub" / "b.bin").write_bytes(bytes(100))
    return tmp_path / "in"


@pytest.fixture
def store(tmp_path: Path) -> FolderArtifacts:
    return FolderArtifacts(tmp_path / "artifacts")


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_folder_is_fetched_completely_and_repeatedly(store: FolderArtifacts, folder: Path, tmp_path: Path) -> None:
    key = store.put_folder(folder)
    assert key == store.put_folder(folder)
    for _ in range(2):
        assert files(store.fetch(key, tmp_path / "out")) == files(folder)


def test_file_is_fetched(store: FolderArtifacts, folder: Path, tmp_path: Path) -> None:
    key = store.put_file(folder / "sub" / "b.bin")
    assert store.fetch(key, tmp_path / "b").read_bytes() == bytes(100)


def test_existing_different_content_is_not_overwritten(store: FolderArtifacts, folder: Path, tmp_path: Path) -> None:
    key = store.put_folder(folder)
    store.fetch(key, tmp_path / "out")
    (tmp_path / "out" / "a.json").write_text("mine")
    with pytest.raises(Permanent, match="already exists and its content differs"):
        store.fetch(key, tmp_path / "out")
    assert (tmp_path / "out" / "a.json").read_text() == "mine"


def test_corrupt_content_is_an_error(store: FolderArtifacts, tmp_path: Path) -> None:
    key = store.put(b"weights")
    stored = next(path for path in (tmp_path / "artifacts" / "sha256").rglob(key))
    stored.write_bytes(b"weight5")
    with pytest.raises(Permanent, match="corrupt"):
        store.get(key)
    with pytest.raises(Permanent, match="corrupt"):
        store.fetch(key, tmp_path / "out")


def test_manifest_cannot_write_outside_its_folder(store: FolderArtifacts, tmp_path: Path) -> None:
    key = store.put(b"evil")
    manifest = store.put(b'{"files":{"../escaped":"' + key.encode() + b'"}}')
    with pytest.raises(Permanent, match="outside"):
        store.fetch(manifest, tmp_path / "out")
    assert not (tmp_path / "escaped").exists()


def test_empty_folder_is_rejected(store: FolderArtifacts, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(Permanent):
        store.put_folder(tmp_path / "empty")


def test_links_are_stored_as_their_files_only_where_the_operator_names_the_folder(tmp_path: Path) -> None:
    """Hugging Face's cache keeps a model as a folder of links."""
    store = FolderArtifacts(tmp_path / "artifacts")
    blobs, snapshot, plain = (tmp_path / name for name in ("blobs", "snapshot", "plain"))
    for folder in (blobs, snapshot, plain):
        folder.mkdir()
    for folder, name in ((blobs, "0a1b"), (plain, "config.json")):
        (folder / name).write_text("{}")
    (snapshot / "config.json").symlink_to("../blobs/0a1b")
    with pytest.raises(Permanent, match="symbolic link"):
        store.put_folder(snapshot)
    assert store.put_folder(snapshot, follow_links=True) == store.put_folder(plain)
    (snapshot / "folder").symlink_to("../blobs")
    with pytest.raises(Permanent, match="symbolic link"):
        store.put_folder(snapshot, follow_links=True)
