"""Contract tests for every executor. A new executor needs its own bench in `executor_benches.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import Permanent
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobState
from ratchet.contracts.ports import Executor
from tests.contract.executor_benches import FakeBench, GangBench, LocalBench, running
from tests.contract.lost_volume import LossBench
from tests.waiting import has_result

SLOW = [pytest.param(one, marks=pytest.mark.slow) for one in (LocalBench, LossBench)]


@pytest.fixture(params=[*SLOW, FakeBench, GangBench], ids=["local", "lost volume", "fake", "gang"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    further = ("s3", "postgres_database") if request.param is LossBench else ()
    bench = request.param(tmp_path, *map(request.getfixturevalue, further))
    yield bench
    bench.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[LocalBench]:
    """A bench with real processes, output and files, which the fake does not have."""
    bench = LocalBench(tmp_path)
    yield bench
    bench.close()


def test_unknown_job_is_absent(bench: Any) -> None:
    assert bench.executor.observe("rt-unknown-a1").state == JobState.ABSENT
    assert bench.executor.events("rt-unknown-a1") == []
    bench.executor.cancel("rt-unknown-a1")


@pytest.mark.slow
@pytest.mark.parametrize(("behaviour", "outcome"), [("done", Outcome.DONE), ("failed", Outcome.FAILED), ("silent", Outcome.LOST)])
def test_job_runs_and_ends(bench: Any, behaviour: str, outcome: Outcome) -> None:
    spec = bench.spec(behaviour)
    bench.executor.submit(spec, 1)
    assert bench.executor.observe(spec.name).state != JobState.ABSENT
    status = bench.until(spec.name)
    assert (status.outcome, status.incarnation) == (outcome, 1)
    assert bench.until(spec.name) == status, "an ended job keeps its status"


@pytest.mark.slow
def test_submit_is_idempotent(bench: Any) -> None:
    spec = bench.spec("done")
    for _ in range(3):
        bench.executor.submit(spec, 1)
    bench.until(spec.name)
    bench.executor.submit(spec, 1)
    bench.restarted().submit(spec, 1)
    assert bench.until(spec.name).incarnation == 1
    assert bench.starts(spec, 1) == 1


@pytest.mark.slow
def test_next_incarnation_runs_after_the_first(bench: Any) -> None:
    spec = bench.spec("failed")
    bench.executor.submit(spec, 1)
    bench.until(spec.name)
    bench.executor.submit(spec, 2)
    assert bench.until(spec.name, lambda status: status.incarnation == 2 and has_result(status))
    bench.executor.submit(spec, 1)
    assert bench.executor.observe(spec.name).incarnation == 2, "an earlier incarnation never starts after a later one"
    assert (bench.starts(spec, 1), bench.starts(spec, 2)) == (1, 1)


@pytest.mark.slow
def test_events_are_read_from_a_given_number(bench: Any) -> None:
    spec = bench.spec("done")
    bench.executor.submit(spec, 1)
    bench.until(spec.name)
    events = bench.executor.events(spec.name)
    assert events
    for since in range(len(events) + 2):
        assert bench.executor.events(spec.name, since) == events[since:]


@pytest.mark.parametrize(("behaviour", "reason"), [("done", "4 steps"), ("failed", "the data was bad")])
def test_status_contains_the_reason_that_the_job_reports(machine: LocalBench, behaviour: str, reason: str) -> None:
    spec = machine.spec(behaviour)
    machine.executor.submit(spec, 1)
    status = machine.until(spec.name)
    assert (status.reason, status.step, status.total) == (reason, 4, 4)


def test_job_survives_a_restart_of_the_service(machine: LocalBench) -> None:
    spec = machine.spec("stays")
    machine.executor.submit(spec, 1)
    machine.until(spec.name, running)
    machine.executor = machine.restarted()
    machine.executor.submit(spec, 1)
    assert running(machine.executor.observe(spec.name))
    machine.executor.cancel(spec.name)
    assert machine.until(spec.name).outcome == Outcome.PREEMPTED
    assert [event.kind for event in machine.executor.events(spec.name)].count("started") == 1


@pytest.mark.slow
def test_next_incarnation_finds_the_pinned_checkpoint(machine: LocalBench) -> None:
    spec = machine.spec("once")
    machine.executor.submit(spec, 1)
    machine.until(spec.name, running)
    machine.executor.cancel(spec.name)
    assert machine.until(spec.name).outcome == Outcome.PREEMPTED
    machine.executor.pin(spec, machine.checkpoint(spec, 2))
    machine.executor.submit(spec, 2)
    status = machine.until(spec.name, lambda status: status.incarnation == 2 and has_result(status))
    assert (status.outcome, status.reason) == (Outcome.DONE, "resumed from True")


def test_event_numbers_continue_over_all_incarnations(machine: LocalBench) -> None:
    spec = machine.spec("once")
    machine.executor.submit(spec, 1)
    machine.until(spec.name, running)
    before = machine.executor.events(spec.name)
    machine.executor.cancel(spec.name)
    machine.until(spec.name)
    machine.executor.submit(spec, 2)
    machine.until(spec.name, lambda status: status.outcome == Outcome.DONE)
    after = machine.executor.events(spec.name)
    assert after[: len(before)] == before
    assert machine.executor.events(spec.name, since=len(before)) == after[len(before) :]
    assert [event.incarnation for event in after] == sorted(event.incarnation for event in after)


@pytest.mark.slow
def test_job_that_ignores_sigterm_is_killed_after_the_grace_period(machine: LocalBench) -> None:
    spec = machine.spec("deaf", grace=1)
    machine.executor.submit(spec, 1)
    machine.until(spec.name, running)
    machine.executor.cancel(spec.name)
    assert machine.executor.observe(spec.name).state == JobState.RUNNING
    assert machine.until(spec.name).outcome == Outcome.LOST


@pytest.mark.slow
def test_attempts_run_independently(bench: Any) -> None:
    first, second = bench.spec("failed", attempt=1), bench.spec("done", attempt=2)
    bench.executor.submit(first, 1)
    bench.executor.submit(second, 1)
    assert bench.until(first.name).outcome == Outcome.FAILED
    assert bench.until(second.name).outcome == Outcome.DONE


def test_damaged_checkpoint_is_not_pinned(machine: LocalBench) -> None:
    spec = machine.spec("done")
    machine.executor.submit(spec, 1)
    machine.until(spec.name)
    assert machine.executor.pinned(spec) is None
    resume = machine.checkpoint(spec, 3)
    machine.executor.pin(spec, resume)
    assert machine.restarted().pinned(spec) == resume
    machine.damage(resume)
    with pytest.raises(Permanent):
        machine.executor.pin(spec, resume)
    with pytest.raises(Permanent):
        machine.executor.pin(spec, resume.model_copy(update={"path": "../../elsewhere"}))


def look_at(executor: Executor, name: str) -> None:
    """Call every method that only reads."""
    for known in (name, "rt-unknown-a1"):
        executor.observe(known)
        executor.events(known)
    executor.live()


def test_reads_change_nothing_while_a_job_runs(bench: Any) -> None:
    look_at(bench.executor, "rt-unknown-a1")
    spec = bench.overdue()
    before = bench.snapshot()
    for executor in (bench.executor, bench.restarted()):
        look_at(executor, spec.name)
    assert bench.snapshot() == before, "a read changed a file, a record or an object"


@pytest.mark.parametrize("behaviour", ["done", "failed", "silent"])
def test_reads_change_nothing_after_the_end_of_a_job(bench: Any, behaviour: str) -> None:
    spec = bench.spec(behaviour)
    bench.executor.submit(spec, 1)
    bench.run_to_its_end(spec.name)
    for _ in range(2):  # before and after the result is stored
        before = bench.snapshot()
        for executor in (bench.executor, bench.restarted()):
            look_at(executor, spec.name)
            assert executor.observe(spec.name).state == JobState.ENDED
        assert bench.snapshot() == before, "a read changed a file, a record or an object"
        bench.until(spec.name)


def test_reads_before_the_first_submission_create_nothing(bench: Any) -> None:
    before = bench.snapshot()
    assert bench.executor.live() == []
    assert bench.snapshot() == before


def test_an_end_is_observed_at_once_and_its_result_is_stored_by_reconcile(bench: Any) -> None:
    spec = bench.spec("silent")
    bench.executor.submit(spec, 1)
    status = bench.run_to_its_end(spec.name)
    assert (status.state, status.outcome, status.incarnation) == (JobState.ENDED, None, 1)
    assert bench.executor.live() == [spec.name], "the job must be listed until its result is stored"
    assert bench.until(spec.name).outcome == Outcome.LOST


@pytest.mark.slow
def test_a_repeated_reconcile_changes_nothing(bench: Any) -> None:
    spec = bench.spec("failed")
    bench.executor.submit(spec, 1)
    status = bench.until(spec.name)
    bench.until(spec.name, lambda _: bench.executor.live() == [])
    before = bench.snapshot()
    for executor in (bench.executor, bench.restarted()):
        executor.reconcile(spec.name)
        executor.reconcile("rt-unknown-a1")
        assert executor.observe(spec.name) == status
    assert bench.snapshot() == before


@pytest.mark.slow
def test_only_reconcile_stops_a_job(bench: Any) -> None:
    spec = bench.overdue()
    for _ in range(3):
        look_at(bench.executor, spec.name)
        assert bench.executor.observe(spec.name).outcome is None
    assert bench.executor.live() == [spec.name]
    status = bench.until(spec.name)
    assert status.outcome in (Outcome.LOST, Outcome.PERMANENT)
    assert bench.until(spec.name, lambda _: bench.executor.live() == []) == status


@pytest.mark.slow
def test_cancel_reports_only_the_first_stop(bench: Any) -> None:
    spec = bench.spec("stays")
    assert not bench.executor.cancel(spec.name)
    bench.executor.submit(spec, 1)
    bench.until(spec.name, lambda status: status.state == JobState.RUNNING)
    assert bench.executor.cancel(spec.name)
    assert not bench.executor.cancel(spec.name)
    bench.until(spec.name)
    assert not bench.executor.cancel(spec.name)
