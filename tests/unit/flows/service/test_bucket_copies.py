"""Tests of erasures in buckets: no version of any object contains a byte of the erased people, and a lost connection loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError

from ratchet.contracts.errors import Retryable
from ratchet.contracts.jobs.cluster import BucketSettings, VolumeSettings
from ratchet.flows.composition.artifacts import open_artifacts
from ratchet.flows.composition.installation import Installation
from ratchet.flows.engine.context import LineContext
from ratchet.flows.service import bucket_copies, garbage
from ratchet.flows.service.erase import erase_people, pseudonyms_of
from ratchet.flows.service.garbage import collect_artifacts, collect_line
from ratchet.flows.service.receipts import Receipt
from ratchet.k8s.storage.sync import Remote
from ratchet.runtime.artifacts import Deleted
from ratchet.runtime.bucket import Bucket
from ratchet.runtime.bucket_artifacts import ARTIFACTS_URL
from ratchet.runtime.jobs.job_protocol import plan_folder
from ratchet.runtime.jobs.run_folder import RunFolders
from tests.markers import LINE, install, marks_in, planned, promoted, user
from tests.s3 import S3, served_by_default

pytestmark = pytest.mark.slow  # an S3 server


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """Yield a server that a client without settings uses."""
    with served_by_default(monkeypatch) as server:
        yield server


def erase(installation: Installation, *people: int) -> Receipt:
    return erase_people(installation, pseudonyms_of(installation, map(user, people), ()))


def marks(s3: S3, folder: Path) -> set[int]:
    """Return the users whose markers are in a version of an object of the bucket."""
    bucket = Bucket(BucketSettings(url=f"s3://{s3.bucket}", endpoint=s3.settings.endpoint, region="us-east-1"))
    folder.mkdir()
    for number, one in enumerate(one for one in bucket.versions("") if not one.is_mark):
        found = s3.client.get_object(Bucket=s3.bucket, Key=one.key, VersionId=one.version)
        (folder / str(number)).write_bytes(found["Body"].read())
    return set(marks_in(folder))


def jobs_over(s3: S3, installation: Installation, monkeypatch: pytest.MonkeyPatch) -> Remote:
    """Let the jobs of all cycles use a bucket in place of a volume."""
    home = installation.home
    settings = BucketSettings(url=f"s3://{s3.bucket}/jobs", endpoint=s3.settings.endpoint, region="us-east-1")
    remote = Remote(Bucket(settings), home.root, RunFolders(home.jobs(LINE)), open_artifacts(home))
    for module in (bucket_copies, garbage):
        monkeypatch.setattr(module, "job_buckets", lambda cycles, _home: ([remote] if list(cycles) else [], []))
    return remote


def stage(remote: Remote, installation: Installation) -> None:
    """Copy run folders and artifacts to the bucket, as gangs do."""
    home = installation.home
    for root in (home.jobs(LINE), home.artifacts):
        for path in root.rglob("*"):
            if path.is_file():
                remote.bucket.put(remote.key(path), path.read_bytes())


def keep(context: LineContext, **days: float) -> None:
    """Change the retention of a line."""
    retention = context.loop.retention.model_copy(update=days)
    object.__setattr__(context, "loop", context.loop.model_copy(update={"retention": retention}))


def refuse(monkeypatch: pytest.MonkeyPatch, refused: Callable[[str, Any], bool]) -> None:
    """Let the store deny requests, chosen by their operation and parameters."""
    call = BaseClient._make_api_call  # type: ignore[attr-defined]

    def denied(self: Any, operation: str, given: Any) -> Any:
        if refused(operation, given):
            answer = {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
            raise ClientError(answer, operation)  # type: ignore[arg-type]
        return call(self, operation, given)

    monkeypatch.setattr(BaseClient, "_make_api_call", denied)


def no_versions(operation: str, given: Any) -> bool:
    return operation == "ListObjectVersions" or "VersionId" in given


def keep_versions(s3: S3) -> None:
    s3.client.put_bucket_versioning(Bucket=s3.bucket, VersioningConfiguration={"Status": "Enabled"})


def staged_line(s3: S3, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Installation, LineContext, Remote]:
    """Return a line of eight users with a promoted version, whose run folders and artifacts are in a bucket."""
    installation, context = install(folder, 8)
    promoted(context, installation.home)
    remote = jobs_over(s3, installation, monkeypatch)
    stage(remote, installation)
    return installation, context, remote


@pytest.mark.parametrize("status", ["Enabled", "Off"])
def test_no_version_of_an_object_contains_a_byte_of_the_erased_people(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    if status == "Enabled":
        keep_versions(s3)
    monkeypatch.setenv(ARTIFACTS_URL, f"s3://{s3.bucket}/artifacts")
    installation, _, remote = staged_line(s3, tmp_path, monkeypatch)
    stage(remote, installation)  # again, so that there are former versions
    everybody = set(range(8))
    assert marks(s3, tmp_path / "before") == everybody

    receipt = erase(installation, *range(5))

    assert marks(s3, tmp_path / "after") == set(range(5, 8))
    assert set(marks_in(installation.home.root)) == set(range(5, 8))
    [line] = receipt.lines
    assert line.files["the bucket of jobs"] > 3
    assert ("former versions of artifacts" in line.files) == (status == "Enabled")
    assert erase(installation, *range(5)) == receipt


def test_an_erasure_whose_bucket_is_away_is_completed_later_and_takes_what_earlier_ones_left(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_versions(s3)
    installation, _, _ = staged_line(s3, tmp_path, monkeypatch)
    with monkeypatch.context() as earlier:
        earlier.setattr(bucket_copies, "job_buckets", lambda *_: ([], []))  # an earlier release, which did not reach the bucket
        erase(installation, 0)
    assert 0 in marks(s3, tmp_path / "before")
    s3.stop()
    with pytest.raises(Retryable, match="cannot list"):
        erase(installation, 1)
    s3.start()
    erase(installation, 1)
    assert marks(s3, tmp_path / "after").isdisjoint({0, 1})


def test_run_folders_of_ended_cycles_leave_the_bucket_after_the_grace(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installation, context = install(tmp_path, 8)
    promoted(context, installation.home)
    [old] = [plan_folder(plan.id) for cycle in installation.cycles(LINE) for plan in cycle.plans]
    now = planned(context, installation.home)
    assert now.plan is not None
    remote = jobs_over(s3, installation, monkeypatch)
    stage(remote, installation)
    remote.bucket.put(remote.key(installation.home.jobs(LINE) / ("3" * 16) / "x"), b"of no known plan")
    keep(context, grace=0.0)
    counted = collect_line(installation, context, dry_run=True)
    assert old in remote.bucket.folders(f"{remote.key(installation.home.jobs(LINE))}/")
    done = collect_line(installation, context)
    assert counted.files["run folders"] == done.files["run folders"] > 1
    left = remote.bucket.folders(f"{remote.key(installation.home.jobs(LINE))}/")
    assert set(left) == {plan_folder(now.plan.id), "3" * 16, "jobs"}
    assert not (installation.home.jobs(LINE) / old).exists()


def test_what_a_bucket_refuses_is_in_the_receipt_until_a_repetition_deletes_it(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_versions(s3)
    monkeypatch.setenv(ARTIFACTS_URL, f"s3://{s3.bucket}/artifacts")
    installation, _, _ = staged_line(s3, tmp_path, monkeypatch)
    with monkeypatch.context() as denied:
        refuse(denied, no_versions)
        [line] = erase(installation, 0).lines
    left = [text for text in line.left if "former versions" in text]
    assert len(left) == 2
    assert all("grant s3:ListBucketVersions and s3:DeleteObjectVersion" in text for text in left)
    places = ("/artifacts/sha256/", "/jobs/lines/shop/jobs/", "/jobs/artifacts/")
    assert all(any(place in text for text in left) for place in places), "each place is named"
    assert 0 in marks(s3, tmp_path / "before")
    [again] = erase(installation, 0).lines
    assert not any("former versions" in text for text in again.left)
    assert again.files["former versions of artifacts"] > 0
    assert 0 not in marks(s3, tmp_path / "after")


def test_an_erasure_ends_although_a_former_bucket_refuses_everything_or_is_gone(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation, _, remote = staged_line(s3, tmp_path, monkeypatch)
    with monkeypatch.context() as denied:
        refuse(denied, lambda _, given: given.get("Bucket") == s3.bucket)
        receipt = erase(installation, 0)
    assert receipt.finished is not None
    assert any("run folders and training sets in s3://" in text and "AccessDenied" in text for text in receipt.lines[0].left)
    remote.bucket.bucket = "no-such-bucket-any-more"
    receipt = erase(installation, 1)
    assert receipt.finished is not None
    assert not any("run folders and training sets" in text for text in receipt.lines[0].left)


def test_a_bucket_whose_keys_are_not_known_is_named(s3: S3, tmp_path: Path) -> None:
    installation, context = install(tmp_path, 8)
    volume = VolumeSettings(mount="/former", bucket=s3.settings)
    loop = context.loop.model_copy(update={"cluster": SimpleNamespace(volume=volume)})
    found = bucket_copies.job_buckets([SimpleNamespace(loop=loop)], installation.home)  # type: ignore[list-item]
    assert found == ([], [s3.settings])


def test_the_run_folder_of_a_cycle_that_does_not_read_the_erased_rows_stays_while_it_is_open(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation, _ = install(tmp_path, 8)
    remote = jobs_over(s3, installation, monkeypatch)
    key = "ab" * 32
    artifacts = SimpleNamespace(erased_keys=lambda: {key}, delete_former=lambda _: Deleted())
    plans = {ended: SimpleNamespace(id=one * 64, data=(key,)) for ended, one in ((True, "1"), (False, "2"))}
    cycles = [SimpleNamespace(ended=ended, plans=[plan], loop=None) for ended, plan in plans.items()]
    root = remote.key(installation.home.jobs(LINE))
    for plan in plans.values():
        remote.bucket.put(f"{root}/{plan_folder(plan.id)}/a1/i1/model", b"")
    list(bucket_copies.delete_copies(artifacts, installation.home, cycles, (), True))  # type: ignore[arg-type]
    assert remote.bucket.folders(f"{root}/") == [plan_folder(plans[False].id)]


def test_a_retention_that_a_bucket_interrupts_is_completed_by_the_next_collection(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_versions(s3)
    installation, context, _ = staged_line(s3, tmp_path, monkeypatch)
    keep(context, traces=1e-7, feedback=1e-7, quarantine=1e-7)
    s3.stop()
    with pytest.raises(Retryable):
        collect_line(installation, context)
    s3.start()
    with monkeypatch.context() as denied:
        refuse(denied, no_versions)
        done = collect_line(installation, context)
    assert any("former versions of objects" in text for text in done.left)
    assert "not reached: former versions" in done.summary
    assert collect_line(installation, context).left == ()
    assert marks(s3, tmp_path / "after") == set()
    assert collect_line(installation, context).is_empty


def test_former_versions_of_collected_artifacts_go_with_the_next_erasure(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_versions(s3)
    monkeypatch.setenv(ARTIFACTS_URL, f"s3://{s3.bucket}/artifacts")
    installation, context = install(tmp_path, 8)
    forgotten = context.artifacts.put(b"zq000zq in an artifact that no row names")
    store = open_artifacts(installation.home)
    assert collect_artifacts(store, installation.ledger, 0.0, dry_run=False)[0] >= 1
    assert forgotten not in dict(store.contents())
    assert 0 in marks(s3, tmp_path / "before")
    erase(installation, 0)
    assert 0 not in marks(s3, tmp_path / "after")
