"""Run folders that a hostile job has filled do not block or stop the service, and a healthy job beside them is unaffected."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import Permanent
from ratchet.contracts.ids import canonical
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import JobSpec, JobState
from ratchet.contracts.model import count_parameters
from ratchet.contracts.schema import stamped
from ratchet.local.executor import LocalExecutor
from ratchet.local.processes import own_record
from ratchet.runtime.artifacts import FolderArtifacts
from ratchet.runtime.event_log import EVENT_BYTES, LINE_BYTES, read_event_log
from ratchet.runtime.jobs.job_files import BadJobFile, read_job_file
from ratchet.runtime.jobs.run_folder import read_ended
from ratchet.runtime.manifest import verify_manifest, write_manifest
from tests.contract.executor_benches import GangBench, job_spec

FOLDERS = 240
"""Number of generated run folders."""
CPU_SECONDS = 5.0
"""Limit of each call's CPU time. Wall time would also count the time in which other processes have the CPU."""
BLOCKED_SECONDS = 60.0
"""Wall time after which a call counts as blocked, for example in a FIFO that nobody writes to."""
FILES = ("ended.json", "events.jsonl", "process.json", "submitted.json", "cancel.json", "output.log", "beat-0", "result.json")
DEEP = b'{"a":' * 200_000
EVENT = {"at": 1.0, "incarnation": 1, "kind": "progress", "step": 3, "total": 4, "data": {}}
Maker = Callable[[Path, random.Random], None]


@contextmanager
def limit(what: str) -> Iterator[None]:
    """Fail if the block uses more than CPU_SECONDS, or is blocked, also in a system call."""

    def late(*_: object) -> None:
        raise AssertionError(f"{what} had not returned after {BLOCKED_SECONDS} s")

    before, used = signal.signal(signal.SIGALRM, late), time.thread_time()
    signal.setitimer(signal.ITIMER_REAL, BLOCKED_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.thread_time() - used < CPU_SECONDS, f"{what} took more than {CPU_SECONDS} s of CPU time"


def _sparse(path: Path, _random: random.Random) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def _text(*contents: bytes) -> Maker:
    def write(path: Path, rng: random.Random) -> None:
        path.write_bytes(rng.choice(contents))

    return write


def _value(**changes: Any) -> Maker:
    return lambda path, _: path.write_bytes(json.dumps({**EVENT, **changes}).encode() + b"\n") and None


KINDS: dict[str, Maker] = {
    "fifo": lambda path, _: os.mkfifo(path),
    "folder": lambda path, _: path.mkdir(),
    "link to a file": lambda path, _: path.symlink_to("/etc/passwd"),
    "link to a device": lambda path, _: path.symlink_to("/dev/zero"),
    "link to nothing": lambda path, _: path.symlink_to("/nowhere/at/all"),
    "link to itself": lambda path, _: path.symlink_to(path.name),
    "sparse": _sparse,
    "deep": _text(DEEP, DEEP[:5000], b"[" * 100_000),
    "no object": _text(b"[]", b"null", b"7", b'"text"', b"[[1,2],[3,4]]", b"true"),
    "bad text": _text(b"\xff\xfe{}", b"\0" * 100, b'{"outcome": "done", "reason": "\xff"}', b""),
    "surrogate": _text(b'{"outcome": "failed", "reason": "\\ud800"}'),
    "zero byte": _text(b'{"outcome": "failed", "reason": "a\\u0000b"}'),
    "unknown outcome": _text(b'{"outcome": "won", "reason": ""}', b'{"outcome": 7, "reason": ""}', b'{"outcome": ["done"], "reason": ""}'),
    "wrong types": _text(
        b'{"outcome": "failed", "reason": {}}',
        b'{"pid": "x", "started": []}',
        b'{"at": "now", "kill_at": null}',
        b'{"pid": -1, "started": 0}',
    ),
    "huge numbers": _text(
        b'{"pid": 99999999999999999999, "started": 1e999, "at": 1e999, "kill_at": NaN}',
        b'{"outcome": "failed", "reason": "", "proposal": {"rule": "r", "good": 1, "adjustment": {"kl": 1e308}}}',
    ),
    "step NaN": _value(step=float("nan")),
    "step infinite": _value(step=float("inf"), total=float("inf")),
    "step negative": _value(step=-5),
    "step huge": _value(step=10**400),
    "figure NaN": _value(data={"loss": float("nan")}),
    "another incarnation": _value(incarnation=7),
    "truncated": _text(b'{"at": 1.0, "incarnation": 1, "kind": "pro', json.dumps(EVENT).encode()[:-4] + b'{"at"\n\n\n'),
    "checkpoint without a path": _value(kind="checkpoint"),
}
NAMES = ("i1x", "i999999999", "i-1", "i0", "i2", "i01", "i1 ", "i", "beat-x", "beat-999999")


def hostile(run: Path, seed: int) -> str:
    """Fill a run folder and return a description. Each kind and each file occurs in some of the FOLDERS folders."""
    rng = random.Random(seed)
    folder, kinds = run / "i1", list(KINDS)
    done = []
    for number, name in enumerate(rng.sample(FILES, rng.randint(1, 4))):
        kind = kinds[seed % len(kinds)] if number == 0 else rng.choice(kinds)
        target = folder / (FILES[seed % len(FILES)] if number == 0 else name)
        if target.is_dir() and not target.is_symlink():
            continue
        target.unlink(missing_ok=True)
        KINDS[kind](target, rng)
        done.append(f"{target.name}: {kind}")
    for name in rng.sample(NAMES, rng.randint(0, 3)):
        (run / name).mkdir(exist_ok=True)
        (run / name / "events.jsonl").write_bytes(b"[]\n")
        done.append(name)
    if seed % 40 == 39:
        shutil.rmtree(folder)
        folder.symlink_to("/etc")
        done.append("i1 is a link")
    return ", ".join(done)


def job(number: int) -> JobSpec:
    """Return the spec of a job with a plan of its own."""
    spec = job_spec("stays", 1, 5, {})
    return spec.model_copy(update={"name": f"rt-{number:016x}-a1", "plan": f"{number:064x}"[::-1]})


def begin_local(executor: LocalExecutor, spec: JobSpec, pid: int) -> Path:
    """Record an incarnation of a job, with a running process, as the executor does, and return its run folder."""
    run = executor.folders.claim(spec)
    folder = executor.folders.begin(spec, 1)
    (folder / "submitted.json").write_bytes(canonical({"at": time.time()}))
    (folder / "process.json").write_bytes(canonical(own_record(pid)))
    (folder / "events.jsonl").write_bytes(canonical(EVENT) + b"\n")
    return run


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs until the end of the test."""
    with sleeper() as child:
        yield child


@contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def calls(executor: Any, spec: JobSpec) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "observe", lambda: executor.observe(spec.name)
    yield "reconcile", lambda: executor.reconcile(spec.name)
    yield "observe", lambda: executor.observe(spec.name)
    yield "events", lambda: stamped({"events": [event.model_dump(mode="json") for event in executor.events(spec.name)]})
    yield "pinned", lambda: executor.pinned(spec)


def endure(executor: Any, spec: JobSpec, what: str) -> None:
    """Make all calls for a job. Only a permanent error of this job may be raised, within the time limit."""
    for name, call in calls(executor, spec):
        with limit(f"{name} with {what}"):
            try:
                call()
            except Permanent:
                continue
            except Exception as error:
                raise AssertionError(f"{name} with {what}") from error


@pytest.fixture
def short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lower limit for event logs, so that the sparse logs are read fast, and no waiting for the disk."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr("ratchet.runtime.event_log.EVENT_BYTES", 1 << 20)


@pytest.mark.usefixtures("short_logs")
def test_the_local_executor_endures_hostile_run_folders(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    executor = LocalExecutor(tmp_path / "jobs", tmp_path / "artifacts")
    healthy = job(10_000)
    begin_local(executor, healthy, process.pid)
    for seed in range(FOLDERS):
        spec = job(seed + 1)
        with sleeper() as attacker:
            run = begin_local(executor, spec, attacker.pid)
            what = hostile(run, seed)
            endure(executor, spec, what)
            assert executor.observe(spec.name).incarnation in (0, 1), what
        executor.reconcile(healthy.name)
        seen = executor.observe(healthy.name)
        assert (seen.state, seen.step, len(executor.events(healthy.name))) == (JobState.RUNNING, 3, 1), what
        if seed % 20 == 0:
            with limit("live"):
                assert healthy.name in executor.live()
    assert process.poll() is None


def begin_gang(bench: GangBench, spec: JobSpec) -> Path:
    """Submit a job, start its pods and return its run folder."""
    bench.executor.submit(spec, 1)
    bench.cluster.start(bench.executor.submissions.of(spec.name)[-1].name)
    folder = bench.executor.folders.run(spec) / "i1"
    folder.mkdir(exist_ok=True)
    (folder / "events.jsonl").write_bytes(canonical(EVENT) + b"\n")
    (folder / "beat-0").write_text("1")
    return folder.parent


def refill(run: Path, seed: int) -> str:
    """Replace the content of a gang's run folder and return a description."""
    for path in run.iterdir():
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            shutil.rmtree(path)
    (run / "i1").mkdir()
    return hostile(run, seed)


@pytest.mark.usefixtures("short_logs")
def test_the_executor_of_a_cluster_endures_hostile_run_folders(tmp_path: Path) -> None:
    bench = GangBench(tmp_path)
    executor = bench.executor
    executor.submissions.install()
    try:
        specs = [job(number).model_copy(update={"environment": {"RATCHET_NODES": "1"}}) for number in (1, 2, 3)]
        attacked, ended, healthy = specs
        attacked_run, ended_run, healthy_run = (begin_gang(bench, spec) for spec in specs)
        name = executor.submissions.of(ended.name)[-1].name
        wait_for(lambda: executor.observe(healthy.name).state is JobState.RUNNING)
        bench.cluster.finish(name, 1)
        wait_for(lambda: executor.observe(ended.name).state is JobState.ENDED)
        for seed in range(FOLDERS):
            (healthy_run / "i1" / "beat-0").write_text(str(seed))
            for run, spec in (((attacked_run, attacked), (ended_run, ended))[seed % 2],):
                what = refill(run, seed)
                executor.submissions.change(ended.name, name, ended=False)
                executor.reconciler._observed_at = -1e9  # the guardian reads the heartbeats in each call
                endure(executor, spec, what)
                with limit(f"guard with {what}"):
                    executor.guard()
                    executor.live()
                    assert executor.observe(spec.name).incarnation <= 20, what
            executor.reconcile(healthy.name)
            seen = executor.observe(healthy.name)
            assert (seen.state, seen.step, len(executor.events(healthy.name))) == (JobState.RUNNING, 3, 1)
        executor.reconciler.settings = bench.settings.model_copy(update={"cap_run": 0.0})
        executor.reconcile(healthy.name)
        assert "cap" in executor.submissions.of(healthy.name)[-1].stop
    finally:
        bench.close()


def wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"[]", "list"), (b'{"outcome": "won", "reason": ""}', "outcome"), (DEEP, "JSON"), (b'{"outcome": "done"}', "no reason")],
)
def test_a_damaged_result_is_a_permanent_failure_with_a_reason(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "ended.json").write_bytes(content)
    ended = read_ended(tmp_path)
    assert ended is not None
    assert ended.outcome is Outcome.PERMANENT
    assert "ended.json" in ended.reason
    assert words in ended.reason


def test_an_invalid_proposal_is_left_out_and_named(tmp_path: Path) -> None:
    for change in ({"learning_rate": -1.0}, {"kl": 1e300}, {"memory": 0.0}):
        proposal = {"rule": "r", "good": 1, "adjustment": change}
        (tmp_path / "ended.json").write_bytes(canonical({"outcome": "failed", "reason": "bad", "proposal": proposal}))
        ended = read_ended(tmp_path)
        assert ended is not None
        assert (ended.outcome, ended.proposal) == (Outcome.FAILED, None)
        assert ended.reason.startswith("bad; its proposal")


def test_only_submitted_incarnations_are_recognised(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    executor = LocalExecutor(tmp_path / "jobs", tmp_path / "artifacts")
    run = begin_local(executor, job(1), process.pid)
    for name in NAMES:
        (run / name).mkdir()
    assert executor.observe(job(1).name).incarnation == 1


def test_an_incarnation_beyond_the_restarts_of_volcano_is_ignored(tmp_path: Path) -> None:
    bench = GangBench(tmp_path)
    try:
        spec = job(1).model_copy(update={"environment": {"RATCHET_NODES": "1"}})
        run = begin_gang(bench, spec)
        highest = bench.executor.submissions.highest(spec.name)
        assert highest == 1 + bench.executor.submissions.of(spec.name)[0].job["spec"]["maxRetry"]
        (run / f"i{highest + 1}").mkdir()
        assert bench.executor.observer.newest(spec.name, run)[0] == 1
        (run / f"i{highest}").mkdir()
        assert bench.executor.observer.newest(spec.name, run)[0] == highest
    finally:
        bench.close()


def test_skipped_lines_of_an_event_log_are_counted(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    executor = LocalExecutor(tmp_path / "jobs", tmp_path / "artifacts")
    run = begin_local(executor, job(1), process.pid)
    good = canonical(EVENT) + b"\n"
    lines = [good, b"[]\n", b'"' + b"x" * LINE_BYTES + b'"\n', canonical({**EVENT, "incarnation": 2}) + b"\n", DEEP[:1000] + b"\n", good]
    (run / "i1" / "events.jsonl").write_bytes(b"".join(lines) + b'{"at": 1.0, "inc')
    *events, warning = executor.events(job(1).name)
    assert [event.step for event in events] == [3, 3]
    assert warning.kind == "warning"
    assert warning.data["reason"] == (
        "left out of i1/events.jsonl: events of other incarnations: 1, lines longer than 262144 bytes: 1, "
        "lines that are not valid events: 2"
    )


def test_the_part_of_an_event_log_beyond_the_limit_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(canonical(EVENT) + b"\n")
    with path.open("ab") as file:
        file.truncate(1 << 40)
    log = read_event_log(path, 1)
    assert len(log.events) == 1
    assert log.left_out[f"bytes after the first {EVENT_BYTES}"] >= (1 << 40) - EVENT_BYTES - LINE_BYTES


def test_a_link_in_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "ended.json").write_bytes(canonical({"outcome": "done", "reason": ""}))
    (tmp_path / "a1").mkdir()
    (tmp_path / "a1" / "i1").symlink_to(outside)
    with pytest.raises(BadJobFile, match="symbolic link"):
        read_job_file(tmp_path / "a1" / "i1" / "ended.json", 1000)


def test_nothing_is_written_through_a_link_in_place_of_a_folder(tmp_path: Path) -> None:
    executor, outside = LocalExecutor(tmp_path / "jobs", tmp_path / "artifacts"), tmp_path / "outside"
    outside.mkdir()
    run = executor.folders.run(job(1))
    run.parent.mkdir(parents=True)
    run.symlink_to(outside)
    with pytest.raises(Permanent, match="link"):
        executor.submit(job(1), 1)
    run.unlink()
    executor.folders.claim(job(1))
    (run / "i1").symlink_to(outside)
    with pytest.raises(Permanent, match="link"):
        executor.submit(job(1), 1)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("kind", ["fifo", "link to a file", "link to a device", "link to nothing"])
def test_links_and_special_files_are_not_published_or_pinned(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "step"
    folder.mkdir()
    (folder / "weights").write_text("w")
    write_manifest(folder)
    KINDS[kind](folder / "more", random.Random(0))
    with limit(kind):
        for call in (verify_manifest, write_manifest, FolderArtifacts(tmp_path / "artifacts").put_folder):
            with pytest.raises(Permanent, match="more"):
                call(folder)


def _safetensors(length: int, header: bytes, rest: int = 0) -> bytes:
    return struct.pack("<Q", length) + header + b"\0" * rest


def _one(offsets: Any, **changes: Any) -> bytes:
    return json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": offsets, **changes}}).encode()


@pytest.mark.parametrize(
    "data",
    [
        _safetensors(2**62, b"{}"),
        _safetensors(100_000_001, b"{}"),
        _safetensors(len(DEEP), DEEP),
        _safetensors(2, b"[]"),
        b"\x01",
        *(
            _safetensors(len(h), h, 4)
            for h in (_one([0, 2**62]), _one([0, 3]), _one([4, 8]), _one([-4, 0]), _one([0]), _one([0, 4], shape=[-1]))
        ),
    ],
)
def test_an_invalid_safetensors_header_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.safetensors").write_bytes(data)
    with pytest.raises(Permanent, match="safetensors"):
        count_parameters(tmp_path)
