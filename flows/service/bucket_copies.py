"""Copies of artifacts and of run folders in buckets: former versions of artifacts, and what the jobs of a cluster read and wrote there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ratchet.contracts.ids import Digest
from ratchet.flows.composition.cluster import open_job_bucket
from ratchet.flows.config.home import Home
from ratchet.flows.core.folds.cycle import CycleView
from ratchet.runtime.artifacts import Deleted, FolderArtifacts
from ratchet.runtime.jobs.job_protocol import plan_folder

if TYPE_CHECKING:
    from ratchet.k8s.storage.sync import Remote


def delete_copies(
    artifacts: FolderArtifacts, home: Home, cycles: Iterable[CycleView], plans: Collection[Digest]
) -> Iterator[tuple[str, Deleted]]:
    """Delete what buckets have of erased artifacts and of the run folders of `plans`, and of those that earlier erasures concerned.

    The rows are erased from the artifacts already, and the jobs have ended. Yields for each kind of place what was deleted. Raises
    Retryable while a bucket does not answer.
    """
    gone = artifacts.erased_keys()
    yield "former versions of artifacts", artifacts.delete_former(gone)
    touched = [cycle for cycle in cycles if any(plan.id in plans or gone.intersection(plan.data) for plan in cycle.plans)]
    folders = sorted({plan_folder(plan.id) for cycle in touched for plan in cycle.plans})
    for bucket in job_buckets(touched, home):
        yield "the bucket of jobs", bucket.unstage(folders, gone, former=True)


def job_buckets(cycles: Iterable[CycleView], home: Home) -> Sequence[Remote]:
    """Return the buckets that the jobs of these cycles of a line use, each once. A line may have changed its bucket."""
    found = (open_job_bucket(cycle.loop, home) for cycle in cycles)
    return list({(one.bucket.settings.url, one.bucket.settings.endpoint, one.mount): one for one in found if one is not None}.values())
