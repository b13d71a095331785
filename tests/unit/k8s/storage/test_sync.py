"""Tests of the service's side of a bucket: which files it uploads, downloads and accepts."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.ids import canonical, checkpoint_name, digest
from ratchet.contracts.schema import stamped
from ratchet.k8s.storage import sync
from ratchet.runtime.jobs.job_protocol import plan_folder
from ratchet.runtime.jobs.run_folder import newest_sign
from tests.s3 import S3
from tests.unit.k8s.shared import PLAN, Shared, save

pytestmark = pytest.mark.slow  # an S3 server


@pytest.fixture
def shared(s3: S3, tmp_path: Path) -> Shared:
    """Return a service and pods that share only a bucket."""
    return Shared(s3, tmp_path)


def sent(shared: Shared, step: int = 10) -> str:
    """Save a step and upload it as a pod does. Return the digest of its manifest."""
    pod = shared.leaving()
    manifest = save(pod.place.run, step, weights=b"w", optimizer=b"o")
    pod.bulk()
    pod.upload_small_files()
    return manifest


def test_inputs_in_the_bucket_are_not_uploaded_again(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    shared.remote.lay_out(shared.spec)
    monkeypatch.setattr(shared.bucket, "send", lambda *_: pytest.fail("the input is in the bucket already"))
    shared.remote.lay_out(shared.spec)


def test_a_missing_input_is_named(shared: Shared) -> None:
    shared.artifacts.path(shared.spec.inputs["pairs.parquet"]).unlink()
    with pytest.raises(Permanent, match=r"is not in .*artifacts; restore"):
        shared.remote.lay_out(shared.spec)


def test_small_files_are_downloaded_with_their_times_and_again_when_they_change(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    key = shared.key("i1/beat-0")
    shared.bucket.put(key, b"1")
    shared.remote.pull(shared.run)
    path = shared.run / "i1" / "beat-0"
    assert path.read_bytes() == b"1"
    assert newest_sign(path.parent, 1, time.time()) == shared.bucket.list(key)[""].modified.timestamp()
    shared.bucket.put(key, b"2")
    shared.remote.pull(shared.run)
    assert path.read_bytes() == b"1", "at most one download every two seconds"
    shared.remote.pull(shared.run, fresh=True)
    assert path.read_bytes() == b"2"
    monkeypatch.setattr(sync, "POLL_SECONDS", 0.0)
    asked: list[str] = []
    get = shared.bucket.get
    monkeypatch.setattr(shared.bucket, "get", lambda key: (asked.append(key), get(key))[1])
    shared.remote.pull(shared.run)
    assert asked == [], "unchanged files must not be read again"
    path.write_bytes(b"an older one")  # written by another process of the service
    shared.remote.pull(shared.run)
    assert path.read_bytes() == b"2"


def test_a_lost_run_folder_counts_as_complete_only_after_its_download(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        shared.bucket.put(shared.key(f"i{number}/events.jsonl"), b"%d" % number)
    shutil.rmtree(shared.run)
    get = shared.bucket.get

    def fail(key: str) -> bytes | None:
        if "/i2/" in key:
            raise Retryable("the bucket does not answer")
        return get(key)

    monkeypatch.setattr(shared.bucket, "get", fail)
    with pytest.raises(Retryable):
        shared.remote.restore(shared.spec)
    assert (shared.run / "i1" / "events.jsonl").exists()
    monkeypatch.setattr(shared.bucket, "get", get)
    with pytest.raises(Retryable, match="does not answer"):
        shared.remote.restore(shared.spec)  # asks again after some seconds
    shared.again().restore(shared.spec)
    assert (shared.run / "i2" / "events.jsonl").read_bytes() == b"2"
    shared.bucket.put(shared.key("i1/events.jsonl"), b"new")
    shared.remote.restore(shared.spec)
    assert (shared.run / "i1" / "events.jsonl").read_bytes() == b"1", "a folder that is there is downloaded by `pull` only"


@pytest.mark.parametrize(
    "name",
    [
        "i1/../../../evil.log",
        "i1/step_1/weights",
        "i1/sub/x.log",
        "i1/.hidden.log",
        "i1/process.json",
        "ix/events.jsonl",
        "i1/events.jsonl/x",
    ],
)
def test_other_keys_are_not_downloaded(shared: Shared, name: str) -> None:
    shared.bucket.client.put_object(Bucket=shared.s3.bucket, Key=f"some/where/{shared.key('i1')[:-2]}{name}", Body=b"evil")
    before = {path for path in shared.folder.rglob("*") if path.is_file()}
    shared.remote.pull(shared.run, fresh=True)
    assert {path for path in shared.folder.rglob("*") if path.is_file()} == before


def test_a_step_is_pinned_on_disk_and_in_the_bucket(shared: Shared) -> None:
    point = shared.point(10, sent(shared))
    shared.remote.pin(shared.spec, point)
    assert shared.remote.folders.pinned(shared.spec) == point
    assert shared.bucket.get(shared.key("resume.json")) == stamped(point)


@pytest.mark.parametrize(
    "fault", ["no manifest", "another manifest", "an invalid manifest", "a missing file", "a changed file", "an extra file"]
)
def test_a_step_that_differs_from_the_accepted_one_is_not_pinned(shared: Shared, fault: str) -> None:
    point, step = shared.point(10, sent(shared)), shared.key("i1/step_10")
    match fault:
        case "no manifest":
            shared.bucket.delete(f"{step}/manifest.json")
        case "another manifest":
            shared.bucket.put(f"{step}/manifest.json", canonical({"files": {"weights": digest(b"w")}}))
        case "an invalid manifest":
            shared.bucket.put(f"{step}/manifest.json", b"[]")
            point = point.model_copy(update={"manifest": digest(b"[]")})
        case "a missing file":
            shared.bucket.delete(f"{step}/optimizer")
        case "a changed file":
            shared.bucket.put(f"{step}/weights", b"other")
        case _:
            shared.bucket.put(f"{step}/more", b"more")
    with pytest.raises(Permanent, match="use an earlier checkpoint"):
        shared.remote.pin(shared.spec, point)
    assert shared.remote.folders.pinned(shared.spec) is None
    assert not shared.there("resume.json")


def test_an_unreachable_bucket_is_retryable(s3: S3, shared: Shared) -> None:
    point = shared.point(10, sent(shared))
    s3.stop()
    for ask in (
        lambda: shared.remote.pin(shared.spec, point),
        lambda: shared.remote.pull(shared.run, fresh=True),
        lambda: shared.remote.lay_out(shared.spec),
        lambda: shared.remote.publish(shared.spec, 1),
    ):
        with pytest.raises(Retryable):
            ask()
    s3.start()
    shared.remote.pin(shared.spec, point)


def test_an_unreachable_bucket_is_not_asked_at_each_observation(s3: S3, shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed request may take many seconds, in which no other gang is observed."""
    s3.stop()
    asked: list[str] = []
    ask = shared.bucket.list
    monkeypatch.setattr(shared.bucket, "list", lambda under: (asked.append(under), ask(under))[1])
    for _ in range(5):
        with pytest.raises(Retryable, match="cannot list"):
            shared.remote.pull(shared.run)
    assert len(asked) == 1
    s3.start()
    monkeypatch.setattr(sync, "AWAY_SECONDS", 0.0)
    shared.remote.pull(shared.run)
    assert len(asked) == 2


def published(shared: Shared, incarnation: int = 1) -> str:
    """Publish a checkpoint as a pod does. Return the digest of its only file."""
    pod = shared.leaving(incarnation)
    made = pod.place.run / "made"
    made.mkdir()
    (made / "model.safetensors").write_bytes(b"trained")
    files = pod.place.artifacts.put_folder(made)
    pod.place.artifacts.bind(checkpoint_name(PLAN, 1, incarnation), pod.place.artifacts.put(canonical({"files": files})))
    pod.bulk()
    return digest(b"trained")


def test_a_published_checkpoint_is_downloaded_once(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    part = published(shared)
    shared.remote.publish(shared.spec, 1)
    assert shared.artifacts.get(part) == b"trained"
    monkeypatch.setattr(shared.bucket, "get", lambda _: pytest.fail("the checkpoint is downloaded already"))
    shared.remote.publish(shared.spec, 1)


def test_changed_bytes_of_a_published_checkpoint_are_refused(shared: Shared) -> None:
    part = published(shared)
    shared.bucket.put(shared.remote.key(shared.artifacts.path(part)), b"changed")
    with pytest.raises(Permanent, match="another digest"):
        shared.remote.publish(shared.spec, 1)
    assert shared.artifacts.resolve(checkpoint_name(PLAN, 1, 1)) is None


@pytest.mark.parametrize(
    "word", [b"", b"{}", b'{"digest": 1}', b'{"digest": "../../../etc/passwd"}', json.dumps({"digest": "a" * 63}).encode()]
)
def test_an_invalid_name_record_binds_nothing(shared: Shared, word: bytes) -> None:
    shared.bucket.put(shared.remote.key(shared.artifacts.place(checkpoint_name(PLAN, 1, 1))), word)
    shared.remote.publish(shared.spec, 1)
    assert shared.artifacts.resolve(checkpoint_name(PLAN, 1, 1)) is None


def test_downloaded_files_have_the_times_of_the_bucket(shared: Shared) -> None:
    shared.bucket.put(shared.key("i1/events.jsonl"), b"")
    shared.remote.pull(shared.run, fresh=True)
    assert abs(os.stat(shared.run / "i1" / "events.jsonl").st_mtime - shared.folder.stat().st_mtime) < 3600  # noqa: PTH116


def test_folders_of_plans_and_copies_of_artifacts_are_deleted_with_their_former_versions(s3: S3, shared: Shared) -> None:
    s3.client.put_bucket_versioning(Bucket=s3.bucket, VersioningConfiguration={"Status": "Enabled"})
    shared.remote.lay_out(shared.spec)
    sent(shared)
    shared.bucket.put("jobs/1111111111111111/a1/i1/events.jsonl", b"of another plan")
    plan, pairs = plan_folder(PLAN), shared.spec.inputs["pairs.parquet"]
    before = shared.bucket.list(f"jobs/{plan}/").keys()
    assert len(before) > 3
    gone = shared.remote.unstage([plan], [pairs, "0" * 64], former=True)
    assert (gone.files >= len(before) + 1, gone.bytes > 0, gone.left) == (True, True, "")
    rest = {one.key for one in shared.bucket.versions("")}
    assert not any(plan in key or pairs in key for key in rest)
    assert "jobs/1111111111111111/a1/i1/events.jsonl" in rest
    assert any(shared.spec.inputs["model"] in key for key in rest)
    assert shared.remote.unstage([plan], [pairs], former=True) == (0, 0, "")


def test_collected_folders_stay_away(shared: Shared) -> None:
    shared.remote.lay_out(shared.spec)
    sent(shared)
    plan = plan_folder(PLAN)
    counted = shared.remote.collect({plan, "2222222222222222"}, dry_run=True)
    assert (counted.files, counted.bytes) == (n := len(shared.bucket.list(f"jobs/{plan}/")), counted.bytes)
    assert shared.remote.collect({plan}, dry_run=False) == counted
    assert n > 3
    shutil.rmtree(shared.remote.folders.plan_folder(shared.spec))
    shared.remote.restore(shared.spec)
    assert not shared.remote.folders.plan_folder(shared.spec).exists()
    assert shared.remote.collect({plan}, dry_run=False).files == 0
