"""Tests of jobs on one machine: process ids, locks, environments and disks."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ratchet.contracts.errors import Permanent, Retryable
from ratchet.contracts.ids import job_name
from ratchet.contracts.jobs.exit_codes import ALREADY_STARTED, Outcome
from ratchet.contracts.jobs.training import JobSpec, JobState, JobStatus
from ratchet.local import executor as executor_module
from ratchet.local.executor import LocalExecutor
from ratchet.local.processes import ProcessIdentity, alive, identity_in
from ratchet.runtime.jobs.full_disk import reserve
from ratchet.runtime.moments import this_moment
from tests.small_volume import fill, small_volume
from tests.waiting import has_result, job_until, until

SLEEP = "import time\nwhile True: time.sleep(0.05)"
DUMP = "import os, json, pathlib; pathlib.Path('seen.json').write_text(json.dumps(dict(os.environ)))"


class Site:
    """An executor and the jobs that a test has started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.executor = self.restarted()
        self.specs: list[JobSpec] = []

    def restarted(self) -> LocalExecutor:
        """Return a new executor for the same folders, as after a restart."""
        return LocalExecutor(self.folder / "jobs", self.folder / "artifacts")

    def spec(self, *command: str, attempt: int = 1, **changes: Any) -> JobSpec:
        """Return the specification of a job; its default command sleeps forever."""
        fields: dict[str, Any] = {
            "name": job_name("b" * 64, attempt, str(command)),
            "plan": "b" * 64,
            "attempt": attempt,
            "command": command or ("{python}", "-c", SLEEP),
            "environment": {},
            "inputs": {},
            "plan_json": "{}",
            "grace_seconds": 1,
        }
        spec = JobSpec(**(fields | changes))
        self.specs.append(spec)
        return spec

    def run(self, spec: JobSpec) -> Path:
        """Return the run folder of the job."""
        return self.folder / "jobs" / spec.plan[:16] / f"a{spec.attempt}"

    def pid(self, spec: JobSpec, incarnation: int = 1) -> int:
        """Return the process id that the incarnation has recorded."""
        return int(json.loads((self.run(spec) / f"i{incarnation}" / "process.json").read_text())["pid"])

    def until(self, spec: JobSpec, holds: Callable[[JobStatus], bool]) -> JobStatus:
        """Reconcile and observe the job until the condition holds. Return that status."""
        return job_until(self.executor, spec.name, holds)

    def ended(self, spec: JobSpec) -> JobStatus:
        """Return the job's status after its result is stored."""
        return self.until(spec, has_result)

    def running(self, spec: JobSpec) -> JobStatus:
        """Return the job's status once it is running."""
        return self.until(spec, lambda status: status.state == JobState.RUNNING)

    def close(self) -> None:
        """Kill the processes of all jobs."""
        for path in self.folder.glob("jobs/*/a*/i*/process.json"):
            record = json.loads(path.read_text())
            process = alive(ProcessIdentity(record["pid"], record["started"]))
            if process is not None and process.pid != os.getpid():
                process.kill()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Yield an executor, and kill its jobs after the test."""
    site = Site(tmp_path)
    yield site
    site.close()


def test_a_reused_pid_is_not_the_job(site: Site) -> None:
    spec = site.spec()
    site.executor.submit(spec, 1)
    site.running(spec)
    os.kill(site.pid(spec), signal.SIGKILL)
    process = site.run(spec) / "i1" / "process.json"
    process.write_text(json.dumps({"pid": os.getpid(), "started": psutil.Process().create_time() - 3600}))
    assert site.ended(spec).outcome == Outcome.LOST
    site.executor.cancel(spec.name)  # must not kill this process, which has the pid


def test_a_change_of_the_clock_loses_no_job(site: Site) -> None:
    spec = site.spec()
    site.executor.submit(spec, 1)
    site.running(spec)
    record = site.run(spec) / "i1" / "process.json"
    said = json.loads(record.read_text())
    record.write_text(json.dumps(said | {"started": said["started"] - 3600}))
    assert site.executor.observe(spec.name).state == JobState.RUNNING
    boot, _, ticks = said["identity"].rpartition("-")
    for other in (f"{'0' * 8}{boot[8:]}-{ticks}", f"{boot}-{int(ticks) + 1}"):  # another boot; a reused pid
        assert alive(ProcessIdentity(said["pid"], said["started"], other)) is None
    assert alive(ProcessIdentity(said["pid"], said["started"])) is not None  # a record without a token
    record.write_text(json.dumps(said))  # so that the fixture finds the process and kills it


@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_step_of_the_wall_clock_neither_kills_a_cancelled_job_nor_loses_a_pending_one(
    step: float, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, stubborn = time.time, "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('deaf', 'w'); time.sleep(600)"
    spec = site.spec("{python}", "-c", stubborn).model_copy(update={"grace_seconds": 60})
    site.executor.submit(spec, 1)
    until(lambda: (site.run(spec) / "deaf").exists())
    site.executor.cancel(spec.name)
    monkeypatch.setattr("time.time", lambda: real() + step)
    site.executor.reconcile(spec.name)
    assert site.executor.observe(spec.name).state == JobState.RUNNING, "its grace period is not over"
    monkeypatch.setattr(executor_module, "this_moment", lambda: this_moment()._replace(up=this_moment().up + 61))
    site.executor.reconcile(spec.name)
    assert site.ended(spec).outcome == Outcome.LOST
    monkeypatch.undo()
    site.executor._spawn = lambda *_: None  # type: ignore[method-assign]
    site.executor.submit(spec, 2)
    monkeypatch.setattr("time.time", lambda: real() + step)
    assert site.executor.observe(spec.name).state == JobState.PENDING


def test_two_launchers_of_one_incarnation_start_one_process(site: Site) -> None:
    spec = site.spec()
    site.executor.submit(spec, 1)
    site.running(spec)
    folder = site.run(spec) / "i1"
    pid = site.pid(spec)
    with (site.run(spec) / "lock").open() as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    twin = subprocess.Popen([sys.executable, "-m", "ratchet.local.processes", str(folder), "--", sys.executable, "-c", SLEEP])
    os.kill(pid, signal.SIGKILL)  # releases the lock; the second launcher must not replace the ended process
    assert twin.wait(30) == ALREADY_STARTED
    assert site.pid(spec) == pid


def test_a_job_starts_after_a_crash_between_intent_and_spawn(site: Site) -> None:
    spec = site.spec()
    folder = site.run(spec) / "i1"
    spawn, site.executor._spawn = site.executor._spawn, lambda *_: None  # type: ignore[method-assign]
    site.executor.submit(spec, 1)
    assert site.executor.observe(spec.name).state == JobState.PENDING
    (folder / "submitted.json").write_text(json.dumps({"at": time.time() - 3600}))
    assert site.executor.observe(spec.name).state == JobState.ABSENT
    site.executor._spawn = spawn  # type: ignore[method-assign]
    site.executor.submit(spec, 1)
    site.running(spec)


def test_a_later_incarnation_that_never_started_is_reported_as_lost(site: Site) -> None:
    spec = site.spec("{python}", "-c", "import sys; sys.exit(75)")
    site.executor.submit(spec, 1)
    assert site.ended(spec).incarnation == 1
    site.executor._spawn = lambda *_: None  # type: ignore[method-assign]
    site.executor.submit(spec, 2)
    assert (site.executor.observe(spec.name).state, site.executor.observe(spec.name).incarnation) == (JobState.PENDING, 2)
    (site.run(spec) / "i2" / "submitted.json").write_text(json.dumps({"at": time.time() - 3600}))
    status = site.executor.observe(spec.name)
    assert (status.state, status.outcome, status.incarnation) == (JobState.ENDED, Outcome.LOST, 2)
    assert "never started" in status.reason


def test_an_earlier_incarnation_that_still_runs_is_reported(site: Site) -> None:
    spec = site.spec()
    site.executor.submit(spec, 1)
    site.running(spec)
    site.executor._spawn = lambda *_: None  # type: ignore[method-assign]
    site.executor.submit(spec, 2)
    (site.run(spec) / "i2" / "submitted.json").write_text(json.dumps({"at": time.time() - 3600}))
    assert (site.executor.observe(spec.name).state, site.executor.observe(spec.name).incarnation) == (JobState.RUNNING, 1)


def test_a_job_that_is_cancelled_before_its_start_never_runs(site: Site) -> None:
    spec = site.spec()
    spawn, site.executor._spawn = site.executor._spawn, lambda *_: None  # type: ignore[method-assign]
    site.executor.submit(spec, 1)
    site.executor.cancel(spec.name)
    site.executor._spawn = spawn  # type: ignore[method-assign]
    site.executor.submit(spec, 1)
    assert site.ended(spec).outcome == Outcome.PREEMPTED
    assert not (site.run(spec) / "i1" / "process.json").exists()


def test_a_job_gets_no_credentials_of_the_service(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    spec = site.spec("{python}", "-c", DUMP, environment={"OMP_NUM_THREADS": "2"})
    site.executor.submit(spec, 3)
    site.ended(spec)
    seen = json.loads((site.run(spec) / "seen.json").read_text())
    assert "secret" not in seen.values()
    assert (seen["OMP_NUM_THREADS"], seen["RATCHET_INCARNATION"]) == ("2", "3")
    assert seen["RATCHET_ARTIFACTS"] == str(site.run(spec) / "drop")


def test_only_the_owner_can_read_the_files_of_a_job(site: Site) -> None:
    spec = site.spec("{python}", "-c", DUMP)
    site.executor.submit(spec, 1)
    site.ended(spec)
    for name in ("seen.json", "i1/process.json"):
        assert (site.run(spec) / name).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("code", "outcome"), [(1, Outcome.FAILED), (75, Outcome.PREEMPTED), (78, Outcome.PERMANENT), (137, Outcome.LOST), (0, Outcome.LOST)]
)
def test_an_exit_without_a_result_gets_a_lasting_outcome_from_its_code(site: Site, code: int, outcome: Outcome) -> None:
    spec = site.spec("{python}", "-c", f"import sys; print('last words', file=sys.stderr); sys.exit({code})")
    site.executor.submit(spec, 1)
    status = site.ended(spec)
    assert status.outcome == outcome
    assert outcome == Outcome.LOST or "last words" in status.reason
    assert site.restarted().observe(spec.name) == status


def test_a_job_that_ends_during_a_reconciliation_keeps_its_exit_code(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = site.spec("{python}", "-c", "import sys; sys.stdin.read(); sys.exit(75)")
    site.executor.submit(spec, 1)
    child = site.executor._children[site.run(spec) / "i1"]

    def after_its_death(folder: Path) -> Any:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, but still a zombie
        return identity_in(folder)

    monkeypatch.setattr(executor_module, "identity_in", after_its_death)
    monkeypatch.setattr(child, "poll", lambda: None)  # as if polled just before its end
    assert (site.executor.observe(spec.name).state, site.executor.observe(spec.name).outcome) == (JobState.ENDED, None)
    site.executor.reconcile(spec.name)
    monkeypatch.undo()
    assert site.executor.observe(spec.name).outcome == Outcome.PREEMPTED


def test_a_command_that_does_not_exist_is_permanent(site: Site) -> None:
    spec = site.spec("/no/such/program")
    site.executor.submit(spec, 1)
    status = site.ended(spec)
    assert status.outcome == Outcome.PERMANENT
    assert "/no/such/program" in status.reason


def test_a_changed_spec_needs_a_new_attempt(site: Site) -> None:
    spec = site.spec("{python}", "-c", "pass")
    site.executor.submit(spec, 1)
    with pytest.raises(Permanent, match="new attempt"):
        site.executor.submit(site.spec("{python}", "-c", "print()"), 1)
    site.ended(spec)


def test_an_input_outside_the_run_folder_is_refused(site: Site) -> None:
    key = site.executor.artifacts.put(b"x")
    with pytest.raises(Permanent, match="outside"):
        site.executor.submit(site.spec(inputs={"../../evil": key}), 1)


def test_a_full_disk_is_retryable(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", "jobs")

    monkeypatch.setattr(subprocess, "Popen", full)
    with pytest.raises(Retryable, match="No space left"):
        site.executor.submit(site.spec(), 1)


def test_incomplete_event_lines_are_skipped_and_counted(site: Site) -> None:
    line = '{"at":1.0,"incarnation":1,"kind":"progress","step":3,"total":9,"data":{}}'
    spec = site.spec()
    site.executor.submit(spec, 1)
    site.running(spec)
    (site.run(spec) / "i1" / "events.jsonl").write_text(f"{line}\n{line[:30]}\n{line}\n{line[:20]}")
    *events, warning = site.executor.events(spec.name)
    assert [event.step for event in events] == [3, 3]
    assert (warning.kind, warning.data) == ("warning", {"reason": "left out of i1/events.jsonl: lines that are not valid events: 1"})
    assert (site.executor.observe(spec.name).step, site.executor.observe(spec.name).total) == (3, 9)


@pytest.mark.slow
def test_children_of_a_killed_job_are_killed(site: Site) -> None:
    parent = (
        f"import subprocess, sys, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"c = subprocess.Popen([sys.executable, '-c', {SLEEP!r}]); open('child', 'w').write(str(c.pid)); time.sleep(99)"
    )
    spec = site.spec("{python}", "-c", parent)
    site.executor.submit(spec, 1)
    site.until(spec, lambda _: (site.run(spec) / "child").exists() and (site.run(spec) / "child").read_text() != "")
    child = psutil.Process(int((site.run(spec) / "child").read_text()))
    site.executor.cancel(spec.name)
    assert site.ended(spec).outcome == Outcome.LOST
    with contextlib.suppress(psutil.NoSuchProcess):
        child.wait(10)
    assert not child.is_running()


@pytest.mark.parametrize("restarted", [False, True])
def test_process_that_disappears_on_a_full_disk_is_reported_so(restarted: bool, tmp_path: Path) -> None:
    with small_volume(tmp_path / "volume", 8192) as volume:
        site = Site(volume)
        dies = "import os, signal, time; open('works', 'w')\nwhile not os.path.exists('filled'): time.sleep(0.02)\nos.kill(os.getpid(), 9)"
        spec = site.spec("{python}", "-c", dies)
        site.executor.submit(spec, 1)
        site.running(spec)
        until(lambda: (site.run(spec) / "works").exists())
        reserve(site.run(spec) / "i1")
        fill(volume)
        (site.run(spec) / "filled").mkdir()
        site.executor = site.restarted() if restarted else site.executor
        status = site.ended(spec)
        assert status.outcome == Outcome.LOST
        assert "the disk is full" in status.reason
        assert "power loss" not in status.reason
        site.close()
