"""Contract tests of the gang executor with a bucket: another pod with an empty volume continues what the former one began.

The contract of all executors is tested with this bench in `test_executor.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.ids import checkpoint_name
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobState
from ratchet.contracts.schema import stamped
from ratchet.flows.ledger.postgres_store import PostgresDatabase
from ratchet.k8s.api.client import JOB
from ratchet.k8s.gangs import reconciler
from tests.contract.executor_benches import running
from tests.contract.lost_volume import LossBench
from tests.s3 import S3

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(tmp_path: Path, s3: S3, postgres_database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[LossBench]:
    """A bench that loses its volume only when the test says so."""
    monkeypatch.setattr(reconciler, "ROUND_SECONDS", 0.0)
    bench = LossBench(tmp_path, s3, postgres_database)
    bench.keeps = True
    yield bench
    bench.close()


def replace_pod(bench: LossBench) -> None:
    """Let another pod of the service with an empty volume take over."""
    bench.lose()
    bench.executor = bench.restarted()


def test_a_running_gang_goes_on_and_is_not_created_twice(bench: LossBench) -> None:
    spec = bench.spec("stays")
    bench.executor.submit(spec, 1)
    bench.until(spec.name, running)
    events, installation = bench.executor.events(spec.name), bench.executor.submissions.installation
    replace_pod(bench)
    assert bench.executor.live() == [spec.name]
    assert running(bench.executor.observe(spec.name))
    bench.executor.submit(spec, 1)
    assert bench.executor.events(spec.name) == events
    assert bench.executor.submissions.installation == installation
    assert [write for write in bench.cluster.writes if write.startswith("create jobs")] == [f"create jobs {bench.gang(spec)}"]
    with pytest.raises(Permanent, match="different job or spec"):
        bench.executor.submit(spec.model_copy(update={"plan_json": '{"other": 1}'}), 1)
    with pytest.raises(Retryable, match="is not finished"):
        bench.executor.submit(spec, 2)


def test_meters_and_caps_count_what_the_former_pod_has_counted(bench: LossBench) -> None:
    spec = bench.spec("stays")
    bench.executor.submit(spec, 1)
    bench.until(spec.name, running)
    bench.executor.submissions.measure(spec.name, lambda meter: meter.add(3600.0, 8, used=100.0))
    cost = bench.executor.meter(spec.name).cost
    bench.settings = bench.settings.model_copy(update={"cap_run": 50.0})
    replace_pod(bench)
    assert bench.executor.meter(spec.name).cost == cost >= 100.0
    bench.until(spec.name, lambda _: bench.cluster.names(JOB) == [])
    assert "reached its cap" in bench.until(spec.name).reason
    replace_pod(bench)
    status = bench.executor.observe(spec.name)
    assert (status.outcome, "reached its cap" in status.reason) == (Outcome.PERMANENT, True), "the reason of the stop is kept"
    assert status.usage is not None
    assert status.usage.cost >= 100.0


@pytest.mark.parametrize("stored", [False, True], ids=["before its result is stored", "after its result is stored"])
@pytest.mark.parametrize(("behaviour", "outcome"), [("done", Outcome.DONE), ("failed", Outcome.FAILED)])
def test_a_result_that_the_ledger_does_not_have_is_read(bench: LossBench, behaviour: str, outcome: Outcome, stored: bool) -> None:
    spec = bench.spec(behaviour)
    bench.executor.submit(spec, 1)
    status = bench.run_to_its_end(spec.name)
    if stored:
        status = bench.until(spec.name)
    replace_pod(bench)
    if stored:
        assert bench.executor.observe(spec.name) == status
    assert bench.until(spec.name).outcome is outcome
    assert [event.kind for event in bench.executor.events(spec.name)] == ["started"]


def test_no_result_is_guessed_while_the_bucket_is_unreachable(bench: LossBench) -> None:
    spec = bench.spec("failed")
    bench.executor.submit(spec, 1)
    status = bench.until(spec.name)
    replace_pod(bench)
    bench.s3.stop()
    for _ in range(2):
        with pytest.raises(Retryable):
            bench.executor.observe(spec.name)
        with pytest.raises(Retryable):
            bench.executor.events(spec.name)
    bench.s3.start()
    replace_pod(bench)  # the former one waits some seconds before it asks the bucket again
    assert bench.executor.observe(spec.name) == status


def test_a_model_is_taken_over_by_another_pod(bench: LossBench) -> None:
    spec = bench.spec("done")
    bench.executor.submit(spec, 1)
    published = bench.publish(spec)
    bench.run_to_its_end(spec.name)
    replace_pod(bench)
    assert bench.until(spec.name).outcome is Outcome.DONE
    replace_pod(bench)
    assert bench.artifacts.resolve(checkpoint_name(spec.plan, spec.attempt, 1)) == published
    assert bench.artifacts.get(published)


def test_a_resume_point_is_not_read_from_the_bucket_and_can_be_pinned_again(bench: LossBench) -> None:
    spec = bench.spec("stays")
    bench.executor.submit(spec, 1)
    bench.until(spec.name, running)
    accepted, other = bench.save(spec, 2), bench.save(spec, 3)
    bench.executor.pin(spec, accepted)
    assert bench.executor.pinned(spec) == accepted
    replace_pod(bench)
    bench.bucket.put(bench.key(spec, "resume.json"), stamped(other))  # a pod can write this
    assert bench.executor.pinned(spec) is None
    bench.executor.pin(spec, accepted)
    assert bench.executor.pinned(spec) == accepted
    assert bench.bucket.get(bench.key(spec, "resume.json")) == stamped(accepted)
    assert bench.executor.observe(spec.name).step == 4, "what the job reported was downloaded before the folder counted as complete"


def test_a_gang_that_was_recorded_before_the_loss_is_created_once(bench: LossBench, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = bench.spec("stays")

    def die(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench.executor.objects, "create", die)
    with pytest.raises(KeyboardInterrupt):
        bench.executor.submit(spec, 1)
    replace_pod(bench)
    assert bench.executor.observe(spec.name).state is JobState.ABSENT
    bench.executor.submit(spec, 1)
    assert bench.cluster.names(JOB) == [bench.gang(spec)]
    assert len(bench.executor.submissions.of(spec.name)) == 1
