"""Pod context: environment and paths of a pod whose gang shares a bucket instead of a file system.

The run folder is on the pod's own disk. Keys in the bucket equal the paths on a shared volume. Download, upload and staging use this
context.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from contracts.ids import Digest
from k8s.storage.bucket import Bucket
from runtime.artifacts import FolderArtifacts
from runtime.gang_member import identity

RESULT, START, NAMES = "result.json", "start.json", "names"
"""File names: the trainer's result; the start of this incarnation (a ResumePoint or null); the folder with the names that the plan's
jobs have bound.
"""


class PodContext:
    """Identity, folders and bucket of one pod."""

    def __init__(self, environment: Mapping[str, str], bucket: Bucket, run: Path) -> None:
        """Read the context from the pod's environment. Raises KeyError or ValueError if a variable is missing or invalid."""
        self.bucket, self.run = bucket, run
        self.incarnation, self.node = identity(environment)
        self.nodes = int(environment.get("RATCHET_NODES", "1"))
        self.mount = Path(environment["RATCHET_MOUNT"])
        self.artifacts = FolderArtifacts(Path(environment["RATCHET_ARTIFACTS"]))
        self.folder = run / f"i{self.incarnation}"
        self.job, self.spec = environment["RATCHET_JOB"], environment["RATCHET_SPEC"]
        self.grace = float(environment["RATCHET_POD_GRACE"])
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
        if self.bucket.digest(self.key(path)) != expected:
            self.bucket.send(source or path, self.key(path), expected)
            self.moved += 1
