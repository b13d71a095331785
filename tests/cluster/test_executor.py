"""Tests of Ratchet's executor against a real API server and Volcano, with gangs on simulated nodes."""

from __future__ import annotations

import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobState, JobStatus
from ratchet.k8s.api.client import JOB, POD, AlreadyExists, Expired, ObjectConflict
from ratchet.k8s.api.informer import Informer
from tests.cluster.bench import Bench
from tests.cluster.rig.api import until
from tests.cluster.rig.cluster import Rig

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(rig: Rig, namespace: str, tmp_path: Path) -> Bench:
    """An executor in a new namespace."""
    return Bench(rig, namespace, tmp_path)


def running(status: JobStatus) -> bool:
    """Return whether the job is running."""
    return status.state is JobState.RUNNING


def metered(status: JobStatus) -> bool:
    """Return whether the job is running and the meter has counted the whole gang, which follows with the next reconciliation."""
    return running(status) and status.usage is not None and status.usage.started is not None


def test_a_gang_binds_nothing_until_it_can_bind_all(bench: Bench) -> None:
    bench.rig.fake_nodes(2)
    spec = bench.spec(nodes=3)
    bench.executor.submit(spec, 1)
    for _ in range(10):
        assert bench.turn(spec).state is JobState.PENDING
        # Volcano creates the pods one after another, so any number of them may exist.
        assert not [pod for pod in bench.rig.pods(bench.namespace) if pod["spec"].get("nodeName")]
        time.sleep(0.3)
    bench.rig.fake_nodes(1)
    assert bench.until(spec, running, 20).incarnation == 1
    assert len({pod["spec"]["nodeName"] for pod in bench.rig.pods(bench.namespace, "Running")}) == 3


def test_a_second_submission_finds_the_first(bench: Bench) -> None:
    bench.rig.fake_nodes(2)
    spec = bench.spec(nodes=2)
    rivals = [threading.Thread(target=bench.restarted().submit, args=(spec, 1)) for _ in range(3)]
    for rival in rivals:
        rival.start()
    for rival in rivals:
        rival.join()
    bench.until(spec, running)
    name = bench.gang()["metadata"]["name"]
    bench.restarted().submit(spec, 1)
    assert bench.gang()["metadata"]["name"] == name


def test_an_evicted_pod_restarts_the_gang_whole_as_a_new_incarnation(bench: Bench) -> None:
    bench.rig.fake_nodes(3)
    spec = bench.spec(nodes=3)
    bench.executor.submit(spec, 1)
    bench.until(spec, running)
    point = bench.step(spec, 1, 10)
    bench.executor.pin(spec, point)
    before = {pod["metadata"]["uid"] for pod in bench.rig.pods(bench.namespace)}
    evict(bench, bench.rig.pods(bench.namespace)[0]["metadata"]["name"])
    status = bench.until(spec, lambda status: status.incarnation > 1 and running(status))
    assert not before & {pod["metadata"]["uid"] for pod in bench.rig.pods(bench.namespace, "Running")}
    bench.until(spec, lambda _: bench.executor.meter(spec.name).preemptions == 1)  # metered once a round, so it may follow the status
    bench.executor.submit(spec, status.incarnation)
    assert bench.gang()["status"]["retryCount"] == 1, "submitting the running incarnation again must not restart the gang"


@pytest.mark.parametrize(("code", "outcome"), [(0, Outcome.DONE), (1, Outcome.FAILED), (78, Outcome.PERMANENT)])
def test_a_gang_ends_as_its_words_say_and_leaves_nothing(bench: Bench, code: int, outcome: Outcome) -> None:
    bench.rig.fake_nodes(2)
    spec = bench.spec(nodes=2)
    bench.executor.submit(spec, 1)
    bench.until(spec, running)
    bench.end(spec, 1, outcome.value)
    for pod in bench.rig.pods(bench.namespace)[: None if code == 0 else 1]:  # one failed pod ends the whole gang
        bench.rig.end_pod(bench.namespace, pod["metadata"]["name"], code)
    status = bench.until(spec, lambda status: status.state is JobState.ENDED)
    assert (status.outcome, status.incarnation, status.reason) == (outcome, 1, "reported by the test")
    empty(bench)
    assert bench.restarted().observe(spec.name) == status, "the status must stay the same after the gang is gone"


def test_a_gang_that_vanishes_is_lost_and_its_next_incarnation_is_another_job(bench: Bench) -> None:
    bench.rig.fake_nodes(2)
    spec = bench.spec(nodes=2)
    bench.executor.submit(spec, 1)
    bench.until(spec, running)
    first = bench.gang()["metadata"]["name"]
    bench.cluster.delete(JOB, first, bench.namespace)
    status = bench.until(spec, lambda status: status.state is JobState.ENDED)
    assert status.outcome is Outcome.LOST
    bench.executor.submit(spec, 2)
    assert bench.until(spec, running).incarnation == 2
    assert bench.gang()["metadata"]["name"] != first


def test_a_crash_between_note_and_submission_submits_what_was_noted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.rig.fake_nodes(2)
    spec = bench.spec(nodes=2)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench.executor.objects, "create", die)
    with pytest.raises(KeyboardInterrupt):
        bench.executor.submit(spec, 1)
    bench.executor = bench.restarted()
    bench.executor.submit(spec, 1)
    assert bench.until(spec, running).incarnation == 1
    assert bench.gang()


def test_a_cancelled_gang_goes_with_all_that_is_its(bench: Bench) -> None:
    bench.rig.fake_nodes(2)
    spec = bench.spec(nodes=2)
    bench.executor.submit(spec, 1)
    bench.until(spec, running)
    assert bench.executor.live() == [spec.name]
    bench.executor.cancel(spec.name)
    bench.executor.cancel(spec.name)
    assert bench.until(spec, lambda status: status.state is JobState.ENDED).outcome is Outcome.LOST
    assert bench.rig.api.items(f"/apis/batch.volcano.sh/v1alpha1/namespaces/{bench.namespace}/jobs") == []
    empty(bench)


def test_what_ends_while_we_are_away_is_metered_to_its_end_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.rig.fake_nodes(2)
    spec = bench.spec(nodes=2)
    bench.executor.submit(spec, 1)
    bench.until(spec, metered)
    before = bench.executor.meter(spec.name)
    bench.executor = bench.restarted()  # no observation until the gang has ended
    time.sleep(3)
    bench.end(spec, 1, "done")
    for pod in bench.rig.pods(bench.namespace):
        bench.rig.end_pod(bench.namespace, pod["metadata"]["name"], 0)
    until(lambda: bench.gang()["status"]["state"]["phase"] == "Completed", 30, "the end of the gang")
    ended = datetime.fromisoformat(bench.gang()["status"]["state"]["lastTransitionTime"]).timestamp()
    time.sleep(3)

    def die(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench.executor.objects, "delete", die)
    with pytest.raises(KeyboardInterrupt):  # after the meter is written and before the submission record is
        bench.until(spec, lambda status: status.state is JobState.ENDED)
    once = bench.executor.meter(spec.name)
    bench.executor = bench.restarted()
    assert bench.until(spec, lambda status: status.state is JobState.ENDED).outcome is Outcome.DONE
    after = bench.executor.meter(spec.name)
    assert (after.used, after.nodes, after.idle) == (once.used, once.nodes, once.idle)
    assert 2 * 2 <= after.nodes - before.nodes <= 2 * (ended - before.at) + 4, "tolerance of 4: the API's times are whole seconds"


def test_a_gang_whose_job_is_gone_is_metered_to_its_last_sign_of_life(bench: Bench) -> None:
    bench.rig.fake_nodes(2)
    spec = bench.spec(nodes=2)
    bench.executor.submit(spec, 1)
    bench.until(spec, metered)
    before = bench.executor.meter(spec.name)
    bench.executor = bench.restarted()
    time.sleep(2)
    bench.tell(spec, 1, "progress", 3)
    alive = time.time()
    bench.cluster.delete(JOB, bench.gang()["metadata"]["name"], bench.namespace)
    time.sleep(2)
    status = bench.until(spec, lambda status: status.state is JobState.ENDED)
    assert status.usage is not None
    assert abs(status.usage.used - before.used - 8 * 2 * (alive - before.at)) < 8 * 2 * 1.5
    assert bench.restarted().observe(spec.name).usage == status.usage


def test_what_killed_a_gang_is_told_by_whoever_asks_later(bench: Bench) -> None:
    bench.rig.fake_nodes(2)
    spec = bench.spec(nodes=2)
    bench.executor.submit(spec, 1)
    bench.until(spec, running)
    dead = bench.rig.pods(bench.namespace)[0]["metadata"]["name"]
    bench.rig.end_pod(bench.namespace, dead, 137)
    until(lambda: bench.gang()["status"].get("retryCount") == 1, 30, "the restart")
    name = bench.gang()["metadata"]["name"]

    def told() -> str:
        bench.executor.guard()  # as the guardian loop of the service does
        return bench.executor.submissions.death(name)[1]

    until(told, 10, "the record of the pod's death")
    bench.executor = bench.restarted()  # a process that has not observed the death
    status = bench.until(spec, lambda status: running(status) and status.incarnation == 2)
    assert status.reason == f"{dead}: exit code 137"


def test_one_gang_waits_at_a_time(bench: Bench) -> None:
    bench.rig.fake_nodes(1)
    first, second = bench.spec(nodes=2), bench.spec(nodes=1, plan="b")
    bench.executor.submit(first, 1)
    with pytest.raises(Retryable, match="waits for its nodes"):
        bench.executor.submit(second, 1)
    bench.rig.fake_nodes(2)
    bench.until(first, running)
    bench.executor.submit(second, 1)
    bench.until(second, running)


def test_a_template_that_the_server_would_refuse_is_refused_before_it_hangs(bench: Bench) -> None:
    bench.profile = bench.profile.model_copy(update={"labels": {"not a label": "x"}})
    bench.executor = bench.restarted()
    with pytest.raises(Permanent, match="not a label"):
        bench.executor.submit(bench.spec(nodes=1), 1)
    assert bench.rig.api.items(f"/apis/batch.volcano.sh/v1alpha1/namespaces/{bench.namespace}/jobs") == []


def test_a_gang_half_alive_on_a_silent_node_is_restarted_within_the_limit(rig: Rig, namespace: str, tmp_path: Path) -> None:
    bench = Bench(rig, namespace, tmp_path, half_alive=10)
    quiet, *_ = rig.fake_nodes(3)
    spec = bench.spec(nodes=2)
    bench.executor.submit(spec, 1)
    bench.until(spec, running)
    if quiet not in {pod["spec"]["nodeName"] for pod in rig.pods(namespace)}:
        quiet = rig.pods(namespace)[0]["spec"]["nodeName"]
    rig.silence(quiet)
    began = time.monotonic()
    bench.until(spec, lambda status: status.incarnation > 1 and running(status), 90)
    assert quiet not in {pod["spec"]["nodeName"] for pod in rig.pods(namespace, "Running")}
    assert any("not ready" in words for words in bench.reports), bench.reports
    assert bench.executor.meter(spec.name).lost > 0
    assert time.monotonic() - began < 12 + 10 + 25, "grace period, half_alive limit and restart together took too long"


def test_a_gang_is_stopped_at_its_cap(rig: Rig, namespace: str, tmp_path: Path) -> None:
    bench = Bench(rig, namespace, tmp_path, cap_run=0.01, pool={"capacity": "spot"})
    rig.fake_nodes(2)
    spec = bench.spec(nodes=2)
    bench.executor.submit(spec, 1)
    status = bench.until(spec, lambda status: status.state is JobState.ENDED)
    assert status.outcome is Outcome.PERMANENT
    assert "cap" in status.reason
    empty(bench)


def test_a_cap_on_machines_without_a_price_is_refused(rig: Rig, namespace: str, tmp_path: Path) -> None:
    bench = Bench(rig, namespace, tmp_path, cap_run=5)
    bench.profile = bench.profile.model_copy(update={"instance_types": ("home-made",)})
    with pytest.raises(Permanent, match="price table has no price for home-made"):
        bench.restarted().submit(bench.spec(nodes=1), 1)


def test_an_outage_of_the_api_server_costs_nothing(bench: Bench) -> None:
    bench.rig.fake_nodes(2)
    spec = bench.spec(nodes=2)
    bench.executor.submit(spec, 1)
    bench.until(spec, running)
    bench.rig.kill("apiserver")
    time.sleep(1.1)
    with pytest.raises(Retryable):
        bench.executor.observe(spec.name)
    with pytest.raises(Retryable):
        bench.executor.reconcile(spec.name)
    with pytest.raises(Retryable):
        bench.executor.submit(bench.spec(nodes=1, plan="b"), 1)
    bench.rig.restart("apiserver")
    assert bench.until(spec, running).incarnation == 1


def test_an_informer_follows_through_restarts_and_expired_places(bench: Bench) -> None:
    informer = Informer(bench.cluster, JOB, bench.namespace, seconds=5)
    assert informer.objects() == []
    spec = bench.spec(nodes=1)
    bench.executor.submit(spec, 1)
    until(lambda: len(informer.objects()) == 1, 10, "the first job")
    bench.rig.kill("apiserver")
    until(lambda: _away(informer), 30, "the informer to notice the outage")
    bench.rig.restart("apiserver")
    until(lambda: not _away(informer), 30, "the informer to notice the end of the outage")
    informer._version = "1"  # the server answers 410 if this version is compacted, and replays otherwise; both must give the same objects
    bench.executor.cancel(spec.name)
    until(lambda: informer.objects() == [], 30, "the end of the job")
    informer.stop()


def test_a_place_that_has_expired_is_listed_again(bench: Bench) -> None:
    bench.rig.kill("apiserver")
    bench.rig.restart("apiserver")  # its watch cache starts empty, so older resource versions have expired
    with pytest.raises(Expired):
        list(bench.cluster.watch(JOB, "1", bench.namespace, seconds=2))
    informer = Informer(bench.cluster, JOB, bench.namespace, seconds=2)
    informer._version = "1"
    assert informer.objects() == []
    assert informer.lists == 1
    informer.stop()


def test_conflicts_that_pass_are_tried_again_and_a_name_that_is_taken_is_not(bench: Bench) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one", "namespace": bench.namespace, "finalizers": ["ratchet.dev/test"]}}
    pod["spec"] = {"containers": [{"name": "a", "image": "pretended"}]}
    made = bench.cluster.create(POD, pod)
    with pytest.raises(AlreadyExists):
        bench.cluster.create(POD, pod)
    with pytest.raises(ObjectConflict):
        bench.cluster.apply(POD, {**pod, "metadata": {**pod["metadata"], "resourceVersion": "1"}})
    bench.cluster.delete(POD, "one", bench.namespace, uid="somebody-else-s")
    assert "deletionTimestamp" not in bench.cluster.get(POD, "one", bench.namespace)["metadata"]
    bench.cluster.delete(POD, "one", bench.namespace, grace=0, uid=made["metadata"]["uid"])
    with pytest.raises(ObjectConflict, match="being deleted"):
        bench.cluster.create(POD, pod)
    bench.rig.api.patch(f"/api/v1/namespaces/{bench.namespace}/pods/one", {"metadata": {"finalizers": []}})


def test_etcd_dies_while_a_gang_is_submitted(bench: Bench) -> None:
    bench.rig.fake_nodes(2)
    spec = bench.spec(nodes=2)
    bench.rig.kill("etcd")
    with pytest.raises(Retryable):
        bench.executor.submit(spec, 1)
    bench.rig.restart("etcd")
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        try:
            bench.executor.submit(spec, 1)
            break
        except Retryable:
            time.sleep(1)
    bench.until(spec, running)
    assert bench.gang()


def test_what_a_gang_s_older_incarnation_writes_is_not_followed(bench: Bench) -> None:
    """A trainer behind a network split still writes for a while; its output must not affect the status."""
    bench.rig.fake_nodes(3)
    spec = bench.spec(nodes=2)
    bench.executor.submit(spec, 1)
    bench.until(spec, running)
    bench.tell(spec, 1, "progress", 10)
    evict(bench, bench.rig.pods(bench.namespace)[0]["metadata"]["name"])
    status = bench.until(spec, lambda status: status.incarnation > 1 and running(status))
    bench.tell(spec, status.incarnation, "progress", 11)
    bench.tell(spec, 1, "progress", 99)
    bench.end(spec, 1, "done", "written by an old incarnation")
    seen = bench.executor.observe(spec.name)
    assert (seen.state, seen.incarnation, seen.step) == (JobState.RUNNING, status.incarnation, 11)


def _away(informer: Informer) -> bool:
    try:
        informer.objects()
    except Retryable:
        return True
    return False


def evict(bench: Bench, pod: str) -> None:
    """Evict a pod through the API."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    bench.rig.api.call("POST", f"/api/v1/namespaces/{bench.namespace}/pods/{pod}/eviction", body)


def story(bench: Bench) -> str:
    """Return the objects and events that explain a failure."""
    return bench.rig.kubectl("get", "vcjob,podgroup,pods,events", "-n", bench.namespace, "-o", "wide", check=False)


def empty(bench: Bench) -> None:
    """Assert that no object of the gang is left in the namespace after the executor has reconciled its live jobs."""
    # Garbage collection discovers new resource kinds only every 30 s, so it is slow on a new control plane.
    until(lambda: bench.rig.pods(bench.namespace) == [], 90, "the end of the pods", lambda: story(bench))
    until(bench.collected, 30, "the end of all objects", lambda: story(bench))
    for kind in (
        "/apis/batch.volcano.sh/v1alpha1/namespaces/{}/jobs",
        "/api/v1/namespaces/{}/pods",
        "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
        "/apis/scheduling.volcano.sh/v1beta1/namespaces/{}/podgroups",
    ):
        path = kind.format(bench.namespace)
        until(lambda path=path: bench.rig.api.items(path) == [], 30, f"the end of {path}")
