"""A bench for contract tests: gangs that share only a bucket with a service whose volume is lost again and again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ratchet.contracts.ids import checkpoint_name, digest
from ratchet.contracts.jobs.cluster import BucketSettings
from ratchet.contracts.jobs.training import JobEvent, JobSpec, JobStatus, ResumePoint
from ratchet.contracts.schema import stamped
from ratchet.flows.ledger.postgres_store import PostgresDatabase
from ratchet.k8s.profiles.profile import Profile
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.bucket import Bucket
from ratchet.runtime.bucket_artifacts import BucketArtifacts
from ratchet.runtime.documents import open_documents
from ratchet.runtime.manifest import write_manifest
from tests.contract.executor_benches import GangBench, PatientExecutor
from tests.contract.stores import rows
from tests.s3 import S3

PRICED = Profile(provider="any", gpus=0, cpu="1", memory="1Gi", shm="64Mi", instance_types=("p5en.48xlarge",))


class LosingExecutor(PatientExecutor):
    """An executor that calls `lose` before each call."""

    lose: Callable[[], None] = staticmethod(lambda: None)

    def submit(self, spec: JobSpec, incarnation: int) -> None:
        self.lose()
        super().submit(spec, incarnation)

    def observe(self, name: str) -> JobStatus:
        self.lose()
        return super().observe(name)

    def reconcile(self, name: str) -> None:
        self.lose()
        super().reconcile(name)

    def live(self) -> list[str]:
        self.lose()
        return super().live()

    def cancel(self, name: str) -> bool:
        self.lose()
        return super().cancel(name)

    def events(self, name: str, since: int = 0) -> list[JobEvent]:
        self.lose()
        return super().events(name, since)

    def pin(self, spec: JobSpec, resume: ResumePoint) -> None:
        self.lose()
        super().pin(spec, resume)


class LossBench(GangBench):
    """A bench for `KubernetesExecutor` with a bucket and records in Postgres. The volume is lost before each call, unless `keeps` is set.

    The artifacts are in a bucket, too. The bench uploads the output of the jobs as pods do.
    """

    def __init__(self, folder: Path, s3: S3, database: PostgresDatabase) -> None:
        self.volume, self.s3, self.database = folder / "service", s3, database
        self.bucket, self.keeps = Bucket(s3.settings), False
        super().__init__(folder, {"mount": str(self.volume), "bucket": s3.settings.model_dump()})

    @property
    def artifacts(self) -> FolderArtifacts:
        """The artifacts, with a copy on the volume."""
        url = f"s3://{self.s3.bucket}/artifacts"
        bucket = BucketSettings(url=url, endpoint=self.s3.settings.endpoint, region="us-east-1")
        return BucketArtifacts(Bucket(bucket), self.volume / "artifacts")

    def restarted(self) -> LosingExecutor:
        """Return a new executor, as that of another pod."""
        documents = open_documents(self.volume / "jobs", self.database, "jobs")
        folders = self.volume / "jobs", self.artifacts
        executor = LosingExecutor(self.cluster, "test", self.settings, PRICED, *folders, max_restarts=5, documents=documents)
        executor.work, executor.lose = self.work, self._lose
        return executor

    def _lose(self) -> None:
        if not self.keeps:
            self.lose()

    def lose(self) -> None:
        """Delete the volume of the service."""
        shutil.rmtree(self.volume, ignore_errors=True)

    def gang(self, spec: JobSpec) -> str:
        """Return the name of the newest recorded gang of a job."""
        return self.executor.submissions.of(spec.name)[-1].name

    def key(self, spec: JobSpec, name: str) -> str:
        """Return the key of a file in a run folder."""
        return (self.executor.folders.run(spec) / name).relative_to(self.volume).as_posix()

    def _write(self, name: str, file: str, content: dict[str, Any]) -> None:
        spec, number = self.executor.folders.spec(name), self.executor.submissions.of(name)[-1].incarnation
        self.bucket.put(self.key(spec, f"i{number}/{file}"), json.dumps({"incarnation": number, **content}).encode())

    def save(self, spec: JobSpec, step: int) -> ResumePoint:
        """Upload a complete step of the first incarnation, and return its resume point."""
        path, folder = f"a{spec.attempt}/i1/step_{step}", self.folder / f"step_{step}"
        folder.mkdir()
        (folder / "weights").write_text("w" * 100)
        manifest = write_manifest(folder)
        for part in sorted(folder.iterdir()):
            self.bucket.send(part, self.key(spec, f"i1/step_{step}/{part.name}"), digest(part.read_bytes()))
        return ResumePoint(attempt=spec.attempt, incarnation=1, step=step, path=path, manifest=manifest)

    def publish(self, spec: JobSpec) -> str:
        """Upload a checkpoint as a pod does, and return its digest."""
        pod = FolderArtifacts(self.folder / "pod" / "artifacts")
        model = self.folder / "model"
        model.mkdir()
        (model / "model.safetensors").write_bytes(b"weights")
        name = checkpoint_name(spec.plan, spec.attempt, 1)
        bound = pod.bind(name, pod.put(stamped({"files": pod.put_folder(model)})))
        for part in sorted(path for path in pod.root.rglob("*") if path.is_file()):
            place = "artifacts" / part.relative_to(pod.root)
            self.bucket.send(part, place.as_posix(), digest(part.read_bytes()))
        return bound

    def snapshot(self) -> Any:
        """Return everything outside of the volume that the executor could change."""
        found = rows(self.database, "SELECT to_regclass('ratchet_documents_math.documents') IS NOT NULL")
        documents = rows(self.database, "SELECT * FROM ratchet_documents_math.documents ORDER BY place, name") if found[0][0] else []
        objects = {key: (found.tag, found.size) for key, found in self.bucket.list("").items()}
        return documents, objects, list(self.cluster.writes)
