"""Tests of failures in the supervisor: a damaged event log, an internal error, and a trainer whose parent process has ended.

No model is trained here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ratchet.contracts.ids import checkpoint_name
from ratchet.contracts.jobs.exit_codes import FAILURE, Outcome, exit_code_of
from ratchet.contracts.jobs.training import Adjustment, JobEvent, Method, Proposal
from ratchet.contracts.schema import stamped
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.jobs.full_disk import reserve
from ratchet.runtime.jobs.run_folder import read_events
from ratchet.runtime.moments import this_moment
from ratchet.trainers.job import parallel, supervisor
from ratchet.trainers.job.events import Events
from ratchet.trainers.job.job_folder import Job, JobResult, here
from ratchet.trainers.job.nemo.__main__ import with_interval
from ratchet.trainers.job.trl import runner
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.dpo import DPORecipe
from ratchet.trainers.recipes.grpo import GRPORecipe
from ratchet.trainers.recipes.sft import SFTRecipe
from ratchet.trainers.save_interval import fixed_interval
from tests.small_volume import fill, small_volume

TORN = b'{"at": 12.5, "incar'


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the names of a model's files. No test of this module loads the model, so it needs no torch."""
    folder = tmp_path_factory.mktemp("named")
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (folder / name).write_text("{}")
    return folder


@pytest.fixture
def run(workshop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a run folder that is the working directory, with the job's environment variables.

    The trainer is a process that only waits.
    """
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "plan.json").write_bytes(stamped(workshop.plan(Method.DPO, steps=3)))
    for name, value in {"ATTEMPT": "1", "INCARNATION": "1", "ARTIFACTS": str(workshop.folder / "artifacts"), "TIMEOUT": "3600"}.items():
        monkeypatch.setenv(f"RATCHET_{name}", value)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(parallel, "launch_command", lambda *_: [sys.executable, "-c", "import time; time.sleep(600)"])
    before = signal.getsignal(signal.SIGTERM)
    yield folder
    signal.signal(signal.SIGTERM, before)


def diary(folder: Path, *kinds: str, begins: bytes = b"") -> Path:
    """Write an event log that starts with `begins` and has one event of each kind. Return its path."""
    (folder).mkdir(exist_ok=True)
    (folder / "events.jsonl").write_bytes(begins)
    for kind in kinds:
        Events(folder / "events.jsonl", 1, 9).write(kind, 1)
    return folder / "events.jsonl"


def test_the_valid_lines_of_a_damaged_event_log_are_read(tmp_path: Path) -> None:
    path = diary(tmp_path, "started", "progress", begins=TORN + b"\n[]\n\xff\n")
    with path.open("ab") as file:
        file.write(TORN)
    assert [event.kind for event in read_events(path.parent)] == ["started", "progress"]
    assert list(read_events(tmp_path / "none")) == []


def test_an_attempt_starts_with_its_first_readable_event(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diary(run / "i1", begins=TORN)
    diary(run / "i2", "started")
    monkeypatch.setenv("RATCHET_INCARNATION", "3")
    begun = next(read_events(run / "i2")).at
    monkeypatch.setattr("time.time", lambda: begun + 40)
    assert here().elapsed == pytest.approx(40)


def test_time_of_an_attempt_depends_on_the_wall_clock_only_between_machines(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = this_moment()

    def began(incarnation: int, at: float, **moment: object) -> None:
        (run / f"i{incarnation}").mkdir(exist_ok=True)
        event = JobEvent(at=at, incarnation=incarnation, kind="started", data=dict(moment))
        (run / f"i{incarnation}" / "events.jsonl").write_text(event.model_dump_json() + "\n")

    monkeypatch.setenv("RATCHET_INCARNATION", "2")
    began(1, now.at - 3700, boot=now.boot, up=now.up - 100)  # the clock was set forward by an hour since then
    began(2, now.at - 20, boot=now.boot, up=now.up - 20)
    assert here().elapsed == pytest.approx(100, abs=5)
    began(1, now.at - 3700, boot="another", up=3.0)
    began(2, now.at - 3650, boot=now.boot, up=now.up - 20)  # on this machine it was set after the begin
    assert here().elapsed == pytest.approx(50 + 20, abs=5)


@pytest.mark.slow
@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_step_of_the_wall_clock_ends_no_healthy_job(step: float, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is set by an hour while the trainer works, with a timeout of 300 seconds. The trainer then ends by itself."""
    real, marks = time.time, run / "works"
    program = f"import pathlib, time; pathlib.Path({str(marks)!r}).touch(); time.sleep(1); raise SystemExit(9)"
    monkeypatch.setattr(parallel, "launch_command", lambda *_: [sys.executable, "-c", program])
    monkeypatch.setenv("RATCHET_TIMEOUT", "300")
    monkeypatch.setattr("time.time", lambda: real() + (step if marks.exists() else 0))
    assert supervisor.main() == FAILURE
    said = json.loads((run / "i1" / "ended.json").read_text())
    assert "exit code 9" in said["reason"]


def children() -> list[psutil.Process]:
    """Return the running child processes.

    Tests compare them with those before the test, because multiprocessing keeps one for the whole session.
    """
    return [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("breaks", ["_stalls", "elapsed"])
def test_an_error_of_the_supervisor_ends_the_trainer_and_names_the_line(breaks: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> Any:
        raise ValueError("a user's own words")

    if breaks == "elapsed":
        monkeypatch.setattr(Job, "elapsed", property(broken))
    else:
        monkeypatch.setattr(supervisor.Wrapper, breaks, broken)
    before = children()
    assert supervisor.main() == FAILURE
    assert children() == before
    said = json.loads((run / "i1" / "ended.json").read_text())
    assert said["outcome"] == "failed"
    assert said["reason"].startswith("ValueError in test_supervisor.py, line")


def test_a_trainer_ends_if_its_supervisor_ended_before_the_first_check(tmp_path: Path) -> None:
    """The supervisor ends after it has started the trainer, but before the trainer's first check. The trainer then has another parent."""
    root = Path(parallel.__file__).resolve().parents[2]
    child = textwrap.dedent(f"""
        import os, sys, time
        sys.path.insert(0, {str(root)!r})
        while os.getppid() == int(os.environ["RATCHET_PARENT"]):
            time.sleep(0.01)
        from ratchet.trainers.job.parallel import die_with_parent
        die_with_parent()
        open("alive", "w").close()
    """)
    parent = (
        "import os, subprocess, sys; "
        "child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], env={**os.environ, 'RATCHET_PARENT': str(os.getpid())}); "
        "print(child.pid, flush=True)"
    )
    made = subprocess.run([sys.executable, "-c", parent, child], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    pid, limit = int(made.stdout), time.monotonic() + 60
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE and time.monotonic() < limit:
        time.sleep(0.05)
    assert not (tmp_path / "alive").exists()


def test_children_of_the_trainer_know_their_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel.ctypes, "CDLL", lambda _: type("Nothing", (), {"prctl": staticmethod(lambda *_: 0)}))
    monkeypatch.setenv("RATCHET_PARENT", str(os.getppid()))
    parallel.die_with_parent()
    assert os.environ["RATCHET_PARENT"] == str(os.getpid())
    parallel.die_with_parent()


def test_the_interval_of_nemo_rl_comes_from_the_measurements_of_earlier_incarnations(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = complete(GRPORecipe, {"save_every": "auto", "interruption_hours": 4.0})
    figures = [{"step_seconds": 900.0}, {"step_seconds": 144.4, "checkpoint_seconds": 21.5}, {"step_seconds": 122.9}]
    (run / "i1").mkdir(exist_ok=True)
    lines = [
        JobEvent(at=at, incarnation=1, kind="progress", step=at, data=data).model_dump_json() + "\n" for at, data in enumerate(figures)
    ]
    (run / "i1" / "events.jsonl").write_text("".join(lines))
    monkeypatch.setenv("RATCHET_INCARNATION", "1")
    assert with_interval(here(), recipe).save_every == 10, "the first incarnation has no measurements"
    monkeypatch.setenv("RATCHET_INCARNATION", "2")
    chosen = with_interval(here(), recipe).save_every
    assert chosen == fixed_interval([900.0, 122.9, 122.9], [21.5], 2 * 3600.0)
    assert 1 < chosen < 10
    assert with_interval(here(), complete(GRPORecipe, {"save_every": 7})).save_every == 7


def test_only_time_spent_at_steps_counts_as_time_without_interruptions(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queueing, loading and the time before the first reported step do not count."""
    times = {
        "i1": [("started", 0), ("progress", 100), ("progress", 130)],
        "i2": [("started", 500)],
        "i3": [("progress", 900), ("checkpoint", 907)],
    }
    for name, told in times.items():
        (run / name).mkdir(exist_ok=True)
        lines = [JobEvent(at=at, incarnation=int(name[1:]), kind=kind).model_dump_json() + "\n" for kind, at in told]
        (run / name / "events.jsonl").write_text("".join(lines))
    monkeypatch.setenv("RATCHET_INCARNATION", "4")
    assert here().worked == 37
    monkeypatch.setenv("RATCHET_INCARNATION", "1")
    assert here().worked == 0


def test_the_stall_limit_for_steps_does_not_apply_during_a_save(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = supervisor.Wrapper(here(), FolderArtifacts(run))
    path = run / "i1" / "events.jsonl"
    events_ = [("progress", 10.0 * n) for n in range(6)]
    for last, stalls in (("saving", None), ("exporting", None), ("checkpoint", 300.0)):
        lines = [JobEvent(at=at, incarnation=1, kind=kind) for kind, at in [*events_, (last, 61.0)]]
        path.write_text("".join(line.model_dump_json() + "\n" for line in lines))
        assert found._stalls() is None, "the log has just changed"
        later = time.monotonic() + 1000
        with monkeypatch.context() as patched:
            patched.setattr("time.monotonic", lambda at=later: at)
            assert found._stalls() == stalls, last


@pytest.mark.parametrize(("micro_batch", "proposes"), [(2, True), (1, False)])
def test_a_remedy_that_would_change_nothing_is_not_proposed(
    micro_batch: int, proposes: bool, run: Path, workshop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "plan.json").write_bytes(stamped(workshop.plan(Method.SFT, steps=3, micro_batch=micro_batch)))
    result = runner._failure(here(), "OutOfMemoryError: CUDA out of memory.", SFTRecipe)
    assert (result.proposal is not None) is proposes
    assert result.reason.startswith("out of memory")


@pytest.mark.slow
def test_a_launcher_that_waits_for_lost_nodes_is_killed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the trainer's result, torchrun would wait for minutes, and the machine costs money meanwhile."""
    monkeypatch.setattr(supervisor, "LINGER_SECONDS", 0.5)
    monkeypatch.setenv("RATCHET_GRACE", "60")
    program = """
import json, os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(1)
with open("i1/result.json", "w") as file:
    json.dump({"outcome": "preempted", "reason": "asked", "step": 1, "metrics": {}}, file)
time.sleep(600)
"""
    monkeypatch.setattr(parallel, "launch_command", lambda *_: [sys.executable, "-c", program])
    before = children()
    one = supervisor.Wrapper(here(), FolderArtifacts(Path(os.environ["RATCHET_ARTIFACTS"])))
    one.asked_at = time.monotonic()
    began = time.monotonic()
    assert one.run().outcome is Outcome.PREEMPTED
    assert time.monotonic() - began < 20
    assert children() == before


SHORT = Proposal(rule="memory", adjustment=Adjustment(), good=3)


@pytest.mark.parametrize(
    ("own", "peers", "told"),
    [
        (("failed", None), {1: ("failed", SHORT)}, "peer 1"),
        (("failed", None), {1: ("failed", None), 2: ("permanent", None)}, "peer 2"),
        (("failed", None), {1: ("failed", None), 2: ("failed", SHORT)}, "peer 2"),
        (("failed", None), {1: ("failed", None)}, "own"),
        (("failed", SHORT), {1: ("failed", SHORT)}, "own"),
        (("failed", None), {}, "own"),
        (("preempted", None), {1: ("failed", SHORT)}, "own"),
        (None, {1: ("failed", None)}, "peer 1"),
    ],
)
def test_the_reported_reason_is_the_cause_on_a_peer_and_not_its_consequence(
    run: Path, monkeypatch: pytest.MonkeyPatch, own: Any, peers: dict[int, Any], told: str
) -> None:
    """Without a shared file system, each node has a separate result, and the first node reports for all."""
    monkeypatch.setattr(supervisor, "ECHO_SECONDS", 0.1)
    monkeypatch.setenv("RATCHET_APART", "1")
    monkeypatch.setenv("RATCHET_NODES", "3")
    job = here()
    for node, (outcome, proposal) in peers.items():
        job.finish(JobResult(Outcome(outcome), f"peer {node}", 1, {}, proposal))
        (job.folder / "result.json").rename(job.folder / f"result-{node}.json")
    if own:
        job.finish(JobResult(Outcome(own[0]), "own", 1, {}, own[1]))
    one = supervisor.Wrapper(job, FolderArtifacts(Path(os.environ["RATCHET_ARTIFACTS"])))
    assert one._derive(1, None).reason == told


@pytest.mark.slow
@pytest.mark.parametrize("apart", [True, False])
def test_a_follower_waits_for_the_result_only_without_a_shared_file_system(run: Path, monkeypatch: pytest.MonkeyPatch, apart: bool) -> None:
    monkeypatch.setattr(parallel, "launch_command", lambda *_: [sys.executable, "-c", ""])
    monkeypatch.setattr(supervisor, "WORD_SECONDS", 10.0)
    if apart:
        monkeypatch.setenv("RATCHET_APART", "1")
    one = supervisor.Wrapper(here(), FolderArtifacts(Path(os.environ["RATCHET_ARTIFACTS"])))
    late = threading.Timer(0.7, lambda: one.job.finish(JobResult(Outcome.DONE, "all steps", 3, {})))
    late.start()
    assert one.follow().outcome is (Outcome.DONE if apart else Outcome.FAILED)
    late.join()


def test_a_follower_is_done_if_the_model_is_already_published(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_INCARNATION", "3")
    artifacts = FolderArtifacts(Path(os.environ["RATCHET_ARTIFACTS"]))
    one = supervisor.Wrapper(here(), artifacts)
    artifacts.bind(checkpoint_name(one.job.plan.id, 1, 2), artifacts.put(b"a checkpoint"))
    assert one.follow().outcome is Outcome.DONE
    assert artifacts.resolve(checkpoint_name(one.job.plan.id, 1, 3)) is None, "only the first node may bind the name"


FILLS = """
import os, sys
with open("filler", "wb", buffering=0) as file:
    try:
        while file.write(b"x" * 4096):
            pass
    except OSError:
        pass
"""


@pytest.mark.parametrize(("end", "outcome"), [("raise SystemExit(1)", Outcome.FAILED), ("os.kill(os.getpid(), 9)", Outcome.LOST)])
def test_job_that_dies_of_a_full_disk_says_so(end: str, outcome: Outcome, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_volume(run.parent / "volume") as volume:
        (volume / "plan.json").write_bytes((run / "plan.json").read_bytes())
        monkeypatch.chdir(volume)
        monkeypatch.setattr(parallel, "launch_command", lambda *_: [sys.executable, "-c", FILLS + end])
        assert supervisor.main() == exit_code_of(outcome)
        said = json.loads((volume / "i1" / "ended.json").read_text())
        assert said["outcome"] == outcome
        assert "the disk is full" in said["reason"]
        assert str(volume / "i1") in said["reason"]


def test_trainer_without_room_for_its_model_says_so_in_its_result(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_volume(run.parent / "volume") as volume:
        (volume / "plan.json").write_bytes((run / "plan.json").read_bytes())
        monkeypatch.chdir(volume)
        job = here()
        reserve(job.folder)
        fill(volume)

        def saves(*_: object) -> None:
            (job.folder / "model.safetensors").write_bytes(b"x" * 9000)

        monkeypatch.setattr(runner, "_run", saves)
        monkeypatch.setattr(parallel, "die_with_parent", lambda: None)
        with pytest.raises(OSError, match="No space left"):
            runner.train_job(lambda *_: None, DPORecipe)
        result = job.result()
        assert result is not None
        assert "the disk is full" in result.reason


def test_supervisor_that_cannot_begin_on_a_full_disk_says_so(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with small_volume(run.parent / "volume", 256) as volume:
        (volume / "plan.json").write_bytes((run / "plan.json").read_bytes())
        monkeypatch.chdir(volume)
        (volume / "i1").mkdir()
        (volume / "most").write_bytes(b"x" * 200_000)
        assert supervisor.main() == FAILURE
        assert "the disk is full" in json.loads((volume / "i1" / "ended.json").read_text())["reason"]
