"""Tests of real training in real pods.

DPO as a gang of two pods on two real nodes is interrupted, resumes, and ends with the same weights as an undisturbed run. A second test
runs a Ray cluster of a head pod and a worker pod.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from ratchet.contracts.ids import checkpoint_name
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Attempt, Method
from ratchet.trainers.backends.nemo.backend import NemoGRPO
from tests.cluster.bench import REAL, Bench
from tests.cluster.rig.cluster import REPO, Rig
from tests.cluster.rig.images import HOST
from tests.cluster.training import STEPS, accept_and_pin, finished, spec_of, story, undisturbed, weights
from tests.unit.trainers.conftest import Workshop, write_model
from tests.unit.trainers.nemo.conftest import lay_out_release

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    """Plans and training data for a small start model."""
    return Workshop(tmp_path, write_model(tmp_path / "start"))


@pytest.fixture
def bench(real_rig: Rig, real_namespace: str, workshop: Workshop) -> Bench:
    """An executor for pods on real nodes."""
    return Bench(real_rig, real_namespace, workshop.folder, REAL, image=HOST, python=sys.executable)


@pytest.mark.soak
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
    while bench.turn(spec).incarnation < 2 and time.monotonic() < limit:
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
