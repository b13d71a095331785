"""Tests of the guardian in situations that neither Volcano nor the autoscaler resolves.

Examples are a gang that is half present and for which the autoscaler launches no machines, a gang with a silent process, and a gang
whose pods Volcano forgot to create. Other tests cover situations in which the guardian must not act, such as machines that still boot.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobState, JobStatus
from ratchet.k8s.api.client import JOB, NODE_POOL
from ratchet.k8s.gangs import gang_state, guardian
from ratchet.k8s.gangs.gang_state import GangState
from ratchet.k8s.manifests.pod_objects import manifest
from ratchet.k8s.manifests.pools import dynamic_pool
from ratchet.runtime.jobs.job_protocol import beat_file
from tests.cluster.bench import BOUGHT, Bench
from tests.cluster.rig.api import until
from tests.cluster.rig.cluster import KARPENTER, Rig

pytestmark = pytest.mark.slow

LIMIT = 12
SILENT = 8.0
"""Replaces SILENT_SECONDS, so that the tests wait less."""
SYNC = 6.0
"""Replaces SYNC_SECONDS, for the same reason."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the limits that are constants of the product."""
    monkeypatch.setattr(guardian, "SILENT_SECONDS", SILENT)
    monkeypatch.setattr(gang_state, "SYNC_SECONDS", SYNC)


def bought(rig: Rig, namespace: str, folder: Path, kind: str, most: int = 4) -> Bench:
    """Return an executor with a pool of at most `most` machines that boot at once."""
    slow(rig, 0)
    bench = Bench(rig, namespace, folder, BOUGHT, half_alive=LIMIT, pool={"kind": kind, "max_nodes": most})
    if kind == "dynamic":
        bench.cluster.apply(NODE_POOL, manifest(dynamic_pool(bench.settings, BOUGHT)))
    return bench


def slow(rig: Rig, seconds: int) -> None:
    """Set the time that a machine needs from its launch to its node."""
    named = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}}
    rig.apply(named | {"spec": {"nodeRegistrationDelay": f"{seconds}s"}})


def whole(status: JobStatus) -> bool:
    """Return whether all pods of the gang run."""
    return status.state is JobState.RUNNING


def gone(status: JobStatus) -> bool:
    """Return whether the job has ended."""
    return status.state is JobState.ENDED


def claims(rig: Rig) -> set[str]:
    """Return the names of the NodeClaims that are not being deleted."""
    found = rig.api.items(f"{KARPENTER}/nodeclaims")
    return {claim["metadata"]["name"] for claim in found if "deletionTimestamp" not in claim["metadata"]}


def nodes(rig: Rig) -> int:
    """Return the number of nodes of the cluster."""
    return len(rig.api.items("/api/v1/nodes"))


def two_idle_nodes(bench: Bench) -> None:
    """Leave two idle nodes of the pool: run a gang of two pods and cancel it."""
    first = bench.spec(nodes=2, plan="b")
    bench.executor.submit(first, 1)
    bench.until(first, whole)
    bench.executor.cancel(first.name)
    bench.until(first, gone)
    until(lambda: not bench.rig.pods(bench.namespace), 60, "the end of the first gang")  # garbage collection discovers Jobs late
    assert nodes(bench.rig) == 2


def states(bench: Bench) -> set[GangState]:
    """Return the states of the gangs as a new guardian sees them."""
    return {observation.state for observation in bench.restarted().guardian.observe_gangs()}


def test_a_half_present_gang_stays_so_until_the_guardian_gives_its_idle_nodes_back(
    karpenter_rig: Rig, karpenter_namespace: str, tmp_path: Path
) -> None:
    bench = bought(karpenter_rig, karpenter_namespace, tmp_path, "dynamic")
    two_idle_nodes(bench)
    idle, spec = claims(bench.rig), bench.spec(nodes=4)
    bench.executor.submit(spec, 1)  # without observations, so the guardian does not act
    until(lambda: states(bench) == {GangState.HALF_PRESENT}, 20, "the gang to be half present")
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        assert bench.rig.pods(bench.namespace, "Running") == []
        assert claims(bench.rig) == idle, "the autoscaler must not launch machines"
        time.sleep(0.5)
    bench.until(spec, whole, LIMIT + 20)
    assert any("released 2 idle nodes" in words for words in bench.reports), bench.reports
    assert not idle & claims(bench.rig)
    assert len({pod["spec"]["nodeName"] for pod in bench.rig.pods(bench.namespace, "Running")}) == 4
    assert bench.executor.meter(spec.name).preemptions == 0


def test_a_node_with_somebody_elses_pod_is_not_given_back(karpenter_rig: Rig, karpenter_namespace: str, tmp_path: Path) -> None:
    bench = bought(karpenter_rig, karpenter_namespace, tmp_path, "dynamic")
    two_idle_nodes(bench)
    taken = sorted(node["metadata"]["name"] for node in bench.rig.api.items("/api/v1/nodes"))[0]
    container = {"name": "other", "image": "pretended", "resources": {"requests": {"cpu": "1"}}}
    pod = {"metadata": {"name": "other"}, "spec": {"nodeName": taken, "containers": [container]}}
    bench.rig.api.call("POST", f"/api/v1/namespaces/{bench.namespace}/pods", pod)
    spec = bench.spec(nodes=4)
    bench.executor.submit(spec, 1)
    bench.until(spec, lambda _: bool(bench.reports), LIMIT + 20)
    assert "released 1 idle nodes" in bench.reports[0]
    assert bench.rig.api.get(f"/api/v1/nodes/{taken}") is not None
    assert bench.rig.api.get(f"/api/v1/namespaces/{bench.namespace}/pods/other")["status"]["phase"] == "Running"


def test_machines_on_their_way_are_waited_for_longer_than_the_limit(karpenter_rig: Rig, karpenter_namespace: str, tmp_path: Path) -> None:
    bench = bought(karpenter_rig, karpenter_namespace, tmp_path, "static")
    spec = bench.spec(nodes=3)
    bench.executor.submit(spec, 1)
    bench.until(spec, whole)
    rest = claims(bench.rig)
    slow(bench.rig, 2 * LIMIT)
    lost = sorted(rest)[0]
    bench.rig.api.call("DELETE", f"{KARPENTER}/nodeclaims/{lost}")
    until(lambda: states(bench) & {GangState.WAITING}, 20, "the gang to be waiting")
    status = bench.until(spec, lambda status: status.incarnation == 2 and whole(status), 3 * LIMIT + 20)
    assert status.incarnation == 2
    assert rest - {lost} <= claims(bench.rig), "the other machines must be kept"
    assert bench.reports == []


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_machines_of_a_pool_cost_from_their_launch_though_nothing_is_bound(
    karpenter_rig: Rig, karpenter_namespace: str, tmp_path: Path, kind: str
) -> None:
    bench = bought(karpenter_rig, karpenter_namespace, tmp_path, kind)
    slow(bench.rig, 3600)
    spec = bench.spec(nodes=3)
    bench.executor.submit(spec, 1)
    bench.until(spec, lambda _: len(claims(bench.rig)) == 3)
    status = bench.until(spec, lambda status: status.usage is not None and status.usage.nodes > 3, 30)
    assert status.state is JobState.PENDING
    assert {pod["spec"].get("nodeName") for pod in bench.rig.pods(bench.namespace)} <= {None}
    assert status.usage is not None
    assert status.usage.idle == pytest.approx(8 * status.usage.nodes)
    assert status.usage.cost > 0
    bench.executor.cancel(spec.name)
    bench.until(spec, gone)


def test_a_pool_that_nobody_took_away_is_metered_when_its_gang_ended_unseen(
    karpenter_rig: Rig, karpenter_namespace: str, tmp_path: Path
) -> None:
    bench = bought(karpenter_rig, karpenter_namespace, tmp_path, "static")
    spec = bench.spec(nodes=2)
    bench.executor.submit(spec, 1)
    bench.until(spec, lambda status: whole(status) and status.usage is not None and status.usage.started is not None)
    before = bench.executor.meter(spec.name)
    bench.end(spec, 1, "done")
    for pod in bench.rig.pods(bench.namespace):
        bench.rig.end_pod(bench.namespace, pod["metadata"]["name"], 0)
    until(lambda: bench.gang()["status"]["state"]["phase"] == "Completed", 30, "the end of the gang")
    time.sleep(5)  # without observations
    bench.executor = bench.restarted()
    assert bench.until(spec, gone).outcome is Outcome.DONE
    after = bench.executor.meter(spec.name)
    assert after.idle - before.idle >= 2 * 8 * 4, "machines cost until their pool is deleted"


def test_a_static_pool_of_a_name_whose_nodes_still_go_is_waited_for(karpenter_rig: Rig, karpenter_namespace: str, tmp_path: Path) -> None:
    bench = bought(karpenter_rig, karpenter_namespace, tmp_path, "static", most=2)
    spec = bench.spec(nodes=2)
    bench.executor.submit(spec, 1)
    bench.until(spec, whole)
    name = bench.gang()["metadata"]["name"]
    bench.executor.cancel(spec.name)
    until(lambda: bench.cluster.get(JOB, name, bench.namespace) is None, 20, "the deletion of the Job")
    bench.executor.submissions.change(spec.name, name, created=False)  # as after a crash before the creation of the Job was recorded
    waited = ""
    for _ in range(100):
        try:
            bench.executor.submit(spec, 1)  # a recorded submission without any job output is submitted again
            break
        except Retryable as error:
            waited = str(error)
            time.sleep(0.2)
    assert "an earlier pool" in waited
    bench.until(spec, whole)
    assert len(claims(bench.rig)) == 2


def test_a_process_that_falls_silent_restarts_its_gang(rig: Rig, namespace: str, tmp_path: Path) -> None:
    bench = Bench(rig, namespace, tmp_path, half_alive=LIMIT)
    rig.fake_nodes(2)
    spec = bench.spec(nodes=2)
    bench.executor.submit(spec, 1)
    bench.until(spec, whole)
    beats = 0

    def beat(status: JobStatus) -> bool:
        nonlocal beats
        beats += 1
        for who in (0, 1) if beats < 10 or status.incarnation > 1 else (0,):
            path = bench.executor.folders.run(spec) / f"i{max(status.incarnation, 1)}" / beat_file(who)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(beats))
        return status.incarnation == 2 and whole(status)

    bench.until(spec, beat, SILENT + LIMIT + 20)
    assert ["sends no heartbeat" in words for words in bench.reports] == [True], bench.reports
    assert "i1/beat-1" in bench.reports[0]
    assert bench.gang()["status"]["retryCount"] == 1
    end = time.monotonic() + 5
    bench.until(spec, lambda status: beat(status) and time.monotonic() > end, 20)
    assert len(bench.reports) == 1, "the guardian must not act on a gang whose processes all send heartbeats"


def test_a_process_that_never_beats_restarts_its_gang_though_its_pod_runs(
    rig: Rig, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = SILENT + 5
    monkeypatch.setattr(guardian, "START", start)
    bench = Bench(rig, namespace, tmp_path, half_alive=LIMIT)
    rig.fake_nodes(2)
    spec = bench.spec(nodes=2)
    bench.executor.submit(spec, 1)
    bench.until(spec, whole)
    beats, began = 0, time.monotonic()

    def beat(status: JobStatus) -> bool:
        nonlocal beats
        beats += 1
        for who in (0, 1) if status.incarnation > 1 else (1,):
            path = bench.executor.folders.run(spec) / f"i{max(status.incarnation, 1)}" / beat_file(who)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(beats))
        return status.incarnation == 2 and whole(status)

    bench.until(spec, beat, start + LIMIT + 30)
    assert time.monotonic() - began > start, "the gang must not be restarted before the start limit"
    assert ["i1/beat-0 sends no heartbeat" in words for words in bench.reports] == [True], bench.reports
    assert bench.executor.meter(spec.name).lost > 0


def test_pods_that_the_controller_forgot_are_requested(rig: Rig, namespace: str, tmp_path: Path) -> None:
    """The controller's first view of a replaced PodGroup is already the admitted one, as after an outage of the API server."""
    bench = Bench(rig, namespace, tmp_path)
    rig.fake_nodes(2)
    groups = f"/apis/scheduling.volcano.sh/v1beta1/namespaces/{namespace}/podgroups"
    spec = bench.spec(nodes=2)
    rig.processes.tell("vc-scheduler", signal.SIGSTOP)
    try:
        bench.executor.submit(spec, 1)
        until(lambda: rig.api.items(groups), 20, "the PodGroup")
        (group,) = rig.api.items(groups)
        rig.api.call("DELETE", f"{groups}/{group['metadata']['name']}")
        kept = {key: group["metadata"][key] for key in ("name", "annotations", "labels", "ownerReferences") if key in group["metadata"]}
        rig.api.call("POST", groups, group | {"metadata": kept, "status": {"phase": "Inqueue"}})
        end = time.monotonic() + SYNC / 2
        while time.monotonic() < end:
            assert rig.pods(namespace) == [], "the controller must not create the pods by itself"
            time.sleep(0.5)
    finally:
        rig.processes.tell("vc-scheduler", signal.SIGCONT)
    bench.until(spec, whole, SYNC + 20)
    assert ["requested the pods of" in words for words in bench.reports] == [True], bench.reports
    assert rig.api.items(f"/apis/bus.volcano.sh/v1alpha1/namespaces/{namespace}/commands") == []


def test_a_gang_that_waits_for_its_admission_is_left_alone(rig: Rig, namespace: str, tmp_path: Path) -> None:
    bench = Bench(rig, namespace, tmp_path)
    spec = bench.spec(nodes=2)
    rig.processes.tell("vc-scheduler", signal.SIGSTOP)
    try:
        bench.executor.submit(spec, 1)
        end = time.monotonic() + SYNC + 5
        bench.until(spec, lambda _: time.monotonic() > end, SYNC + 20)
        assert bench.reports == []
        assert rig.api.items(f"/apis/bus.volcano.sh/v1alpha1/namespaces/{namespace}/commands") == []
    finally:
        rig.processes.tell("vc-scheduler", signal.SIGCONT)
    bench.executor.cancel(spec.name)


def test_a_gang_submitted_right_after_an_outage_starts(rig: Rig, namespace: str, tmp_path: Path) -> None:
    bench = Bench(rig, namespace, tmp_path)
    rig.fake_nodes(2)
    rig.kill("apiserver")
    until(lambda: not rig.api.ready(), 20, "the outage")
    rig.restart("apiserver")
    spec = bench.spec(nodes=2)
    bench.executor.submit(spec, 1)
    bench.until(spec, whole, 120)


def test_a_gang_that_does_not_become_whole_again_is_given_up(rig: Rig, namespace: str, tmp_path: Path) -> None:
    bench = Bench(rig, namespace, tmp_path, half_alive=LIMIT, pending=LIMIT)
    lost, _ = rig.fake_nodes(2)
    spec = bench.spec(nodes=2)
    bench.executor.submit(spec, 1)
    bench.until(spec, whole)
    rig.delete_nodes(lost)
    status = bench.until(spec, gone, 2 * LIMIT + 20)
    assert status.outcome is Outcome.LOST
    assert "not whole again" in status.reason
    until(lambda: not rig.pods(namespace), 30, "the end of the remaining pods")
