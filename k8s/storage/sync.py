"""Service's side of a bucket that replaces a shared volume.

It uploads the files that a gang's pods read, and downloads the files that they leave to the run folders of the executor. `staging.py`
is the pods' side; it defines when a file is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.ids import checkpoint_name, digest
from ratchet.contracts.jobs.cluster import VolumeSettings
from ratchet.contracts.jobs.training import JobSpec, ResumePoint
from ratchet.contracts.schema import stamped
from ratchet.runtime.artifacts import Deleted, FolderArtifacts, write_atomic
from ratchet.runtime.bucket import Bucket, BucketObject
from ratchet.runtime.event_log import EVENT_BYTES
from ratchet.runtime.jobs.job_files import SMALL_BYTES, is_there
from ratchet.runtime.jobs.job_protocol import IncarnationFile, RunFile, beat_file, incarnation_folder
from ratchet.runtime.jobs.run_folder import RunFolders, inside
from ratchet.runtime.manifest import MANIFEST

_NAMES = (re.escape(IncarnationFile.EVENTS), re.escape(IncarnationFile.ENDED), beat_file(r"\d{1,6}"), r"[a-z][a-z0-9_-]{0,60}\.log")
SMALL = re.compile(incarnation_folder(r"\d{1,9}") + f"/(?:{'|'.join(_NAMES)})")
"""Files of a run folder that are downloaded. All other keys are ignored, because pods choose the keys."""
LOG_BYTES = 4 << 20
"""Maximum size of a log that is downloaded."""
POLL_SECONDS, AWAY_SECONDS = 2.0, 15.0
"""Minimum seconds between two downloads of a run folder; the second value applies after a failure.

A failed download may take many seconds in which no other run is observed.
"""


def open_remote(volume: VolumeSettings, folders: RunFolders, artifacts: FolderArtifacts) -> Remote | None:
    """Return the service's side of the bucket of a volume; None if the volume is no bucket. Sends no request yet."""
    return None if volume.bucket is None else Remote(Bucket(volume.bucket), Path(volume.mount), folders, artifacts)


class Remote:
    """Run folders and artifacts below the mount, and the bucket that they are exchanged through."""

    def __init__(self, bucket: Bucket, mount: Path, folders: RunFolders, artifacts: FolderArtifacts) -> None:
        self.bucket, self.mount, self.folders, self.artifacts = bucket, mount.resolve(), folders, artifacts
        self._looked: dict[Path, tuple[float, str]] = {}
        """Maps each run folder to the time of its last download and the error message, which is empty after success."""
        self._tags: dict[str, str] = {}

    def key(self, path: Path) -> str:
        """Return the file's key: its path below the mount."""
        return path.relative_to(self.mount).as_posix()

    def lay_out(self, spec: JobSpec) -> None:
        """Upload the files that a job's pods read: inputs first, then the job's record. Existing inputs are not uploaded again.

        Raises Permanent if an input artifact is missing.
        """
        for source in spec.inputs.values():
            for part in (self.artifacts.files(source) or {}).values():
                self._send(part)
            self._send(source)
        self.bucket.put(self.key(self.folders.record(spec.name)), stamped(spec))

    def restore(self, spec: JobSpec) -> None:
        """Download the small files of a job's run folder if the folder was lost, and claim it again.

        What was collected or erased from the bucket, too, stays away.

        Raises Retryable while the bucket is unreachable.
        """
        run = self.folders.run(spec)
        if is_there(run / RunFile.JOB):
            return
        _, problem = self._looked.get(run, (0.0, ""))
        self.pull(run, fresh=not problem)
        if is_there(run):
            self.folders.claim(spec)  # last: a folder that is claimed is complete

    def _send(self, content: str) -> None:
        path = self.artifacts.path(content)
        try:
            self.bucket.send_missing(path, self.key(path), content)
        except FileNotFoundError:
            raise Permanent(f"artifact {content[:12]} is not in {self.artifacts.root}; restore the folder from a backup") from None

    def collect(self, plans: Collection[str], dry_run: bool) -> Deleted:
        """Delete those of the folders of plans, by their names, that the bucket has. With `dry_run`, only count what would be deleted.

        A bucket with versioning keeps former versions, which protect from mistakes until a lifecycle rule deletes them.
        """
        if not dry_run:
            return self.unstage(plans)
        found = [one.size for plan in self._there(plans) for one in self.bucket.list(f"{self.key(self.folders.root / plan)}/").values()]
        return Deleted(len(found), sum(found))

    def unstage(self, plans: Iterable[str], contents: Iterable[str] = (), former: bool = False) -> Deleted:
        """Delete folders of plans, by their names, and copies of artifacts. Their jobs have ended.

        `former` also deletes their former versions, if the bucket keeps versions.
        """
        wanted, copies = set(plans), {self.key(self.artifacts.here(content)) for content in contents}
        runs, root = f"{self.key(self.folders.root)}/", f"{self.key(self.artifacts.root)}/"
        found = {f"{runs}{plan}/{key}": one.size for plan in self._there(wanted) for key, one in self.bucket.list(f"{runs}{plan}/").items()}
        if copies:
            found |= {root + key: one.size for key, one in self.bucket.list(root).items() if root + key in copies}
        self.bucket.delete_each(found)
        before = list[Deleted]()
        if former and wanted:
            before.append(self.bucket.delete_former(runs, lambda key: key.partition("/")[0] in wanted))
        if former and copies:
            before.append(self.bucket.delete_former(root, lambda key: root + key in copies))
        # In a bucket with versioning, the objects that were just deleted are among the former versions.
        files, size = max(len(found), sum(one.files for one in before)), max(sum(found.values()), sum(one.bytes for one in before))
        return Deleted(files, size, "; ".join(one.left for one in before if one.left))

    def _there(self, plans: Collection[str]) -> list[str]:
        """Return those of the folders of plans that the bucket has."""
        return sorted(set(plans).intersection(self.bucket.folders(f"{self.key(self.folders.root)}/"))) if plans else []

    def pull(self, run: Path, fresh: bool = False) -> None:
        """Download new small files of all incarnations of a run, with the bucket's modification times.

        `fresh` ignores the minimum time since the last download. Raises Retryable while the bucket is unreachable.
        """
        at, problem = self._looked.get(run, (-AWAY_SECONDS, ""))
        if not fresh and time.monotonic() - at < (AWAY_SECONDS if problem else POLL_SECONDS):
            if problem:
                raise Retryable(problem)
            return
        try:
            self._pull(run)
        except Retryable as error:
            self._looked[run] = (time.monotonic(), str(error))
            raise
        self._looked[run] = (time.monotonic(), "")

    def _pull(self, run: Path) -> None:
        base = self.key(run)
        for name, found in self.bucket.list(f"{base}/").items():
            key, path = f"{base}/{name}", run / name
            if not SMALL.fullmatch(name) or (self._tags.get(key) == found.tag and _is(path, found)):
                continue
            if found.size > _limit(path):
                continue  # pods upload only smaller files
            data = self.bucket.get(key)
            if data is not None:
                write_atomic(path, data)
                os.utime(path, (found.modified.timestamp(),) * 2)  # upload time: executors use it as the time of the last sign of life
                self._tags[key] = found.tag

    def pin(self, spec: JobSpec, resume: ResumePoint) -> None:
        """Fix the step from which the next incarnation resumes.

        Raises Permanent if the step is not what was accepted. This checks that all files are present with the recorded digests of their
        upload; the loading process verifies their content.
        """
        self.restore(spec)
        run = self.folders.claim(spec)
        self._verify(inside(run.parent, resume.path), resume)
        data = stamped(resume)
        self.bucket.put(self.key(run / RunFile.RESUME), data)
        self._verify(inside(run.parent, resume.path), resume)  # check again: a pod may have deleted the step before it was pinned
        write_atomic(run / RunFile.RESUME, data)

    def _verify(self, step: Path, resume: ResumePoint) -> None:
        base = self.key(step)
        data = self.bucket.get(f"{base}/{MANIFEST}")
        if data is None or digest(data) != resume.manifest:
            raise Permanent(f"{base}/{MANIFEST} is {'missing' if data is None else 'not what was recorded'}; use an earlier checkpoint")
        try:
            files = dict(json.loads(data)["files"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise Permanent(f"{base}/{MANIFEST} is not a valid manifest ({type(error).__name__}); use an earlier checkpoint") from error
        there = {name for name in self.bucket.list(f"{base}/") if name} - {MANIFEST}
        names = sorted(files.keys() | there)
        wrong = [name for name in names if name not in files or self.bucket.digest(f"{base}/{name}") != files[name]]
        if wrong:
            raise Permanent(f"{base}/{wrong[0]} differs from its manifest (missing, added or changed); use an earlier checkpoint")

    def publish(self, spec: JobSpec, incarnation: int) -> None:
        """Copy the published checkpoint of an incarnation from the bucket to the service's artifacts, content before its name.

        Does nothing if the name is bound already or not in the bucket. Raises Permanent if content is missing or has another digest.
        """
        name = checkpoint_name(spec.plan, spec.attempt, incarnation)
        if self.artifacts.resolve(name) is not None:
            return
        bound = self.bucket.get(self.key(self.artifacts.place(name)))
        if bound is None:
            return  # the acceptance check reports the missing name
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            checkpoint = str(json.loads(bound)["digest"])
            self._fetch(checkpoint)
            files = str(json.loads(self.artifacts.get(checkpoint))["files"])
            self._fetch(files)
            for part in (self.artifacts.files(files) or {}).values():
                self._fetch(part)
            self.artifacts.bind(name, checkpoint)

    def _fetch(self, content: str) -> None:
        path = self.artifacts.path(content)
        if not re.fullmatch(r"[0-9a-f]{64}", content):
            raise ValueError(content)
        if not path.exists() and not self.bucket.fetch(self.key(path), path, content):
            raise Permanent(f"artifact {content[:12]} was published but is not in the bucket; check the bucket's lifecycle rules")
        self.artifacts.adopt(content)


def _limit(path: Path) -> int:
    """Return the maximum size of a file of a run folder that is downloaded."""
    if path.suffix == ".log":
        return LOG_BYTES
    return EVENT_BYTES if path.name == IncarnationFile.EVENTS else SMALL_BYTES


def _is(path: Path, found: BucketObject) -> bool:
    """Return whether the file is that object. Another process of the service may have downloaded an older version."""
    with contextlib.suppress(FileNotFoundError):
        there = path.stat()
        return there.st_size == found.size and there.st_mtime == found.modified.timestamp()
    return False
