"""Contract tests for every executor. A bench builds an executor and jobs of known behaviour; a new executor needs its own bench."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from contracts.errors import Permanent
from contracts.exit_codes import Outcome
from contracts.fakes import FakeExecutor, FakeWorld
from contracts.ids import Digest, job_name
from contracts.ports import Executor
from contracts.training import JobSpec, JobState, JobStatus, ResumePoint
from local.executor import LocalExecutor
from runtime.artifacts import FolderArtifacts
from runtime.manifest import write_manifest

JOB = """
import json, os, pathlib, signal, sys, time
behaviour, m = sys.argv[1], int(os.environ["RATCHET_INCARNATION"])
folder = pathlib.Path(f"i{m}")

def event(kind, step=0):
    line = {"at": time.time(), "incarnation": m, "kind": kind, "step": step, "total": 4, "data": {}}
    with open(folder / "events.jsonl", "a") as file:
        file.write(json.dumps(line) + "\\n")

def end(outcome, reason):
    (folder / "part").write_text(json.dumps({"outcome": outcome, "reason": reason}))
    (folder / "part").rename(folder / "ended.json")
    sys.exit(0)

def asked(*_):
    event("stopped")
    end("preempted", "asked to stop")

signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "deaf" else asked)
event("started")
assert pathlib.Path("data/words.txt").read_text() == "words"
for step in range(1, 5):
    event("progress", step)
if behaviour == "done":
    end("done", "4 steps")
if behaviour == "failed":
    end("failed", "the data was bad")
if behaviour == "once" and m > 1:
    end("done", "resumed from " + str(pathlib.Path("resume.json").exists()))
if behaviour == "silent":
    os._exit(0)
while True:
    time.sleep(0.02)
"""


def _spec(behaviour: str, attempt: int, grace: int, data: dict[str, Digest]) -> JobSpec:
    return JobSpec(
        name=job_name("a" * 64, attempt, behaviour),
        plan="a" * 64,
        attempt=attempt,
        command=("{python}", "-c", JOB, behaviour),
        environment={},
        inputs=data,
        plan_json="{}",
        grace_seconds=grace,
    )


class LocalBench:
    """A bench for `LocalExecutor`, with a small Python program as the job."""

    def __init__(self, folder: Path) -> None:
        self.artifacts = FolderArtifacts(folder / "artifacts")
        (folder / "data").mkdir()
        (folder / "data" / "words.txt").write_text("words")
        self.data = self.artifacts.put_folder(folder / "data")
        self.root = folder / "jobs"
        self.executor: Executor = self.restarted()
        self.names: list[str] = []

    def restarted(self) -> Executor:
        """Return a new executor on the same folders, as after a restart of the service."""
        return LocalExecutor(self.root, self.artifacts.root)

    def spec(self, behaviour: str, attempt: int = 1, grace: int = 5) -> JobSpec:
        spec = _spec(behaviour, attempt, grace, {"data": self.data})
        self.names.append(spec.name)
        return spec

    def checkpoint(self, spec: JobSpec, step: int) -> ResumePoint:
        """Write a complete checkpoint, as a job does, and return its resume point."""
        path = f"a{spec.attempt}/i1/step_{step}"
        folder = self.root / spec.plan[:16] / path
        folder.mkdir(parents=True)
        (folder / "weights").write_text("w" * 100)
        return ResumePoint(attempt=spec.attempt, incarnation=1, step=step, path=path, manifest=write_manifest(folder))

    def damage(self, resume: ResumePoint) -> None:
        (self.root / ("a" * 16) / resume.path / "weights").write_text("short")

    def starts(self, spec: JobSpec, incarnation: int) -> int:
        """Count how often an incarnation actually started."""
        events = self.executor.events(spec.name)
        return sum(event.kind == "started" and event.incarnation == incarnation for event in events)

    def close(self) -> None:
        for name in self.names:
            for _ in range(2):
                self.executor.cancel(name)
                self.until(name, lambda status: status.state not in (JobState.RUNNING, JobState.PENDING))

    def until(self, name: str, holds: Callable[[JobStatus], bool] = lambda status: status.state == JobState.ENDED) -> JobStatus:
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            status = self.executor.observe(name)
            if holds(status):
                return status
            time.sleep(0.02)
        raise AssertionError(f"{name} has not reached the expected status; it is {status}")


class FakeBench:
    """A bench for `FakeExecutor`: jobs end as scripted, without processes, output or files."""

    outcomes: ClassVar[dict[str, Outcome]] = {
        "done": Outcome.DONE,
        "failed": Outcome.FAILED,
        "stays": Outcome.PREEMPTED,
        "silent": Outcome.LOST,
    }

    def __init__(self, folder: Path) -> None:
        self.behaviours: dict[int, str] = {}
        self.world = FakeWorld()
        self.executor: Executor = FakeExecutor(self.world, self._script, steps=4)

    def _script(self, attempt: int, incarnation: int) -> Outcome:
        once = Outcome.DONE if incarnation > 1 else Outcome.PREEMPTED
        return self.outcomes.get(self.behaviours[attempt], once)

    def restarted(self) -> Executor:
        return self.executor

    def spec(self, behaviour: str, attempt: int = 1) -> JobSpec:
        self.behaviours[attempt] = behaviour
        return _spec(behaviour, attempt, grace=5, data={})

    def until(self, name: str, holds: Callable[[JobStatus], bool] = lambda status: status.state == JobState.ENDED) -> JobStatus:
        for _ in range(20):
            status = self.executor.observe(name)
            if holds(status):
                return status
        raise AssertionError(f"{name} has not reached the expected status; it is {status}")

    def starts(self, spec: JobSpec, incarnation: int) -> int:
        return self.world.effects[f"submit/{spec.name}/{incarnation}"]

    def close(self) -> None:
        """Do nothing, because the fake starts no processes."""


@pytest.fixture(params=[LocalBench, FakeBench], ids=["local", "fake"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    bench = request.param(tmp_path)
    yield bench
    bench.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[LocalBench]:
    """A bench with real processes, output and files, which the fake does not have."""
    bench = LocalBench(tmp_path)
    yield bench
    bench.close()


def running(status: JobStatus) -> bool:
    return status.state == JobState.RUNNING and status.step == 4


def test_unknown_job_is_absent(bench: Any) -> None:
    assert bench.executor.observe("rt-unknown-a1").state == JobState.ABSENT
    assert bench.executor.events("rt-unknown-a1") == []
    bench.executor.cancel("rt-unknown-a1")


@pytest.mark.parametrize(("behaviour", "outcome"), [("done", Outcome.DONE), ("failed", Outcome.FAILED), ("silent", Outcome.LOST)])
def test_job_runs_and_ends(bench: Any, behaviour: str, outcome: Outcome) -> None:
    spec = bench.spec(behaviour)
    bench.executor.submit(spec, 1)
    assert bench.executor.observe(spec.name).state != JobState.ABSENT
    status = bench.until(spec.name)
    assert (status.outcome, status.incarnation) == (outcome, 1)
    assert bench.until(spec.name) == status, "an ended job keeps its status"


def test_submit_is_idempotent(bench: Any) -> None:
    spec = bench.spec("done")
    for _ in range(3):
        bench.executor.submit(spec, 1)
    bench.until(spec.name)
    bench.executor.submit(spec, 1)
    bench.restarted().submit(spec, 1)
    assert bench.until(spec.name).incarnation == 1
    assert bench.starts(spec, 1) == 1


def test_next_incarnation_runs_after_the_first(bench: Any) -> None:
    spec = bench.spec("failed")
    bench.executor.submit(spec, 1)
    bench.until(spec.name)
    bench.executor.submit(spec, 2)
    assert bench.until(spec.name, lambda status: status.incarnation == 2 and status.state == JobState.ENDED)
    bench.executor.submit(spec, 1)
    assert bench.executor.observe(spec.name).incarnation == 2, "an earlier incarnation never starts after a later one"
    assert (bench.starts(spec, 1), bench.starts(spec, 2)) == (1, 1)


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


def test_next_incarnation_finds_the_pinned_checkpoint(machine: LocalBench) -> None:
    spec = machine.spec("once")
    machine.executor.submit(spec, 1)
    machine.until(spec.name, running)
    machine.executor.cancel(spec.name)
    assert machine.until(spec.name).outcome == Outcome.PREEMPTED
    machine.executor.pin(spec, machine.checkpoint(spec, 2))
    machine.executor.submit(spec, 2)
    status = machine.until(spec.name, lambda status: status.incarnation == 2 and status.state == JobState.ENDED)
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


def test_job_that_ignores_sigterm_is_killed_after_the_grace_period(machine: LocalBench) -> None:
    spec = machine.spec("deaf", grace=1)
    machine.executor.submit(spec, 1)
    machine.until(spec.name, running)
    machine.executor.cancel(spec.name)
    assert machine.executor.observe(spec.name).state == JobState.RUNNING
    assert machine.until(spec.name).outcome == Outcome.LOST


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
