"""A service and pods that share only a bucket. Each has a separate disk below `folder`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ratchet.contracts.ids import canonical, digest
from ratchet.contracts.jobs.training import JobEvent, JobSpec, ResumePoint
from ratchet.contracts.schema import stamped
from ratchet.k8s.pod.pod_context import PodContext
from ratchet.k8s.pod.upload import Outbound
from ratchet.k8s.storage.sync import Remote
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.bucket import Bucket
from ratchet.runtime.jobs.run_folder import RunFolders
from ratchet.runtime.manifest import write_manifest
from tests.s3 import S3

REPO = Path(__file__).resolve().parents[3]
PLAN = "ab" * 32
PROCESS_1 = """
import os, sys, time
from pathlib import Path
from ratchet.contracts.jobs.cluster import BucketSettings
from ratchet.contracts.errors import Retryable
from ratchet.k8s.pod import download, staging
from ratchet.runtime.bucket import Bucket
staging.LOOK_SECONDS, staging.FAILURE_SECONDS, download.LOOK_SECONDS = 0.2, float(os.environ.get("PATIENCE", "20")), 0.2
send = Bucket.send
def slowly(self, path, key, expected):
    time.sleep(30)
    send(self, path, key, expected)
if "SLOW" in os.environ:
    Bucket.send = slowly
fetch = Bucket.fetch
def broken(self, key, path, expected=None):
    if path.name == os.environ["BROKEN"]:
        raise Retryable("the object is archived")
    return fetch(self, key, path, expected)
if "BROKEN" in os.environ:
    Bucket.fetch = broken
pod = staging.Staging(os.environ, Bucket(BucketSettings.model_validate_json(os.environ["RATCHET_BUCKET"])), Path.cwd())
staging.leave(pod.live([sys.executable, "-c", sys.argv[1]]))
"""
"""Process 1 of a pod: `ratchet.k8s.pod.staging` with shorter intervals, and with the test's program as the job.

PATIENCE sets the timeout in seconds, SLOW delays every upload by 30 seconds, and BROKEN names files whose download fails.
"""


class Shared:
    """The service's side, and pods as processes or, for closer inspection, as objects."""

    def __init__(self, s3: S3, folder: Path) -> None:
        self.s3, self.folder = s3, folder
        self.bucket = Bucket(s3.settings)
        mount = folder / "service"
        self.artifacts = FolderArtifacts(mount / "artifacts")
        self.remote = self.again()
        start = folder / "start"
        start.mkdir()
        (start / "config.json").write_text("{}")
        (start / "model.safetensors").write_bytes(b"w" * 100_000)
        data = folder / "pairs"
        data.write_text("pairs")
        self.spec = JobSpec(
            name="rt-0123456789abcdef-a1",
            plan=PLAN,
            attempt=1,
            command=(),
            environment={},
            inputs={"model": self.artifacts.put_folder(start), "pairs.parquet": self.artifacts.put_file(data)},
            plan_json='{"a": "plan"}',
            grace_seconds=10,
        )
        self.run = self.remote.folders.claim(self.spec)

    def again(self) -> Remote:
        """Return the service's side, as after a restart of the service."""
        mount = self.folder / "service"
        return Remote(self.bucket, mount, RunFolders(mount / "jobs"), self.artifacts)

    def place(self, incarnation: int = 1, node: int = 0) -> Path:
        """Return the run folder on a pod's disk."""
        return self.folder / f"pod-{incarnation}-{node}" / "jobs" / PLAN[:16] / "a1"

    def environment(self, incarnation: int = 1, node: int = 0, nodes: int = 1) -> dict[str, str]:
        """Return the environment variables of a pod."""
        mount = self.place(incarnation, node).parents[2]
        return {
            "RATCHET_FIRST_INCARNATION": str(incarnation),
            "RATCHET_TASK": "worker",
            "VC_TASK_INDEX": str(node),
            "RATCHET_NODES": str(nodes),
            "RATCHET_MOUNT": str(mount),
            "RATCHET_ARTIFACTS": str(mount / "artifacts"),
            "RATCHET_BUCKET": self.s3.settings.model_dump_json(),
            "RATCHET_JOB": self.spec.name,
            "RATCHET_SPEC": digest(stamped(self.spec)),
            "RATCHET_POD_GRACE": "20",
        }

    def leaving(self, incarnation: int = 1, node: int = 0, nodes: int = 1) -> Outbound:
        """Return the uploader of a pod whose disk is still empty."""
        run = self.place(incarnation, node)
        (run / f"i{incarnation}").mkdir(parents=True)
        return Outbound(PodContext(self.environment(incarnation, node, nodes), self.bucket, run), print)

    def pod(self, job: str, incarnation: int = 1, node: int = 0, nodes: int = 1, **environment: str) -> subprocess.Popen[str]:
        """Start process 1 of a pod, with a Python program as its job."""
        run = self.place(incarnation, node)
        run.mkdir(parents=True)
        given = {**os.environ, "PYTHONPATH": str(REPO), **self.environment(incarnation, node, nodes), **environment}
        command = [sys.executable, "-c", PROCESS_1, job]
        return subprocess.Popen(
            command, cwd=run, env=given, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )

    def key(self, name: str) -> str:
        """Return the key of a file in the run folder."""
        return self.remote.key(self.run / name)

    def below(self, name: str) -> set[str]:
        """Return the names in the bucket below a folder of the run folder."""
        return set(self.bucket.list(f"{self.key(name)}/"))

    def there(self, name: str) -> bool:
        """Return whether a file of the run folder is in the bucket."""
        return self.bucket.get(self.key(name)) is not None

    def point(self, step: int, manifest: str, incarnation: int = 1) -> ResumePoint:
        """Return a resume point at this step with this manifest."""
        return ResumePoint(attempt=1, incarnation=incarnation, step=step, path=f"a1/i{incarnation}/step_{step}", manifest=manifest)


def kill(pod: subprocess.Popen[str]) -> None:
    """Kill all processes of the pod at once, as at the end of a container."""
    os.killpg(pod.pid, signal.SIGKILL)
    pod.communicate(timeout=60)


def save(run: Path, step: int, incarnation: int = 1, **files: bytes) -> str:
    """Write a sealed step and its checkpoint event, as a trainer does. Return the digest of its manifest."""
    folder = run / f"i{incarnation}" / f"step_{step}"
    folder.mkdir(parents=True)
    for name, content in (files or {"weights": f"weights {step}".encode()}).items():
        (folder / name).write_bytes(content)
    manifest = write_manifest(folder)
    tell(run, "checkpoint", step, incarnation, path=f"a1/i{incarnation}/step_{step}", manifest=manifest)
    return manifest


def tell(run: Path, kind: str, step: int, incarnation: int = 1, **data: Any) -> None:
    """Append an event to the event log of the incarnation."""
    event = JobEvent(at=time.time(), incarnation=incarnation, kind=kind, step=step, total=100, data=data)
    with (run / f"i{incarnation}" / "events.jsonl").open("ab") as file:
        file.write(canonical(event) + b"\n")
