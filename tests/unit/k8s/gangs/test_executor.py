"""Tests of the Kubernetes executor on an API server in memory: crashes, caps, outages of the bucket, and what is left of a gang."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import checkpoint_name, digest
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobSpec, JobState, JobStatus
from ratchet.k8s.api.client import JOB, NETWORK_POLICY, NODE_POOL, POD
from ratchet.k8s.gangs import reconciler
from ratchet.k8s.gangs.executor import KubernetesExecutor
from ratchet.k8s.profiles.profile import Profile
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.documents import Documents, FolderDocuments
from tests.drops import offer
from tests.memory_cluster import MemoryCluster
from tests.unit.k8s.samples import PLAN, settings

PRICED = Profile(
    provider="any", gpus=0, cpu="1", memory="1Gi", shm="64Mi", instance_types=("p5en.48xlarge",), node_class="any.example/Class/default"
)


class Crash(BaseException):
    """Simulates the sudden end of the process."""


class StruckDocuments(FolderDocuments):
    """Documents that call `strike` before and after each change."""

    def __init__(self, folder: Path, strike: Callable[[str], None]) -> None:
        super().__init__(folder)
        self.strike = strike

    def change(self, name: str, changed: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Replace a document."""
        self.strike(f"before {name}")
        content = super().change(name, changed)
        self.strike(f"after {name}")
        return content


class Away:
    """A bucket that is unreachable."""

    def pull(self, run: Path, fresh: bool = False) -> None:
        """Raise Retryable, as after a timeout."""
        raise Retryable("the bucket does not answer")


class Site:
    """An executor on an API server in memory, with one job. Each restart of the service makes a new executor."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder, self.cluster = folder, MemoryCluster()
        self.settings = settings(volume={"mount": str(folder), "host_path": True}, **changes)
        self.spec = JobSpec(
            name="rt-0123456789abcdef-a1",
            plan=PLAN,
            attempt=1,
            command=("true",),
            environment={"RATCHET_NODES": "2"},
            inputs={},
            plan_json="{}",
            grace_seconds=5,
            nodes=2,
        )
        self.documents: Documents = FolderDocuments(folder / "jobs")
        self.restart()

    def restart(self) -> None:
        """Replace the executor by a new one on the same folders."""
        folders = self.folder / "jobs", FolderArtifacts(self.folder / "artifacts")
        self.executor = KubernetesExecutor(self.cluster, "line", self.settings, PRICED, *folders, max_restarts=5, documents=self.documents)

    @property
    def gang(self) -> str:
        """Name of the newest recorded gang."""
        return self.executor.submissions.of(self.spec.name)[-1].name

    def begin(self, incarnation: int = 1) -> None:
        """Submit the job, and run its gang until a reconciliation has seen it."""
        self.executor.submit(self.spec, incarnation)
        self.cluster.start(self.gang)
        self.until(lambda status: status.state is JobState.RUNNING)

    def report(self, outcome: str, incarnation: int = 1) -> None:
        """Write the job's result file."""
        folder = self.executor.folders.run(self.spec) / f"i{incarnation}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ended.json").write_text(json.dumps({"outcome": outcome, "reason": "reported by the test"}))

    def until(self, holds: Callable[[JobStatus], bool]) -> JobStatus:
        """Reconcile and observe until the condition holds. Informers hear of a change a moment later."""
        limit = time.monotonic() + 30
        while time.monotonic() < limit:
            self.executor.reconcile(self.spec.name)
            status = self.executor.observe(self.spec.name)
            if holds(status):
                return status
            time.sleep(0.002)
        raise AssertionError(f"still {status}")

    def ended(self) -> JobStatus:
        """Return the status after the result is stored."""
        return self.until(lambda status: status.outcome is not None)

    def nothing_left(self) -> None:
        """Assert that no object of the gang is left, and that nothing is left to do."""
        self.cluster.end_pods()
        self.until(lambda _: self.executor.live() == [])
        assert [self.cluster.names(kind) for kind in (JOB, POD, NODE_POOL, NETWORK_POLICY)] == [[], [], [], []]


@pytest.fixture(autouse=True)
def _fresh_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every reconciliation run a round of the guardian."""
    monkeypatch.setattr(reconciler, "ROUND_SECONDS", 0.0)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Yield an executor with a shared volume and a static pool."""
    made = Site(tmp_path, pool={"kind": "static", "max_nodes": 4})
    yield made
    made.cluster.leave()


@pytest.mark.parametrize("damaged", [False, True])
def test_the_checkpoint_of_a_gang_is_taken_over_before_its_outcome(site: Site, damaged: bool) -> None:
    site.begin()
    run, store = site.executor.folders.run(site.spec), FolderArtifacts(site.folder / "artifacts")
    offered = offer(run, site.spec)
    drop = FolderArtifacts(run / "drop")
    drop.bind("cycle/line/0001/evaluate", drop.put(b"forged"))
    if damaged:
        drop.path(digest(b"weights")).write_bytes(b"WEIGHTS")
    site.report("done")
    site.cluster.finish(site.gang, 0)
    reports: list[str] = []
    site.executor.reconciler.collector.report = reports.append
    assert site.ended().outcome is Outcome.DONE
    assert store.resolve(checkpoint_name(PLAN, 1, 1)) == (None if damaged else offered)
    assert store.resolve("cycle/line/0001/evaluate") is None
    assert (run / "drop").exists() is damaged, "a refused drop folder stays for inspection"
    assert any("another digest" in report for report in reports) is damaged


def story(site: Site, end: str) -> JobStatus:
    """Run one gang to its end and until nothing is left. Continue with a new executor after each crash."""
    began = False
    for _ in range(10):
        try:
            site.executor.submit(site.spec, 1)
            if not began and site.gang in site.cluster.names(JOB):
                site.cluster.start(site.gang)
                began = True
            site.until(lambda status: status.state is JobState.RUNNING or status.outcome is not None)
            if end == "cap":
                site.executor.reconciler.settings = site.settings.model_copy(update={"cap_run": 0.0})
            elif site.gang in site.cluster.names(JOB):
                if end == "done":
                    site.report("done")
                site.cluster.finish(site.gang, 0 if end == "done" else 1)
            site.until(lambda _: site.gang not in site.cluster.names(JOB))
            site.cluster.end_pods()
            status = site.ended()
            site.nothing_left()
        except Crash:
            site.restart()
        else:
            return status
    raise AssertionError("the gang has not ended")


def strikes(site: Site, number: int) -> list[str]:
    """Crash at write `number` of the executor, counted from 0: before or after a write of a record, or of an object of the cluster."""
    seen: list[str] = []

    def strike(where: str) -> None:
        seen.append(where)
        if len(seen) == number + 1:
            raise Crash(where)

    site.documents = StruckDocuments(site.folder / "jobs", strike)
    site.restart()
    site.cluster.faults = strike
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("end", ["done", "lost", "cap"])
def test_a_crash_at_any_write_loses_and_repeats_nothing(tmp_path: Path, end: str) -> None:
    number, calm = -1, None
    while True:
        site = Site(tmp_path / str(number), pool={"kind": "static", "max_nodes": 4})
        seen = strikes(site, number)
        status = story(site, end)
        site.cluster.leave()
        reason = status.reason.partition(";")[0].partition(",")[0]  # without the cost, and without what the pod's informer may hear later
        result = (status.outcome, status.incarnation, reason)
        calm = calm or result
        assert result == calm, f"crashed {seen[number]}, write {number}"
        assert site.cluster.writes.count(f"create jobs {site.gang}") == 1, f"crashed {seen[number]}"
        number += 1
        if number >= len(seen):
            break
    assert number > 20


def test_a_stop_that_a_crash_interrupted_is_carried_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.begin()
    site.executor.reconciler.settings = site.settings.model_copy(update={"cap_run": 0.0})

    def crash(where: str) -> None:
        raise Crash(where)

    site.cluster.faults = crash
    with pytest.raises(Crash):
        site.executor.reconcile(site.spec.name)
    assert "cap" in site.executor.submissions.of(site.spec.name)[-1].stop
    site.cluster.faults = lambda _where: None
    site.restart()  # with the settings without a cap: the recorded stop counts
    site.until(lambda _: site.gang not in site.cluster.names(JOB))
    site.cluster.end_pods()
    assert site.ended().outcome is Outcome.PERMANENT


def test_the_first_stop_of_a_gang_is_never_changed(site: Site) -> None:
    site.begin()
    site.executor.submissions.stop(site.spec.name, site.gang, "the cap", Outcome.PERMANENT)
    site.executor.submissions.stop(site.spec.name, site.gang, "not whole", Outcome.LOST)
    submission = site.executor.submissions.of(site.spec.name)[-1]
    assert (submission.stop, submission.outcome) == ("the cap", Outcome.PERMANENT)


def test_the_network_policy_stays_until_the_pods_are_gone(site: Site) -> None:
    site.begin()
    assert site.executor.cancel(site.spec.name)
    assert site.until(lambda status: status.reason == "its pods are terminating").state is JobState.RUNNING
    assert site.cluster.names(NETWORK_POLICY) == [site.gang]
    site.cluster.end_pods()
    site.ended()
    site.nothing_left()


def test_an_ended_gang_is_not_cancelled_before_its_result_is_stored(site: Site) -> None:
    site.begin()
    site.cluster.finish(site.gang, 1)
    assert not site.executor.cancel(site.spec.name)
    assert site.gang in site.cluster.names(JOB)
    assert "Job ended without a result file" in site.ended().reason


def test_a_recorded_gang_that_was_never_created_does_not_end_the_job(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.begin()
    site.cluster.finish(site.gang, 1)
    first = site.ended()
    create = site.executor.objects.create

    def crash(_: object) -> None:
        raise Crash

    monkeypatch.setattr(site.executor.objects, "create", crash)
    with pytest.raises(Crash):
        site.executor.submit(site.spec, 2)
    monkeypatch.setattr(site.executor.objects, "create", create)
    site.executor.reconcile(site.spec.name)
    assert site.executor.observe(site.spec.name) == first
    site.begin(2)
    assert site.executor.observe(site.spec.name).incarnation == 2


def test_a_gang_that_the_records_do_not_know_is_listed_cancelled_and_collected(site: Site) -> None:
    site.begin()
    (site.folder / "jobs" / "cluster" / f"{site.spec.name}.json").unlink()
    assert site.executor.live() == [site.spec.name]
    assert site.executor.observe(site.spec.name).state is JobState.ABSENT
    assert site.executor.cancel(site.spec.name)
    site.cluster.end_pods()
    site.executor.reconcile(site.spec.name)
    assert site.executor.live() == []
    assert site.cluster.names(NETWORK_POLICY) == []


def test_caps_apply_while_the_bucket_is_unreachable(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.begin()
    monkeypatch.setattr(site.executor.reconciler, "remote", Away())
    site.executor.reconciler.settings = site.settings.model_copy(update={"cap_run": 0.0})
    site.executor.reconcile(site.spec.name)
    assert site.cluster.names(JOB) == []


def test_machines_are_released_while_the_bucket_is_unreachable_and_the_result_is_stored_later(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.begin()
    site.report("done")
    site.cluster.finish(site.gang)
    monkeypatch.setattr(site.executor.reconciler.collector, "remote", Away())
    with pytest.raises(Retryable, match="bucket"):
        site.ended()
    site.cluster.end_pods()
    assert (site.cluster.names(JOB), site.cluster.names(NODE_POOL)) == ([], [])
    status = site.executor.observe(site.spec.name)
    assert (status.state, status.outcome) == (JobState.ENDED, None)
    assert site.executor.live() == [site.spec.name]
    monkeypatch.setattr(site.executor.reconciler.collector, "remote", None)
    assert site.ended().outcome is Outcome.DONE
    site.nothing_left()


def test_a_successor_is_not_submitted_before_the_result_is_stored(site: Site) -> None:
    site.begin()
    site.cluster.finish(site.gang, 1)
    with pytest.raises(Retryable, match="is not finished"):
        site.executor.submit(site.spec, 2)
    site.ended()
    site.begin(2)


@pytest.mark.parametrize("ever_whole", [False, True])
def test_the_reason_says_whether_the_gang_was_ever_whole(site: Site, ever_whole: bool) -> None:
    if ever_whole:
        site.begin()
        lost = site.cluster.pods(site.gang)[0]["metadata"]
        site.cluster.delete(POD, lost["name"], lost["namespace"])
    else:
        site.executor.submit(site.spec, 1)
    site.executor.reconciler.settings = site.settings.model_copy(update={"pending": 0.0})
    site.until(lambda _: site.gang not in site.cluster.names(JOB))
    site.cluster.end_pods()
    assert ("not whole again within" in site.ended().reason) is ever_whole
