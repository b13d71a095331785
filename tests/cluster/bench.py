"""Ratchet's executor on a test cluster. On simulated nodes the test writes the output of a job; on real nodes the job really runs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import job_name
from ratchet.contracts.jobs.cluster import ClusterSettings
from ratchet.contracts.jobs.training import JobSpec, JobState, JobStatus, ResumePoint
from ratchet.k8s.api.client import KubernetesCluster, connect
from ratchet.k8s.gangs.executor import KubernetesExecutor
from ratchet.k8s.profiles.profile import Profile
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.manifest import write_manifest
from tests.cluster.rig.api import PATIENCE
from tests.cluster.rig.cluster import REPO, Rig
from tests.cluster.rig.images import SYSTEM

PRETENDING = Profile(provider="any", gpus=8, cpu="1", memory="1Gi", shm="64Mi", instance_types=("p5en.48xlarge",))
"""The machine profile of simulated nodes with eight GPUs."""
BOUGHT = PRETENDING.model_copy(
    update={"node_class": "karpenter.kwok.sh/KWOKNodeClass/default", "node_annotations": {"kwok.x-k8s.io/node": "fake"}}
)
"""The same machine, launched by the test cluster's autoscaler."""


def client(rig: Rig) -> KubernetesCluster:
    """Return the product's client with the rights of the test cluster's administrator."""
    os.environ["KUBECONFIG"] = str(rig.kubeconfig)
    return connect(None)


class Bench:
    """An executor in a namespace of a test cluster, with its run folders."""

    def __init__(self, rig: Rig, namespace: str, folder: Path, profile: Profile = PRETENDING, **settings: Any) -> None:
        self.rig, self.namespace, self.folder, self.profile = rig, namespace, folder, profile
        self.cluster = client(rig)
        given = {"namespace": namespace, "queue": "default", "image": "pretended", "volume": {"mount": str(folder), "host_path": True}}
        self.settings = ClusterSettings.model_validate({**given, **settings})
        self.artifacts = FolderArtifacts(folder / "artifacts")
        self.artifacts.root.mkdir(parents=True, exist_ok=True)
        self.reports: list[str] = []
        self.executor = self.restarted()

    def restarted(self) -> KubernetesExecutor:
        """Return a new executor on the same run folders, as after a restart of the service."""
        return KubernetesExecutor(
            self.cluster, "test", self.settings, self.profile, self.folder / "jobs", self.artifacts, 5, report=self.reports.append
        )

    def spec(self, nodes: int = 3, gpus: int = 8, plan: str = "a", attempt: int = 1, grace: int = 5) -> JobSpec:
        """Return a job for tests that look only at its gang."""
        return JobSpec(
            name=job_name(plan * 64, attempt, f"{nodes} {gpus}"),
            plan=plan * 64,
            attempt=attempt,
            command=("{python}", "-m", "ratchet.trainers.job.supervisor"),
            environment={"RATCHET_NODES": str(nodes)},
            inputs={},
            plan_json="{}",
            grace_seconds=grace,
            nodes=nodes,
            gpus=gpus,
        )

    def turn(self, spec: JobSpec) -> JobStatus:
        """Reconcile and observe a job, as each turn of the service does."""
        self.executor.reconcile(spec.name)
        return self.executor.observe(spec.name)

    def collected(self) -> bool:
        """Reconcile all jobs of the line, as the service does, and return whether nothing is left to do."""
        with suppress(Retryable):  # retry later, as the service does
            for name in self.executor.live():
                self.executor.reconcile(name)
            return self.executor.live() == []
        return False

    def until(self, spec: JobSpec, holds: Callable[[JobStatus], bool], seconds: float = 60) -> JobStatus:
        """Reconcile and observe the job until the condition holds and return its status.

        Raises AssertionError after `seconds` times PATIENCE.

        As in the engine, an end counts only after its result is stored.
        """
        limit, status = time.monotonic() + seconds * PATIENCE, JobStatus(state=JobState.ABSENT)
        while time.monotonic() < limit:
            with suppress(Retryable):  # retry later, as the service does
                status = self.turn(spec)
                if holds(status) and (status.state is not JobState.ENDED or status.outcome is not None):
                    return status
            time.sleep(0.2)
        raise AssertionError(f"{spec.name} is still {status}\n{self.rig.kubectl('get', 'pods,vcjob', '-n', self.namespace, '-o', 'wide')}")

    def gang(self) -> dict[str, Any]:
        """Return the only Volcano Job of the namespace, as the API returns it."""
        (job,) = self.rig.api.items(f"/apis/batch.volcano.sh/v1alpha1/namespaces/{self.namespace}/jobs")
        return dict(job)

    def step(self, spec: JobSpec, incarnation: int, step: int) -> ResumePoint:
        """Write a checkpoint and its event, as a trainer would, and return its resume point."""
        run = self.executor.folders.run(spec)
        path = f"a{spec.attempt}/i{incarnation}/step_{step}"
        folder = run.parent / path
        folder.mkdir(parents=True)
        (folder / "weights").write_text(f"weights {incarnation} {step}")
        manifest = write_manifest(folder)
        self.tell(spec, incarnation, "checkpoint", step, path=path, manifest=manifest)
        return ResumePoint(attempt=spec.attempt, incarnation=incarnation, step=step, path=path, manifest=manifest)

    def tell(self, spec: JobSpec, incarnation: int, kind: str, step: int, **data: Any) -> None:
        """Append an event to the job's event log."""
        line = {"at": time.time(), "incarnation": incarnation, "kind": kind, "step": step, "total": 100, "data": data}
        folder = self.executor.folders.run(spec) / f"i{incarnation}"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "events.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def end(self, spec: JobSpec, incarnation: int, outcome: str, reason: str = "reported by the test") -> None:
        """Write the job's result file with this outcome and reason."""
        folder = self.executor.folders.run(spec) / f"i{incarnation}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ended.json").write_text(json.dumps({"outcome": outcome, "reason": reason}))


REAL = Profile(
    provider="any",
    cpu="1",
    memory="2Gi",
    shm="256Mi",
    labels={"rig.ratchet/node": "real"},
    mounts=tuple(dict.fromkeys((*SYSTEM, sys.base_prefix, sys.prefix, str(REPO)))),
    python_path=(str(REPO),),
    root="the files of this machine belong to root",
    image_pull="Never",
)
"""The profile of the test cluster's real nodes. Their pods can use this machine's programs, this interpreter and this checkout."""
