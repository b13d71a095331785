"""Pod context: environment and paths of a pod whose gang shares a bucket instead of a file system.

The run folder is on the pod's own disk. Keys in the bucket equal the paths on a shared volume. Download, upload and staging use this
context.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ratchet.contracts.ids import Digest
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.bucket import Bucket
from ratchet.runtime.jobs.gang_member import identity
from ratchet.runtime.jobs.job_protocol import ARTIFACTS, JOB, MOUNT, NODES, POD_GRACE, SPEC, incarnation_folder

NAMES = "names"
"""Folder in a plan's folder of the bucket, with the names that the plan's jobs have bound."""


class PodContext:
    """Identity, folders and bucket of one pod."""

    def __init__(self, environment: Mapping[str, str], bucket: Bucket, run: Path) -> None:
        """Read the context from the pod's environment. Raises ConfigError if a variable is missing or not valid."""
        self.bucket, self.run = bucket, run
        self.incarnation, self.node = identity(environment)
        self.nodes = NODES.get(environment)
        self.mount = MOUNT.get(environment)
        self.artifacts = FolderArtifacts(ARTIFACTS.get(environment))
        self.folder = run / incarnation_folder(self.incarnation)
        self.job, self.spec = JOB.get(environment), SPEC.get(environment)
        self.grace = POD_GRACE.get(environment)
        """Grace period of the pod after SIGTERM, in seconds."""
        self.moved = 0
        """Number of new files that were transferred. A change shows that the transfer makes progress."""

    def key(self, path: Path) -> str:
        """Return the file's key: its path below the volume's mount."""
        return path.relative_to(self.mount).as_posix()

    def fetch(self, path: Path, expected: Digest | None = None) -> bool:
        """Download an object to its path on the disk. Return False if the bucket has no such object.

        Raises Permanent if the content's digest is not `expected`.
        """
        new = not path.exists()
        found = self.bucket.fetch(self.key(path), path, expected)
        self.moved += found and new
        return found

    def send(self, path: Path, expected: Digest, source: Path | None = None) -> None:
        """Upload a file from its path on the disk, or from `source`, unless the bucket already has that content."""
        self.moved += self.bucket.send_missing(source or path, self.key(path), expected)
