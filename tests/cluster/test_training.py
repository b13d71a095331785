"""Tests of real training in real pods.

DPO as a gang of two pods on two real nodes is interrupted, resumes, and ends with the same weights as an undisturbed run. A second test
runs a Ray cluster of a head pod and a worker pod.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from contracts.exit_codes import Outcome
from contracts.ids import checkpoint_name
from contracts.training import Attempt, Checkpoint, JobSpec, JobState, JobStatus, Method, ResumePoint
from k8s.profiles.profile import Profile
from local.executor import LocalExecutor
from tests.cluster.bench import Bench
from tests.cluster.rig.cluster import REPO, Rig
from tests.cluster.rig.images import HOST, SYSTEM
from tests.unit.trainers.conftest import TRAINERS, Workshop, write_model
from tests.unit.trainers.nemo.conftest import lay_out_release
from trainers.backends.nemo.backend import NemoGRPO

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

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

STEPS = 1000
"""Enough steps that an interruption always comes before the end."""
UNDISTURBED: dict[str, str] = {}
"""The weights of undisturbed runs, by plan."""


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    """Plans and training data for a small start model."""
    return Workshop(tmp_path, write_model(tmp_path / "start"))


@pytest.fixture
def bench(real_rig: Rig, real_namespace: str, workshop: Workshop) -> Bench:
    """An executor for pods on real nodes."""
    return Bench(real_rig, real_namespace, workshop.folder, REAL, image=HOST, python=sys.executable)


def spec_of(workshop: Workshop, **changes: Any) -> JobSpec:
    """Return a DPO job for two nodes, with changes to its recipe."""
    plan = workshop.plan(Method.DPO, **{"steps": STEPS, "save_every": 20, **changes})
    return TRAINERS[Method.DPO].job(plan, Attempt(number=1, timeout=600, nodes=2))


def story(bench: Bench, spec: JobSpec) -> str:
    """Return the pods, events and logs that explain a failure."""
    run = bench.executor.folders.run(spec)
    logs = [f"{path}: {path.read_text()[-1500:]}" for path in sorted(run.glob("i*/*.log"))]
    asked = ("get", "pods,events", "-n", bench.namespace, "-o", "wide")
    pods = [
        bench.rig.kubectl("logs", "-n", bench.namespace, pod["metadata"]["name"], check=False)[-1500:]
        for pod in bench.rig.pods(bench.namespace)
    ]
    return "\n".join([bench.rig.kubectl(*asked, check=False), *pods, *logs, *bench.said])


def accept_and_pin(bench: Bench, spec: JobSpec, incarnation: int) -> ResumePoint:
    """Pin the newest checkpoint of the incarnation, as the engine does for an accepted step, and return it."""
    event = [e for e in bench.executor.events(spec.name) if e.kind == "checkpoint" and e.incarnation == incarnation][-1]
    point = ResumePoint(attempt=1, incarnation=incarnation, step=event.step, **event.data)
    bench.executor.pin(spec, point)
    return point


def finished(bench: Bench, spec: JobSpec, seconds: float = 240) -> JobStatus:
    """Wait for the end of the job and return its status; a timeout reports logs and events."""
    try:
        return bench.until(spec, lambda status: status.state is JobState.ENDED, seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{story(bench, spec)}") from None


def weights(workshop: Workshop, spec: JobSpec, incarnation: int) -> str:
    """Return the digest of the weights that the incarnation published."""
    bound = workshop.artifacts.resolve(checkpoint_name(spec.plan, spec.attempt, incarnation))
    assert bound is not None
    checkpoint = Checkpoint.model_validate_json(workshop.artifacts.get(bound))
    return checkpoint.model.weights


def undisturbed(workshop: Workshop) -> str:
    """Return the digest of the weights of an uninterrupted run with two processes on this machine.

    The result is the same for every workshop, because start model and data are the same.
    """
    twin = TRAINERS[Method.DPO].job(workshop.plan(Method.DPO, steps=STEPS, save_every=20), Attempt(number=2, timeout=600))
    if twin.plan not in UNDISTURBED:
        alone = LocalExecutor(workshop.folder / "alone", workshop.artifacts.root)
        twin = twin.model_copy(update={"environment": {**twin.environment, "RATCHET_PROCESSES": "2"}})
        alone.submit(twin, 1)
        while (end := alone.observe(twin.name)).state is not JobState.ENDED:
            time.sleep(0.2)
        assert end.outcome is Outcome.DONE, end
        UNDISTURBED[twin.plan] = weights(workshop, twin, 1)
    return UNDISTURBED[twin.plan]


def test_an_evicted_gang_resumes_and_ends_where_an_undisturbed_run_ends(bench: Bench, workshop: Workshop) -> None:
    spec = spec_of(workshop)
    bench.executor.submit(spec, 1)
    try:
        bench.until(spec, lambda status: status.step > 20, 120)  # the event of step 21 comes after that of the checkpoint at step 20
    except AssertionError as error:
        raise AssertionError(f"{error}\n{story(bench, spec)}") from None
    accept_and_pin(bench, spec, 1)
    pod = next(pod["metadata"]["name"] for pod in bench.rig.pods(bench.namespace) if pod["metadata"]["name"].endswith("worker-1"))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    bench.rig.api.call("POST", f"/api/v1/namespaces/{bench.namespace}/pods/{pod}/eviction", eviction)
    limit = time.monotonic() + 60
    while bench.executor.observe(spec.name).incarnation < 2 and time.monotonic() < limit:
        saved = [e for e in bench.executor.events(spec.name) if e.kind == "checkpoint" and e.incarnation == 1]
        accept_and_pin(bench, spec, 1)
        time.sleep(0.2)
    status = finished(bench, spec)
    assert status.outcome is Outcome.DONE, story(bench, spec)
    assert status.incarnation >= 2
    events = bench.executor.events(spec.name)
    again = [e.step for e in events if e.kind == "progress" and e.incarnation == status.incarnation]
    assert again[0] > 20, "the new incarnation must resume from a checkpoint"
    assert again[-1] == STEPS
    assert saved
    assert weights(workshop, spec, status.incarnation) == undisturbed(workshop), "the weights must be identical bit by bit"


def test_a_ray_cluster_of_two_pods_runs_a_driver_that_needs_both(real_rig: Rig, real_namespace: str, workshop: Workshop) -> None:
    release = lay_out_release(workshop.folder / "release")
    profile = REAL.model_copy(
        update={"gpus": 2, "cpu": "1", "mounts": (*REAL.mounts, str(release)), "python_path": (str(release), str(REPO))}
    )
    settings = {"image": HOST, "nemo_image": HOST, "python": sys.executable}
    bench = Bench(real_rig, real_namespace, workshop.folder, profile, **settings)
    secret = {"metadata": {"name": "ratchet-ray"}, "stringData": {"token": "a-secret-of-this-test-only-0123456789"}}
    real_rig.api.call("POST", f"/api/v1/namespaces/{real_namespace}/secrets", secret)
    small = {"steps": 4, "save_every": 2, "prompts_per_step": 4, "generations": 2, "micro_batch": 4, "nemo": {"max_prompt": 32}}
    spec = NemoGRPO().job(workshop.plan(Method.GRPO, **small), Attempt(number=1, timeout=600, nodes=2, gpus=2))
    more = {"RATCHET_NEMO_RL": str(release), "STUB": "gang", "RAY_USAGE_STATS_ENABLED": "0"}
    spec = spec.model_copy(update={"environment": spec.environment | more})
    bench.executor.submit(spec, 1)
    status = finished(bench, spec)
    assert status.outcome is Outcome.DONE, story(bench, spec)
    log = "".join(path.read_text() for path in bench.executor.folders.run(spec).glob("i1/**/*.log"))
    assert "work on 2 of 2 nodes" in log
    progress = [e for e in bench.executor.events(spec.name) if e.kind == "progress"]
    assert [e.step for e in progress] == [1, 2, 3, 4]
    assert workshop.artifacts.resolve(checkpoint_name(spec.plan, 1, 1)) is not None
