"""Copies of artifacts and of run folders in buckets: former versions of artifacts, and what the jobs of a cluster read and wrote there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import Digest
from ratchet.contracts.jobs.cluster import BucketSettings
from ratchet.contracts.loop import Loop
from ratchet.flows.composition.cluster import open_job_bucket
from ratchet.flows.config.home import Home
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.runtime.artifacts import Deleted, FolderArtifacts
from ratchet.runtime.bucket import REFUSED, code_of
from ratchet.runtime.jobs.job_protocol import plan_folder

if TYPE_CHECKING:
    from ratchet.k8s.storage.sync import Remote

_RIGHTS = "grant s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket, then repeat"


def delete_copies(
    artifacts: FolderArtifacts, home: Home, cycles: Iterable[CycleView], plans: Collection[Digest], of_people: bool
) -> Iterator[tuple[str, Deleted]]:
    """Delete what buckets have of erased artifacts and of the run folders of `plans`, and what earlier erasures left there.

    The rows are erased from the artifacts already, and the jobs of `plans` have ended. Of other plans with erased data, only those of ended
    cycles are concerned: a job that goes on does not read them. Where people are erased (`of_people`), former versions of all deleted
    artifacts go, because those that a garbage collection deleted may have their texts. Yields for each kind of place what was deleted and
    what is left. Raises Retryable while a bucket does not answer.
    """
    gone = artifacts.erased_keys()
    yield "former versions of artifacts", artifacts.delete_former(None if of_people else gone)
    touched = [
        cycle for cycle in cycles if any(plan.id in plans or (cycle.ended and not gone.isdisjoint(plan.data)) for plan in cycle.plans)
    ]
    folders = {plan_folder(plan.id) for cycle in touched for plan in cycle.plans}
    buckets, elsewhere = job_buckets(touched, home)
    for bucket in buckets:
        yield "the bucket of jobs", _unstaged(bucket, folders, gone)
    for settings in elsewhere:
        left = f"run folders and training sets in {settings.url}, because the home folder is not below the mount of those jobs"
        yield "the bucket of jobs", Deleted(left=left)


def _unstaged(bucket: Remote, folders: Collection[str], contents: Collection[Digest]) -> Deleted:
    try:
        return bucket.unstage(folders, contents, former=True)
    except Retryable as error:
        code = code_of(error)
        if code == "NoSuchBucket":
            return Deleted()
        if code in REFUSED:
            return Deleted(left=f"run folders and training sets in {bucket.bucket.settings.url} ({code}): {_RIGHTS}")
        raise


def job_buckets(cycles: Iterable[CycleView], home: Home) -> tuple[Sequence[Remote], Sequence[BucketSettings]]:
    """Return the buckets that the jobs of these cycles of a line use, each once; a line may have changed its bucket.

    The second result has those whose keys are not known, because their mount is not that of the home folder.
    """
    loops = dict[str, tuple[BucketSettings, Loop]]()
    for cycle in cycles:
        if cycle.loop.cluster is not None and (settings := cycle.loop.cluster.volume.bucket) is not None:
            loops[cycle.loop.cluster.volume.model_dump_json()] = settings, cycle.loop
    found = [(settings, open_job_bucket(loop, home)) for settings, loop in loops.values()]
    return [bucket for _, bucket in found if bucket is not None], [settings for settings, bucket in found if bucket is None]
