"""The executor contract tests with the Kubernetes executor: the same cases as for the local executor, in real pods."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.contracts.jobs.training import JobSpec, JobState, JobStatus, ResumePoint
from ratchet.k8s.api.client import Cluster
from ratchet.k8s.gangs.executor import KubernetesExecutor
from tests.cluster.bench import REAL, Bench
from tests.cluster.rig.cluster import Rig
from tests.cluster.rig.images import HOST
from tests.contract import executor_benches as benches
from tests.contract import test_executor as contract
from tests.waiting import has_result

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
globals().update({name: case for name, case in vars(contract).items() if name.startswith("test_")})

PROCESS = """#!/bin/sh
n=$((RATCHET_FIRST_INCARNATION + ${{RATCHET_RESTARTS:-0}}))
mkdir -p i$n
RATCHET_INCARNATION=$n exec {python} -c "$(cat {folder}/job.py)" $BEHAVIOUR
"""
"""Process 1 of a pod. It runs the program of the contract tests, because these tests cover the executor and not the supervisor."""


class Patient:
    """An executor whose submissions are retried while they are not possible yet, as the service does."""

    def __init__(self, executor: KubernetesExecutor) -> None:
        self.executor = executor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executor, name)

    def submit(self, spec: JobSpec, incarnation: int) -> None:
        """Submit the job, retrying on Retryable for up to 120 s."""
        limit = time.monotonic() + 120
        while True:
            try:
                return self.executor.submit(spec, incarnation)
            except Retryable:
                if time.monotonic() > limit:
                    raise
                time.sleep(0.2)


class Recorded:
    """The connection to the API server, with a record of its writes."""

    def __init__(self, cluster: Cluster, writes: list[str]) -> None:
        self.cluster, self.writes = cluster, writes

    def __getattr__(self, name: str) -> Any:
        if name in ("apply", "create", "delete"):
            return partial(self._write, name)
        return getattr(self.cluster, name)

    def _write(self, verb: str, *given: Any, **named: Any) -> Any:
        self.writes.append(verb)
        return getattr(self.cluster, verb)(*given, **named)


class ClusterBench:
    """The bench of the contract tests: KubernetesExecutor with the contract's program in pods of real nodes."""

    def __init__(self, rig: Rig, namespace: str, folder: Path) -> None:
        program = folder / "program"
        program.mkdir()
        (program / "job.py").write_text(benches.JOB)
        (program / "process").write_text(PROCESS.format(python=sys.executable, folder=program))
        (program / "process").chmod(0o755)
        small = {"cpu": "100m", "memory": "128Mi", "shm": "16Mi", "grace": 8}
        profile = REAL.model_copy(update={**small, "mounts": (*REAL.mounts, str(program))})
        self.bench = Bench(rig, namespace, folder, profile, image=HOST, python=str(program / "process"))
        self.writes: list[str] = []
        self.bench.cluster = Recorded(self.bench.cluster, self.writes)  # type: ignore[assignment]
        (folder / "data").mkdir()
        (folder / "data" / "words.txt").write_text("words")
        self.data = self.bench.artifacts.put_folder(folder / "data")
        self.executor = self.restarted()
        self.names: list[str] = []

    def restarted(self) -> Patient:
        """Return a new executor on the same run folders."""
        return Patient(self.bench.restarted())

    def spec(self, behaviour: str, attempt: int = 1, grace: int = 5) -> JobSpec:
        """Return a job that shows this behaviour."""
        spec = benches.job_spec(behaviour, attempt, grace, {"data": self.data})
        self.names.append(spec.name)
        return spec.model_copy(update={"environment": {"BEHAVIOUR": behaviour}})

    def checkpoint(self, spec: JobSpec, step: int) -> ResumePoint:
        """Write a checkpoint of the first incarnation and return its resume point."""
        return self.bench.step(spec, 1, step)

    def damage(self, resume: ResumePoint) -> None:
        """Overwrite the weights of a checkpoint, so that its manifest no longer matches."""
        (self.bench.executor.folders.root / ("a" * 16) / resume.path / "weights").write_text("short")

    def starts(self, spec: JobSpec, incarnation: int) -> int:
        """Return how often the incarnation has started, by its events."""
        events = self.executor.events(spec.name)
        return sum(event.kind == "started" and event.incarnation == incarnation for event in events)

    def until(self, name: str, holds: Callable[[JobStatus], bool] = has_result, reconcile: bool = True) -> JobStatus:
        """Reconcile and observe the job until the condition holds and return its status; raises AssertionError after 200 s."""
        limit, status = time.monotonic() + 200, JobStatus(state=JobState.ABSENT)
        while time.monotonic() < limit:
            with suppress(Retryable):
                if reconcile:
                    self.executor.reconcile(name)
                status = self.executor.observe(name)
                if holds(status):
                    return status
            time.sleep(0.1)
        raise AssertionError(f"{name} is still {status}\n{self.bench.rig.kubectl('get', 'pods,vcjob,events', '-n', self.bench.namespace)}")

    def snapshot(self) -> Any:
        """Return everything that the executor could change: its files and artifacts, and its writes to the API server."""
        folder = self.bench.folder
        return benches.tree(folder / "jobs"), benches.tree(folder / "artifacts"), list(self.writes)

    def run_to_its_end(self, name: str) -> JobStatus:
        """Wait for the end of a job without storing its result, and return the observed status."""
        return self.until(name, lambda status: status.state == JobState.ENDED, reconcile=False)

    def overdue(self) -> JobSpec:
        """Return a running job that must be stopped now: it has reached its cap."""
        spec = self.spec("stays")
        self.executor.submit(spec, 1)
        self.until(spec.name, benches.running)
        self.executor.reconciler.settings = self.bench.settings.model_copy(update={"cap_run": 0.0})
        return spec

    def close(self) -> None:
        """Cancel all jobs and wait until none runs."""
        for name in self.names:
            self.executor.cancel(name)
        for name in self.names:
            self.until(name, lambda status: status.state not in (JobState.RUNNING, JobState.PENDING))


@pytest.fixture
def bench(real_rig: Rig, real_namespace: str, tmp_path: Path) -> Iterator[ClusterBench]:
    """The bench of the contract tests on the shared test cluster."""
    made = ClusterBench(real_rig, real_namespace, tmp_path)
    yield made
    made.close()
    shutil.rmtree(tmp_path / "jobs", ignore_errors=True)


@pytest.fixture
def machine(bench: ClusterBench) -> ClusterBench:
    """The bench under the name that the contract tests use."""
    return bench


def test_every_case_of_the_contract_is_tried_here() -> None:
    cases = {name for name in vars(contract) if name.startswith("test_")}
    assert len(cases) > 10
    assert cases <= globals().keys()
