"""Where a pod is whose gang shares a bucket and no file system: its run folder on a disk of its own, and what things are called in the
bucket, which is as on a shared volume. What the pods' side of a bucket goes by (inbound.py, outbound.py, staging.py)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from contracts.files import FolderArtifacts
from contracts.ids import Digest
from contracts.pod import identity
from k8s.bucket import Bucket

RESULT, START, NAMES = "result.json", "start.json", "names"
"""What the trainer said; where this incarnation began (a ResumePoint, or null); in the plan's folder: which names its jobs have bound."""


class Place:
    """One pod's."""

    def __init__(self, environment: Mapping[str, str], bucket: Bucket, run: Path) -> None:
        """KeyError or ValueError where the environment is not such a pod's."""
        self.bucket, self.run = bucket, run
        self.incarnation, self.node = identity(environment)
        self.nodes = int(environment.get("RATCHET_NODES", "1"))
        self.mount = Path(environment["RATCHET_MOUNT"])
        self.artifacts = FolderArtifacts(Path(environment["RATCHET_ARTIFACTS"]))
        self.folder = run / f"i{self.incarnation}"
        self.job, self.spec = environment["RATCHET_JOB"], environment["RATCHET_SPEC"]
        self.grace = float(environment["RATCHET_POD_GRACE"])
        """Seconds that a stopped pod has."""
        self.moved = 0
        """Files that have arrived where they were not: its change says that things go on."""

    def key(self, path: Path) -> str:
        """As the file is called below the volume's mount."""
        return path.relative_to(self.mount).as_posix()

    def fetch(self, path: Path, expected: Digest | None = None) -> bool:
        """From the bucket to its place on the disk; False: there is none."""
        new = not path.exists()
        found = self.bucket.fetch(self.key(path), path, expected)
        self.moved += found and new
        return found

    def send(self, path: Path, expected: Digest, source: Path | None = None) -> None:
        """From its place on the disk, or from `source`, to the bucket, unless it is there."""
        if self.bucket.digest(self.key(path)) != expected:
            self.bucket.send(source or path, self.key(path), expected)
            self.moved += 1
