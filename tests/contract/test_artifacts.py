"""Contract tests for every implementation of the port Artifacts."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.fakes import MemoryArtifacts
from ratchet.contracts.ids import digest
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.bucket import Bucket
from ratchet.runtime.bucket_artifacts import BucketArtifacts, fetch_folder
from tests.s3 import S3


@pytest.fixture(params=["folder", "memory", pytest.param("bucket", marks=pytest.mark.slow)])
def artifacts(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "bucket":
        return BucketArtifacts(Bucket(request.getfixturevalue("s3").settings), tmp_path / "artifacts")
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


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FolderArtifacts:
    if request.param == "bucket":
        return BucketArtifacts(Bucket(request.getfixturevalue("s3").settings), tmp_path / "artifacts")
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


def test_an_open_file_is_stored_only_if_it_is_what_was_promised(artifacts: Any) -> None:
    data = b"rows" * 1000
    for size, key in ((len(data), digest(b"others")), (len(data) - 1, digest(data))):
        assert not artifacts.take(io.BytesIO(data), size, key)
    assert artifacts.take(io.BytesIO(data), len(data), digest(data))
    assert artifacts.get(digest(data)) == data


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


@pytest.mark.slow
def test_a_lost_folder_is_filled_from_the_bucket(s3: S3, folder: Path, tmp_path: Path) -> None:
    first = BucketArtifacts(Bucket(s3.settings), tmp_path / "first")
    key, other = first.put_folder(folder), first.put(b"rows")
    first.bind("model", key)
    again = BucketArtifacts(Bucket(s3.settings), tmp_path / "again")
    assert again.resolve("model") == key
    assert dict(again.names()) == {"model": key}
    assert files(again.fetch(key, tmp_path / "out")) == files(folder)
    assert again.get(other) == b"rows"
    assert {digest for digest, _ in again.contents()} == {digest for digest, _ in first.contents()}
    assert again.bind("model", other) == key


@pytest.mark.slow
def test_erased_rows_leave_the_bucket_and_every_copy_reads_what_is_left(s3: S3, tmp_path: Path) -> None:
    first = BucketArtifacts(Bucket(s3.settings), tmp_path / "first")
    key = first.put(b"a person and others")
    new = first.replace(key, b"others", 1, 1)
    assert first.get(key) == b"others"
    again = BucketArtifacts(Bucket(s3.settings), tmp_path / "again")
    assert again.current(key) == new
    assert again.get(key) == b"others"
    stored = [
        s3.client.get_object(Bucket=s3.bucket, Key=one["Key"])["Body"].read()
        for one in s3.client.list_objects_v2(Bucket=s3.bucket)["Contents"]
    ]
    assert b"a person and others" not in stored


@pytest.mark.slow
def test_nothing_is_stored_while_the_bucket_is_away(s3: S3, tmp_path: Path) -> None:
    store = BucketArtifacts(Bucket(s3.settings), tmp_path / "artifacts")
    s3.stop()
    with pytest.raises(Retryable):
        store.put(b"model")
    s3.start()
    key = store.put(b"model")
    assert BucketArtifacts(Bucket(s3.settings), tmp_path / "other").get(key) == b"model", "the repeated call sends what the first one kept"


@pytest.mark.slow
def test_a_pod_fetches_a_folder_without_a_copy_of_the_artifacts(s3: S3, folder: Path, tmp_path: Path) -> None:
    bucket = Bucket(s3.settings)
    store = BucketArtifacts(bucket, tmp_path / "artifacts")
    key = store.put_folder(folder)
    assert fetch_folder(bucket, key, tmp_path / "model") == ["a.json", "sub/b.bin"]
    (tmp_path / "model" / "a.json").write_text("damaged")
    fetch_folder(bucket, key, tmp_path / "model")
    assert files(tmp_path / "model") == files(folder)
    part = digest(bytes(100))
    bucket.put(f"sha256/{part[:2]}/{part}", bytes(99))
    (tmp_path / "model" / "sub" / "b.bin").unlink()
    with pytest.raises(Permanent, match="another digest"):
        fetch_folder(bucket, key, tmp_path / "model")
    for wrong in (digest(b"absent"), store.put(b"no folder"), store.put(b'{"files":{"../x":"' + part.encode() + b'"}}')):
        with pytest.raises(Permanent):
            fetch_folder(bucket, wrong, tmp_path / "other")
