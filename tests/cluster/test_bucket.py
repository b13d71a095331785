"""Tests of gangs whose pods share an S3 bucket with the service instead of a file system.

DPO on two real nodes is evicted and killed, resumes, and ends with the same weights as an undisturbed run. Every pod has a separate disk;
the S3 server runs on this machine.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import canonical, checkpoint_name
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobState
from ratchet.k8s.gangs import guardian
from ratchet.runtime.artifacts import FolderArtifacts
from tests.cluster.bench import REAL, Bench
from tests.cluster.rig.api import until
from tests.cluster.rig.cluster import Rig
from tests.cluster.rig.images import HOST
from tests.cluster.training import STEPS, accept_and_pin, finished, spec_of, story, undisturbed, weights
from tests.s3 import KEYS, S3, served
from tests.unit.trainers.conftest import Workshop, write_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SILENT = 8.0
"""Replaces SILENT_SECONDS of the guardian, so that the test waits less."""


@pytest.fixture
def s3(real_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    """An S3 server that pods of real nodes can reach."""
    with served(monkeypatch, real_rig.gateway) as server:
        yield server


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    """Plans and training data for a small start model."""
    return Workshop(tmp_path, write_model(tmp_path / "start"))


def pod_of(bench: Bench, end: str) -> str:
    """Return the name of the gang's pod that ends with `end`."""
    return next(str(name) for pod in bench.rig.pods(bench.namespace) if (name := pod["metadata"]["name"]).endswith(end))


@pytest.mark.soak
@pytest.mark.parametrize("evicted", [False, True])
def test_a_gang_over_a_bucket_is_stopped_and_killed_and_ends_where_an_undisturbed_run_ends(
    real_rig: Rig, real_namespace: str, s3: S3, workshop: Workshop, evicted: bool
) -> None:
    secret = {"metadata": {"name": "bucket"}, "stringData": KEYS}
    real_rig.api.call("POST", f"/api/v1/namespaces/{real_namespace}/secrets", secret)
    volume = {"mount": str(workshop.folder), "bucket": s3.settings.model_dump(exclude_none=True)}
    given = {"image": HOST, "python": sys.executable, "volume": volume, "secrets": {key: f"bucket/{key}" for key in KEYS}}
    bench = Bench(real_rig, real_namespace, workshop.folder, REAL, **given)
    spec = spec_of(workshop)
    bench.executor.submit(spec, 1)
    run = bench.executor.folders.run(spec)
    assert not (run / "model").exists(), "the job's inputs must go to the bucket only"

    def further(incarnation: int, steps: int) -> int:
        """Wait until an incarnation has taken at least `steps` steps, accept its newest checkpoint, and return the accepted step."""
        try:
            bench.until(spec, lambda status: status.incarnation == incarnation and status.step >= steps, 180)
            bench.until(
                spec, lambda _: any(e.kind == "checkpoint" and e.incarnation == incarnation for e in bench.executor.events(spec.name))
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{story(bench, spec)}") from None
        return accept_and_pin(bench, spec, incarnation).step

    accepted = [further(1, 20)]
    if evicted:
        worker = pod_of(bench, "worker-1")
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": worker}}
        bench.rig.api.call("POST", f"/api/v1/namespaces/{bench.namespace}/pods/{worker}/eviction", eviction)
        limit, seen = time.monotonic() + 240, 1
        while seen < 2 and time.monotonic() < limit:
            with suppress(Retryable):  # retry later, as the service does
                seen = bench.turn(spec).incarnation
                if seen < 2:
                    accepted[0] = accept_and_pin(bench, spec, 1).step
            time.sleep(0.2)
        accepted.append(further(2, accepted[0] + 30))
        assert accepted[1] > accepted[0]
    bench.rig.kubectl("delete", "pod", "-n", bench.namespace, pod_of(bench, "worker-0"), "--grace-period=0", "--force")
    status = finished(bench, spec)
    assert status.outcome is Outcome.DONE, story(bench, spec)
    last = len(accepted) + 1
    assert status.incarnation == last
    events = bench.executor.events(spec.name)
    for number, step in enumerate(accepted, 2):
        steps = [e.step for e in events if e.kind == "progress" and e.incarnation == number]
        assert steps[0] > step, f"incarnation {number} must resume from the accepted step"
    assert steps[-1] == STEPS
    assert not list(run.glob("i*/step_*")), "the service must not download checkpoint tensors"
    assert json.loads((run / f"i{last}" / "ended.json").read_text())["outcome"] == "done"
    assert weights(workshop, spec, last) == undisturbed(workshop), "the weights must be identical bit by bit"
    assert bench.executor.observe(spec.name).state is JobState.ENDED


def test_while_the_bucket_is_away_a_gang_runs_on_and_its_end_is_told_later(
    rig: Rig, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machines are released during the outage, and no output is lost."""
    monkeypatch.setattr(guardian, "SILENT_SECONDS", SILENT)
    with served(monkeypatch) as s3:
        volume = {"mount": str(tmp_path), "bucket": s3.settings.model_dump(exclude_none=True)}
        bench = Bench(rig, namespace, tmp_path, volume=volume, half_alive=5.0)
        rig.fake_nodes(2)
        spec = bench.spec(nodes=2)
        bench.executor.submit(spec, 1)
        bench.until(spec, lambda status: status.state is JobState.RUNNING)
        run, remote = bench.executor.folders.run(spec), bench.executor.remote
        assert remote
        event = {"at": time.time(), "incarnation": 1, "kind": "progress", "step": 3, "total": 9, "data": {}}
        remote.bucket.put(remote.key(run / "i1" / "events.jsonl"), json.dumps(event).encode() + b"\n")
        for node in range(2):
            remote.bucket.put(remote.key(run / "i1" / f"beat-{node}"), b"1")
        bench.until(spec, lambda status: status.step == 3)
        s3.stop()
        uids = {pod["metadata"]["uid"] for pod in rig.pods(namespace)}
        limit = time.monotonic() + SILENT + 5.0 + 5.0  # longer than the time after which a silent process restarts its gang
        while time.monotonic() < limit:
            status = bench.turn(spec)
            assert (status.state, status.step) == (JobState.RUNNING, 3)
            time.sleep(1)
        assert {pod["metadata"]["uid"] for pod in rig.pods(namespace)} == uids, "no process may count as silent during the outage"
        s3.start()
        artifacts = FolderArtifacts(tmp_path / "a-pods-disk")
        files = artifacts.put(b"model")
        folder = artifacts.put(canonical({"files": {"model.safetensors": files}}))
        checkpoint = artifacts.put(canonical({"files": folder}))
        for key in (files, folder, checkpoint):
            remote.bucket.put(remote.key(bench.artifacts.path(key)), artifacts.get(key))
        name = checkpoint_name(spec.plan, 1, 1)
        remote.bucket.put(remote.key(bench.artifacts.place(name)), canonical({"name": name, "digest": checkpoint}))
        remote.bucket.put(remote.key(run / "i1" / "ended.json"), b'{"outcome": "done", "reason": "all steps"}')
        s3.stop()
        bench.executor = bench.restarted()
        for pod in rig.pods(namespace):
            rig.end_pod(namespace, pod["metadata"]["name"], 0)
        until(lambda: bench.gang()["status"]["state"]["phase"] == "Completed", 30, "the end of the gang")
        said: list[Outcome | None] = []

        def gone() -> bool:
            with suppress(Retryable):
                bench.executor.reconcile(spec.name)
            said.append(bench.executor.observe(spec.name).outcome)
            return not rig.api.items(f"/apis/batch.volcano.sh/v1alpha1/namespaces/{namespace}/jobs")

        until(gone, 30, "the deletion of the Volcano Job")
        assert set(said) == {None}, "the outcome is unknown during the outage"
        with pytest.raises(Retryable):
            bench.executor.reconcile(spec.name)
        assert bench.executor.observe(spec.name).outcome is None
        s3.start()
        end = bench.until(spec, lambda status: status.state is JobState.ENDED)
        assert (end.outcome, end.step) == (Outcome.DONE, 3)
        assert bench.artifacts.resolve(name) == checkpoint
        assert bench.artifacts.get(files) == b"model"
