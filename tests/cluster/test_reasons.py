"""Tests of the reasons that the executor reports when a gang does not run or ends without output, with real pods on real nodes."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ratchet.contracts.errors import RatchetError
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobState, JobStatus
from tests.cluster.bench import REAL, Bench, client
from tests.cluster.gangs import real
from tests.cluster.rig.api import until
from tests.cluster.rig.cluster import Rig
from tests.cluster.rig.images import HOST

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SMALL = REAL.model_copy(update={"memory": "256Mi", "cpu": "100m", "shm": "16Mi"})


def ended(status: JobStatus) -> bool:
    """Return whether the job has ended."""
    return status.state is JobState.ENDED


def tells(*words: str) -> object:
    """Return a condition that holds when the reason contains all words."""
    return lambda status: all(word in status.reason for word in words)


def test_an_image_that_is_not_there_is_named(real_rig: Rig, real_namespace: str, tmp_path: Path) -> None:
    bench = Bench(real_rig, real_namespace, tmp_path, SMALL, image="registry.example/nowhere:1", pending=40)
    spec = bench.spec(nodes=1, gpus=0)
    bench.executor.submit(spec, 1)
    status = bench.until(spec, tells("ErrImageNeverPull", "registry.example/nowhere:1"))  # type: ignore[arg-type]
    assert status.state is JobState.PENDING
    given_up = bench.until(spec, ended)
    assert given_up.outcome is Outcome.LOST
    assert "not whole within 40 s" in given_up.reason
    assert "ErrImageNeverPull" in given_up.reason


def test_a_secret_that_is_missing_is_named(real_rig: Rig, real_namespace: str, tmp_path: Path) -> None:
    bench = Bench(real_rig, real_namespace, tmp_path, SMALL, image=HOST, secrets={"REWARD_API_KEY": "reward-api/key"})
    spec = bench.spec(nodes=1, gpus=0)
    bench.executor.submit(spec, 1)
    status = bench.until(spec, tells("CreateContainerConfigError", "reward-api"))  # type: ignore[arg-type]
    assert status.state is JobState.PENDING
    bench.executor.cancel(spec.name)


def test_a_crash_before_the_first_word_is_told_with_the_end_of_its_log(real_rig: Rig, real_namespace: str, tmp_path: Path) -> None:
    broken = SMALL.model_copy(update={"environment": {"PYTHONHOME": "/nowhere"}})
    bench = Bench(real_rig, real_namespace, tmp_path, broken, image=HOST, python="/usr/bin/python3")
    spec = bench.spec(nodes=1, gpus=0)
    bench.executor.submit(spec, 1)
    status = bench.until(spec, ended)
    assert status.outcome is Outcome.LOST
    assert "exit code 1" in status.reason, status.reason
    assert "encodings" in status.reason, status.reason
    assert "\n" not in status.reason
    assert bench.restarted().observe(spec.name).reason == status.reason, "the reason must stay the same after the gang is gone"


def test_a_pod_that_needs_more_memory_than_it_may_is_told_so_through_all_restarts(
    real_rig: Rig, real_namespace: str, tmp_path: Path
) -> None:
    small = SMALL.model_copy(update={"memory": "24Mi"})
    bench = Bench(real_rig, real_namespace, tmp_path, small, image=HOST, python=sys.executable, failure_margin=0)
    spec = bench.spec(nodes=1, gpus=0)
    bench.executor.submit(spec, 1)
    bench.until(spec, lambda status: status.incarnation > 1 and "OOMKilled" in status.reason)
    status = bench.until(spec, ended, 120)
    assert "exit code 137 (OOMKilled)" in status.reason, status.reason


def test_the_log_of_a_pod_is_read_from_its_end(real_rig: Rig, real_namespace: str, tmp_path: Path) -> None:
    pod = {"metadata": {"name": "talks"}, "spec": real(0, "/bin/sh", "-c", "seq 1 100; sleep 300")}
    real_rig.api.call("POST", f"/api/v1/namespaces/{real_namespace}/pods", pod | {"spec": pod["spec"] | {"nodeName": "real-0"}})
    cluster = client(real_rig)

    def read() -> list[str]:
        with suppress(RatchetError):
            return cluster.log("talks", real_namespace, 20).splitlines()
        return []

    until(lambda: "100" in read(), 60, "the pod's output", lambda: real_rig.kubectl("describe", "pod", "talks", "-n", real_namespace))
    assert read() == [str(number) for number in range(81, 101)]
    assert len(cluster.log("talks", real_namespace, 20, size=10)) == 10
