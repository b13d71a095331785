"""Tests of the bucket client with a local S3 server."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.ids import digest, digest_file
from ratchet.contracts.jobs.cluster import BucketSettings
from ratchet.runtime.bucket import Bucket
from tests.s3 import S3


@pytest.fixture
def bucket(s3: S3) -> Bucket:
    """Return a client of the test's bucket."""
    return Bucket(s3.settings)


@pytest.mark.slow
def test_objects_are_written_read_and_deleted(bucket: Bucket) -> None:
    assert bucket.get("a") is None
    bucket.put("a", b"1")
    assert bucket.get("a") == b"1"
    bucket.put("a", b"2")
    assert bucket.get("a") == b"2"
    bucket.delete("a")
    bucket.delete("a")
    assert bucket.get("a") is None


@pytest.mark.slow
def test_an_existing_key_is_not_replaced(bucket: Bucket) -> None:
    bucket.put_new("name", b"first")
    bucket.put_new("name", b"second")
    assert bucket.get("name") == b"first"


@pytest.mark.slow
def test_a_listing_has_all_keys_with_the_prefix_and_no_others(bucket: Bucket) -> None:
    for number in range(1100):  # more than one page
        bucket.put(f"run/i1/{number:04}", b"")
    bucket.put("run2/i1/0", b"")
    found = bucket.list("run/i1/")
    assert sorted(found) == [f"{number:04}" for number in range(1100)]
    bucket.put("run/i1/0000", b"other")
    assert (again := bucket.list("run/i1/")["0000"]).tag != found["0000"].tag
    assert again.size == 5


@pytest.mark.slow
def test_a_file_is_transferred_completely_and_has_its_digest(bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789" * 2_000_000)  # large enough for a multipart upload
    bucket.send(path, "file", digest_file(path))
    assert bucket.digest("file") == digest_file(path)
    assert bucket.fetch("file", tmp_path / "there" / "file", digest_file(path))
    assert (tmp_path / "there" / "file").read_bytes() == path.read_bytes()
    assert bucket.digest("other") is None
    assert not bucket.fetch("other", tmp_path / "there" / "other")
    assert [one.name for one in (tmp_path / "there").iterdir()] == ["file"], "no incomplete file may remain"


def test_a_file_with_another_digest_is_neither_uploaded_nor_downloaded(bucket: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("content")
    with pytest.raises(Permanent, match="does not match its manifest"):
        bucket.send(path, "file", digest(b"other"))
    assert bucket.get("file") is None
    bucket.put("file", b"changed")
    with pytest.raises(Permanent, match="another digest"):
        bucket.fetch("file", tmp_path / "there", digest(b"content"))
    assert not (tmp_path / "there").exists()


@pytest.mark.slow
def test_an_unreachable_server_is_retryable(s3: S3, bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("a", b"1")
    s3.stop()
    path = tmp_path / "file"
    path.write_text("content")
    for ask in (
        lambda: bucket.get("a"),
        lambda: bucket.put("a", b"2"),
        lambda: bucket.put_new("b", b"2"),
        lambda: bucket.list(""),
        lambda: bucket.digest("a"),
        lambda: bucket.send(path, "c", digest_file(path)),
        lambda: bucket.fetch("a", tmp_path / "there"),
        lambda: bucket.delete("a"),
    ):
        with pytest.raises(Retryable, match=rf"cannot \w+( at)? s3://{s3.bucket}/some/where/"):
            ask()
    s3.start()
    assert bucket.get("a") == b"1"


def test_a_missing_bucket_is_named(s3: S3) -> None:
    absent = Bucket(s3.settings.model_copy(update={"url": "s3://no-such-bucket"}))
    with pytest.raises(Retryable, match=r"cannot list s3://no-such-bucket/.*NoSuchBucket"):
        absent.list("")


@pytest.mark.parametrize(("endpoint", "port"), [(None, 443), ("http://minio", 80), ("https://minio", 443), ("http://10.0.0.1:9000", 9000)])
def test_the_port_follows_from_the_endpoint(endpoint: str | None, port: int) -> None:
    assert BucketSettings(url="s3://abc", endpoint=endpoint).port == port


def keep_versions(s3: S3) -> None:
    s3.client.put_bucket_versioning(Bucket=s3.bucket, VersioningConfiguration={"Status": "Enabled"})


def versions(bucket: Bucket, under: str = "") -> int:
    """Return the number of versions with content."""
    return sum(not one.is_mark for one in bucket.versions(under))


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False])
def test_former_versions_go_and_current_objects_stay(s3: S3, bucket: Bucket, kept: bool) -> None:
    bucket.put("a/before", b"0")
    if kept:
        keep_versions(s3)
    for content in (b"1", b"22", b"333"):
        for key in ("a/gone", "a/here", "a/other", "ab"):
            bucket.put(key, content)
    bucket.delete_each(["a/gone", "a/before", "a/never"])
    gone = bucket.delete_former("a/", lambda key: key != "other")
    assert gone == ((6, len("0122333122"), "") if kept else (0, 0, ""))
    assert (bucket.get("a/gone"), bucket.get("a/before"), bucket.get("a/here")) == (None, None, b"333")
    assert versions(bucket) == (1 + 3 + 3 if kept else 3)
    assert bucket.delete_former("a/", lambda key: key != "other").files == 0


@pytest.mark.slow
def test_an_interruption_never_makes_a_former_version_the_current_one(s3: S3, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_versions(s3)
    for content, key in itertools.product((b"1", b"2"), ("x", "y")):
        bucket.put(key, content)
    delete, left = Bucket.delete, [0]

    def until_it_fails(self: Bucket, key: str, version: str | None = None) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Retryable("the process ends")
        delete(self, key, version)

    monkeypatch.setattr(Bucket, "delete", until_it_fails)
    for requests in itertools.count():
        left[0] = requests
        try:
            bucket.delete_each(["x", "y"])
            bucket.delete_former("", lambda _: True)
        except Retryable:
            assert requests < 3 or bucket.get("x") is bucket.get("y") is None
            continue
        break
    assert requests >= 2
    assert not list(bucket.versions(""))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "left"), [("AccessDenied", "grant s3:ListBucketVersions and s3:DeleteObjectVersion"), ("NotImplemented", "")]
)
def test_what_a_store_refuses_is_told(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, code: str, left: str) -> None:
    def refuse(_: str) -> None:
        raise ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 403}}, "ListObjectVersions")  # type: ignore[typeddict-item]

    bucket.put("a", b"1")
    monkeypatch.setattr(bucket.client, "get_paginator", refuse)
    gone = bucket.delete_former("", lambda _: True)
    assert (gone.files, left in gone.left, bool(gone.left)) == (0, True, bool(left))


@pytest.mark.slow
def test_folders_are_those_directly_below(bucket: Bucket) -> None:
    for key in ("jobs/one/a1/x", "jobs/two/y", "jobs/record", "jobs2/three/z"):
        bucket.put(key, b"")
    assert sorted(bucket.folders("jobs/")) == ["one", "two"]
