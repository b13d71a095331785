"""Benches for the contract tests of executors. A bench builds an executor and jobs of known behaviour."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from ratchet.contracts.errors import Retryable
from ratchet.contracts.fakes import FakeExecutor, FakeWorld
from ratchet.contracts.ids import Digest, job_name
from ratchet.contracts.jobs.cluster import ClusterSettings
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobSpec, JobState, JobStatus, ResumePoint
from ratchet.contracts.ports import Executor
from ratchet.k8s.api.client import JOB as VOLCANO_JOB
from ratchet.k8s.gangs.executor import KubernetesExecutor
from ratchet.k8s.gangs.gang_state import ENDED_PHASES, phase_of
from ratchet.k8s.manifests.gang_manifest import JOB_NAME
from ratchet.k8s.profiles.profile import Profile
from ratchet.local.executor import LocalExecutor
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.manifest import write_manifest
from tests.memory_cluster import MemoryCluster
from tests.waiting import has_result, job_until

JOB = """
import json, os, pathlib, signal, sys, time
behaviour, m = sys.argv[1], int(os.environ["RATCHET_INCARNATION"])
folder = pathlib.Path(f"i{m}")

def event(kind, step=0):
    line = {"at": time.time(), "incarnation": m, "kind": kind, "step": step, "total": 4, "data": {}}
    with open(folder / "events.jsonl", "a") as file:
        file.write(json.dumps(line) + "\\n")

def end(outcome, reason):
    (folder / "part").write_text(json.dumps({"outcome": outcome, "reason": reason}))
    (folder / "part").rename(folder / "ended.json")
    sys.exit(0)

def asked(*_):
    event("stopped")
    end("preempted", "asked to stop")

signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "deaf" else asked)
event("started")
assert pathlib.Path("data/words.txt").read_text() == "words"
for step in range(1, 5):
    event("progress", step)
if behaviour == "done":
    end("done", "4 steps")
if behaviour == "failed":
    end("failed", "the data was bad")
if behaviour == "once" and m > 1:
    end("done", "resumed from " + str(pathlib.Path("resume.json").exists()))
if behaviour == "silent":
    os._exit(0)
while True:
    time.sleep(0.02)
"""


def job_spec(behaviour: str, attempt: int, grace: int, data: dict[str, Digest]) -> JobSpec:
    """Return a job that runs the program JOB with this behaviour."""
    return JobSpec(
        name=job_name("a" * 64, attempt, behaviour),
        plan="a" * 64,
        attempt=attempt,
        command=("{python}", "-c", JOB, behaviour),
        environment={},
        inputs=data,
        plan_json="{}",
        grace_seconds=grace,
    )


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the modification time and the content of every file below a folder."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def running(status: JobStatus) -> bool:
    """Return whether the job runs and has reported its last step."""
    return status.state == JobState.RUNNING and status.step == 4


class LocalBench:
    """A bench for `LocalExecutor`, with a small Python program as the job."""

    def __init__(self, folder: Path) -> None:
        self.artifacts = FolderArtifacts(folder / "artifacts")
        (folder / "data").mkdir()
        (folder / "data" / "words.txt").write_text("words")
        self.data = self.artifacts.put_folder(folder / "data")
        self.root = folder / "jobs"
        self.executor: Executor = self.restarted()
        self.names: list[str] = []

    def restarted(self) -> Executor:
        """Return a new executor on the same folders, as after a restart of the service."""
        return LocalExecutor(self.root, self.artifacts.root)

    def spec(self, behaviour: str, attempt: int = 1, grace: int = 5) -> JobSpec:
        spec = job_spec(behaviour, attempt, grace, {"data": self.data})
        self.names.append(spec.name)
        return spec

    def checkpoint(self, spec: JobSpec, step: int) -> ResumePoint:
        """Write a complete checkpoint, as a job does, and return its resume point."""
        path = f"a{spec.attempt}/i1/step_{step}"
        folder = self.root / spec.plan[:16] / path
        folder.mkdir(parents=True)
        (folder / "weights").write_text("w" * 100)
        return ResumePoint(attempt=spec.attempt, incarnation=1, step=step, path=path, manifest=write_manifest(folder))

    def damage(self, resume: ResumePoint) -> None:
        (self.root / ("a" * 16) / resume.path / "weights").write_text("short")

    def starts(self, spec: JobSpec, incarnation: int) -> int:
        """Count how often an incarnation actually started."""
        events = self.executor.events(spec.name)
        return sum(event.kind == "started" and event.incarnation == incarnation for event in events)

    def close(self) -> None:
        for name in self.names:
            for _ in range(2):
                self.executor.cancel(name)
                self.until(name, lambda status: status.state not in (JobState.RUNNING, JobState.PENDING))

    def until(self, name: str, holds: Callable[[JobStatus], bool] = has_result, reconcile: bool = True) -> JobStatus:
        return job_until(self.executor, name, holds, 60, reconcile=reconcile)

    def snapshot(self) -> Any:
        """Return everything that the executor could change."""
        return tree(self.root), tree(self.artifacts.root)

    def run_to_its_end(self, name: str) -> JobStatus:
        """Wait for the end of a job without storing its result, and return the observed status."""
        return self.until(name, lambda status: status.state == JobState.ENDED, reconcile=False)

    def overdue(self) -> JobSpec:
        """Return a running job that must be stopped now: it was cancelled, and its grace period is over."""
        spec = self.spec("deaf", grace=0)
        self.executor.submit(spec, 1)
        self.until(spec.name, running)
        self.executor.cancel(spec.name)
        return spec


class FakeBench:
    """A bench for `FakeExecutor`: jobs end as scripted, without processes, output or files."""

    outcomes: ClassVar[dict[str, Outcome]] = {
        "done": Outcome.DONE,
        "failed": Outcome.FAILED,
        "stays": Outcome.PREEMPTED,
        "silent": Outcome.LOST,
    }

    def __init__(self, folder: Path) -> None:
        self.behaviours: dict[int, str] = {}
        self.world = FakeWorld()
        self.executor: Executor = FakeExecutor(self.world, self._script, steps=4)

    def _script(self, attempt: int, incarnation: int) -> Outcome:
        once = Outcome.DONE if incarnation > 1 else Outcome.PREEMPTED
        return self.outcomes.get(self.behaviours[attempt], once)

    def restarted(self) -> Executor:
        return self.executor

    def spec(self, behaviour: str, attempt: int = 1) -> JobSpec:
        self.behaviours[attempt] = behaviour
        return job_spec(behaviour, attempt, grace=5, data={})

    def until(self, name: str, holds: Callable[[JobStatus], bool] = has_result) -> JobStatus:
        for _ in range(20):
            self.executor.reconcile(name)
            status = self.executor.observe(name)
            if holds(status):
                return status
        raise AssertionError(f"{name} has not reached the expected status; it is {status}")

    def starts(self, spec: JobSpec, incarnation: int) -> int:
        return self.world.effects[f"submit/{spec.name}/{incarnation}"]

    def snapshot(self) -> Any:
        """Return everything that the executor could change."""
        fields = {name: value for name, value in vars(self.executor).items() if name not in ("world", "script", "propose")}
        return copy.deepcopy((fields, self.world.effects, vars(self.world.artifacts)))

    def run_to_its_end(self, name: str) -> JobStatus:
        """Advance the job to its end without storing its result, and return the observed status."""
        return self.until(name, lambda status: status.state == JobState.ENDED)

    def overdue(self) -> JobSpec:
        """Return a running job that must be stopped now: it was cancelled."""
        spec = self.spec("stays")
        self.executor.submit(spec, 1)
        self.executor.reconcile(spec.name)
        self.executor.cancel(spec.name)
        return spec

    def close(self) -> None:
        """Do nothing, because the fake starts no processes."""


class PatientExecutor(KubernetesExecutor):
    """An executor whose submissions are retried while another gang waits, as the service does. The cluster works in between."""

    work: Callable[[], None]

    def submit(self, spec: JobSpec, incarnation: int) -> None:
        for _ in range(5):
            with contextlib.suppress(Retryable):
                return super().submit(spec, incarnation)
            self.work()
        return super().submit(spec, incarnation)


class GangBench:
    """A bench for `KubernetesExecutor` on an API server in memory. The bench writes the output of the jobs."""

    outcomes: ClassVar[dict[str, str | None]] = {"done": "done", "failed": "failed", "silent": None}

    def __init__(self, folder: Path, volume: dict[str, Any] | None = None) -> None:
        self.folder, self.cluster = folder, MemoryCluster()
        self.behaviours: dict[str, str] = {}
        (folder / "artifacts").mkdir()
        given = {"namespace": "line", "image": "pretended", "volume": volume or {"mount": str(folder), "host_path": True}}
        self.settings = ClusterSettings.model_validate(given)
        self.executor = self.restarted()

    def restarted(self) -> PatientExecutor:
        """Return a new executor on the same folders and the same API server."""
        profile = Profile(provider="any", gpus=0, cpu="1", memory="1Gi", shm="64Mi")
        folders = self.folder / "jobs", FolderArtifacts(self.folder / "artifacts")
        executor = PatientExecutor(self.cluster, "test", self.settings, profile, *folders, max_restarts=5)
        executor.work = self.work
        return executor

    def spec(self, behaviour: str, attempt: int = 1) -> JobSpec:
        spec = job_spec(behaviour, attempt, grace=5, data={})
        self.behaviours[spec.name] = behaviour
        return spec.model_copy(update={"environment": {"RATCHET_NODES": "1"}})

    def work(self) -> None:
        """Start the gangs that wait, and end the gangs whose jobs are done."""
        self.cluster.end_pods()
        for job in self.cluster.list(VOLCANO_JOB).items:
            gang, name = job["metadata"]["name"], job["metadata"]["labels"][JOB_NAME]
            if phase_of(job) == "Pending":
                self.cluster.start(gang)
                self._write(name, "events.jsonl", {"at": 0.0, "kind": "started", "step": 4, "total": 4, "data": {}})
            elif phase_of(job) not in ENDED_PHASES and self.behaviours[name] in self.outcomes:
                if outcome := self.outcomes[self.behaviours[name]]:
                    self._write(name, "ended.json", {"outcome": outcome, "reason": "as scripted"})
                self.cluster.finish(gang, 0 if outcome == "done" else 1)

    def _write(self, name: str, file: str, content: dict[str, Any]) -> None:
        spec, number = self.executor.folders.spec(name), self.executor.submissions.of(name)[-1].incarnation
        folder = self.executor.folders.run(spec) / f"i{number}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(json.dumps({"incarnation": number, **content}))

    def until(self, name: str, holds: Callable[[JobStatus], bool] = has_result, reconcile: bool = True) -> JobStatus:
        return job_until(self.executor, name, holds, before=self.work, reconcile=reconcile)

    def starts(self, spec: JobSpec, incarnation: int) -> int:
        events = self.executor.events(spec.name)
        return sum(event.kind == "started" and event.incarnation == incarnation for event in events)

    def snapshot(self) -> Any:
        """Return everything that the executor could change."""
        return tree(self.folder), list(self.cluster.writes)

    def run_to_its_end(self, name: str) -> JobStatus:
        """Run a job to its end without storing its result, and return the observed status."""
        return self.until(name, lambda status: status.state == JobState.ENDED, reconcile=False)

    def overdue(self) -> JobSpec:
        """Return a running job that must be stopped now: it has reached its cap."""
        spec = self.spec("stays")
        self.executor.submit(spec, 1)
        self.until(spec.name, running)
        capped = self.settings.model_copy(update={"cap_run": 0.0})
        self.executor.reconciler.settings = capped
        return spec

    def close(self) -> None:
        """End the watches of the informers."""
        self.cluster.leave()
