"""Tests of erasures in buckets: no version of any object contains a byte of the erased people, and a lost connection loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.contracts.jobs.cluster import BucketSettings
from ratchet.flows.composition.artifacts import open_artifacts
from ratchet.flows.composition.installation import Installation
from ratchet.flows.service import bucket_copies
from ratchet.flows.service.erase import erase_people, pseudonyms_of
from ratchet.flows.service.garbage import collect_line
from ratchet.flows.service.receipts import Receipt
from ratchet.k8s.storage.sync import Remote
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
    monkeypatch.setattr(bucket_copies, "open_job_bucket", lambda _loop, _home: remote)
    return remote


def stage(remote: Remote, installation: Installation) -> None:
    """Copy run folders and artifacts to the bucket, as gangs do."""
    home = installation.home
    for root in (home.jobs(LINE), home.artifacts):
        for path in root.rglob("*"):
            if path.is_file():
                remote.bucket.put(remote.key(path), path.read_bytes())


@pytest.mark.parametrize("status", ["Enabled", "Off"])
def test_no_version_of_an_object_contains_a_byte_of_the_erased_people(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    if status != "Off":
        s3.client.put_bucket_versioning(Bucket=s3.bucket, VersioningConfiguration={"Status": status})
    monkeypatch.setenv(ARTIFACTS_URL, f"s3://{s3.bucket}/artifacts")
    installation, context = install(tmp_path, 8)
    promoted(context, installation.home)
    remote = jobs_over(s3, installation, monkeypatch)
    for _ in range(2):
        stage(remote, installation)
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
    s3.client.put_bucket_versioning(Bucket=s3.bucket, VersioningConfiguration={"Status": "Enabled"})
    installation, context = install(tmp_path, 8)
    promoted(context, installation.home)
    remote = jobs_over(s3, installation, monkeypatch)
    stage(remote, installation)
    monkeypatch.setattr(bucket_copies, "job_buckets", lambda *_: [])  # an earlier release, which did not reach the bucket
    erase(installation, 0)
    assert 0 in marks(s3, tmp_path / "before")
    monkeypatch.setattr(bucket_copies, "job_buckets", lambda *_: [remote])
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
    monkeypatch.setattr("ratchet.flows.service.garbage.job_buckets", lambda *_: [remote])
    soon = context.loop.model_copy(update={"retention": context.loop.retention.model_copy(update={"grace": 0.0})})
    object.__setattr__(context, "loop", soon)
    counted = collect_line(installation, context, dry_run=True)
    assert old in remote.bucket.folders(f"{remote.key(installation.home.jobs(LINE))}/")
    done = collect_line(installation, context)
    assert counted.files["run folders"] == done.files["run folders"] > 1
    left = remote.bucket.folders(f"{remote.key(installation.home.jobs(LINE))}/")
    assert set(left) == {plan_folder(now.plan.id), "3" * 16, "jobs"}
    assert not (installation.home.jobs(LINE) / old).exists()
