"""Tests of pods that share only a bucket with the service.

They cover which files are transferred, in which order, and the state of the bucket after an interruption.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import canonical, checkpoint_name, digest
from ratchet.contracts.jobs.exit_codes import FAILURE, PERMANENT, PREEMPTED, STOPPED
from ratchet.k8s.pod import upload
from ratchet.k8s.pod.upload import KEPT_SECONDS
from ratchet.runtime.jobs.run_folder import read_events
from tests.s3 import S3
from tests.unit.k8s.shared import PLAN, Shared, kill, save, tell
from tests.waiting import until

pytestmark = pytest.mark.slow
JOB = f"""
import json, os, signal, sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).resolve().parents[4])!r})
from ratchet.runtime.artifacts import FolderArtifacts, write_atomic
from ratchet.contracts.ids import canonical, checkpoint_name, digest
from tests.unit.k8s.shared import PLAN, save, tell
run = Path.cwd()
number = int(os.environ["RATCHET_FIRST_INCARNATION"])
folder = run / f"i{{number}}"
folder.mkdir(exist_ok=True)
artifacts = FolderArtifacts(Path(os.environ["RATCHET_ARTIFACTS"]))
def publish():
    (run / "made").mkdir()
    (run / "made" / "model.safetensors").write_bytes(b"trained")
    files = artifacts.put_folder(run / "made")
    artifacts.bind(checkpoint_name(PLAN, 1, number), artifacts.put(canonical({{"files": files}})))
def end(outcome):
    write_atomic(folder / "ended.json", canonical({{"outcome": outcome, "reason": "finished"}}))
"""


@pytest.fixture
def shared(s3: S3, tmp_path: Path) -> Shared:
    """Return a service that has uploaded its job's inputs to the bucket."""
    found = Shared(s3, tmp_path)
    found.remote.lay_out(found.spec)
    return found


def ended(pod: subprocess.Popen[str], seconds: float = 60) -> int:
    """Print the output of the pod's process and return its exit code."""
    said, _ = pod.communicate(timeout=seconds)
    print(said)
    return pod.returncode


def steps_there(shared: Shared, incarnation: int = 1) -> set[str]:
    """Return the steps that are complete in the bucket."""
    return {name.partition("/")[0] for name in shared.below(f"i{incarnation}") if name.endswith("/manifest.json")}


def told(shared: Shared, incarnation: int = 1) -> list[tuple[str, int]]:
    """Download the event log and return kind and step of its events."""
    shared.remote.pull(shared.run, fresh=True)
    return [(event.kind, event.step) for event in read_events(shared.run / f"i{incarnation}")]


def test_a_job_gets_its_inputs_and_the_service_gets_the_artifacts(shared: Shared) -> None:
    job = """
assert json.loads((run / "plan.json").read_text())["a"] == "plan"
assert (run / "model" / "model.safetensors").read_bytes() == b"w" * 100_000
assert (run / "pairs.parquet").read_text() == "pairs"
assert not list(artifacts.root.glob("sha256/*/*")), "the disk must hold the model only once"
assert os.environ["RATCHET_APART"] == "1" and float(os.environ["RATCHET_GRACE"]) == 12
(folder / "trainer.log").write_text("a log")
(folder / "beat-0").write_text("1")
tell(run, "progress", 10)
save(run, 10)
publish()
end("done")
sys.exit(7)
"""
    assert ended(shared.pod(JOB + job)) == 7, "the exit code must be the job's"
    assert told(shared) == [("progress", 10), ("checkpoint", 10)]
    assert json.loads((shared.run / "i1" / "ended.json").read_text())["outcome"] == "done"
    assert (shared.run / "i1" / "trainer.log").read_text() == "a log"
    assert not list(shared.run.glob("i1/step_*")), "the service must not download tensors"
    shared.remote.publish(shared.spec, 1)
    bound = shared.artifacts.resolve(checkpoint_name(PLAN, 1, 1))
    assert bound
    model = shared.artifacts.fetch(json.loads(shared.artifacts.get(bound))["files"], shared.folder / "model")
    assert (model / "model.safetensors").read_bytes() == b"trained"


def test_the_next_incarnation_gets_the_pinned_step_and_earlier_artifacts(shared: Shared) -> None:
    first = """
(run / "reference").write_bytes(b"reference values")
artifacts.bind("reference/x", artifacts.put_file(run / "reference"))
save(run, 10)
save(run, 20)
sys.exit(143)
"""
    assert ended(shared.pod(JOB + first)) == STOPPED
    shared.remote.pull(shared.run, fresh=True)
    point = next(e for e in read_events(shared.run / "i1") if e.kind == "checkpoint")
    shared.remote.pin(shared.spec, shared.point(10, str(point.data["manifest"])))
    second = """
import json
assert json.loads((run / "resume.json").read_text())["step"] == 10
assert (run / "i1" / "step_10" / "weights").read_text() == "weights 10"
assert not (run / "i1" / "step_20").exists()
assert len((run / "i1" / "events.jsonl").read_text().splitlines()) == 2
assert artifacts.get(artifacts.resolve("reference/x")) == b"reference values"
publish()
end("done")
"""
    assert ended(shared.pod(JOB + second, 2)) == 0
    third = """
assert artifacts.resolve(checkpoint_name(PLAN, 1, 2)), "an earlier incarnation published"
"""
    assert ended(shared.pod(JOB + third, 3)) == 0
    shared.remote.publish(shared.spec, 1)
    shared.remote.publish(shared.spec, 3)
    assert shared.artifacts.resolve(checkpoint_name(PLAN, 1, 1)) is None
    shared.remote.publish(shared.spec, 2)
    assert shared.artifacts.resolve(checkpoint_name(PLAN, 1, 2)) is not None


def test_the_uploaded_event_log_names_only_uploaded_steps(shared: Shared) -> None:
    pod = shared.leaving()
    tell(pod.place.run, "progress", 10)
    save(pod.place.run, 10)
    tell(pod.place.run, "progress", 11)
    pod.upload_small_files()
    assert told(shared) == [("progress", 10)]
    pod.bulk()
    pod.upload_small_files()
    assert told(shared) == [("progress", 10), ("checkpoint", 10), ("progress", 11)]
    with (pod.place.folder / "events.jsonl").open("ab") as file:
        file.write(b'{"torn')
    pod.upload_small_files()
    assert len(told(shared)) == 3


def test_a_trainer_may_save_faster_than_steps_are_uploaded(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest step is uploaded first.

    A step that is dropped before its upload is skipped. A step that is dropped during its upload still arrives.
    """
    pod = shared.leaving()
    for step in (10, 20, 30):
        save(pod.place.run, step)
    sent, send = [], shared.bucket.send

    def slow(path: Path, key: str, expected: str) -> None:
        sent.append(key.split("/")[-2])
        for name in ("step_10", "step_20", "step_30"):  # the trainer drops its steps meanwhile
            for file in (pod.place.folder / name).glob("*"):
                file.unlink()
        send(path, key, expected)

    monkeypatch.setattr(shared.bucket, "send", slow)
    pod.bulk()
    assert sent == ["step_30"]
    assert steps_there(shared) == {"step_30"}
    pod.upload_small_files()
    assert told(shared)[-1] == ("checkpoint", 30)
    save(pod.place.run, 40)
    pod.upload_small_files()
    assert told(shared)[-1] == ("checkpoint", 30)


def test_a_dropped_step_is_deleted_after_a_delay_unless_it_is_needed(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    pod, now = shared.leaving(), [1000.0]
    monkeypatch.setattr(upload.time, "monotonic", lambda: now[0])
    manifests = {step: save(pod.place.run, step) for step in (10, 20, 30)}
    while pod.bulk():
        pass
    shared.remote.pin(shared.spec, shared.point(10, manifests[10]))
    for step in (10, 20, 30):
        for file in (pod.place.folder / f"step_{step}").glob("*"):
            file.unlink()
    pod.bulk()
    now[0] += KEPT_SECONDS - 1
    pod.bulk()
    assert steps_there(shared) == {"step_10", "step_20", "step_30"}, "a dropped step must remain while the service may be accepting it"
    now[0] += 2
    pod.bulk()
    assert steps_there(shared) == {"step_10", "step_30"}, "the pinned step and the newest step must remain"
    assert not shared.below("i1/step_20")
    save(pod.place.run, 40)
    pod.bulk()
    now[0] += KEPT_SECONDS + 1
    shared.bucket.put(shared.key("i2/beat-0"), b"1")
    pod.bulk()
    assert "step_30" in steps_there(shared), "only the newest incarnation deletes steps"


@pytest.mark.parametrize("files", [1, 2, 5, 12, 29])
def test_a_killed_pod_leaves_no_manifest_of_an_incomplete_step(shared: Shared, files: int) -> None:
    job = """
save(run, 10)
save(run, 20, **{f"part-{number:02}": os.urandom(400_000) for number in range(30)})
(folder / "trainer.log").write_text("saved")
time.sleep(60)
"""
    pod = shared.pod(JOB + job)
    until(lambda: len(shared.below("i1/step_20")) >= files)
    kill(pod)
    there = shared.below("i1/step_20")
    assert ("manifest.json" in there) == (len(there) == 31)
    shared.remote.pull(shared.run, fresh=True)
    for event in read_events(shared.run / "i1"):
        shared.remote.pin(shared.spec, shared.point(event.step, str(event.data["manifest"])))


def test_a_stopped_pod_saves_and_uploads_its_step_and_its_result(shared: Shared) -> None:
    job = """
def stop(*_):
    save(run, 15)
    end("preempted")
    os._exit(143)
signal.signal(signal.SIGTERM, stop)
tell(run, "progress", 14)
while True:
    time.sleep(0.1)
"""
    pod = shared.pod(JOB + job)
    until(lambda: shared.there("i1/events.jsonl"))
    pod.terminate()
    assert ended(pod) == STOPPED
    assert told(shared)[-1] == ("checkpoint", 15)
    assert steps_there(shared) == {"step_15"}
    assert json.loads((shared.run / "i1" / "ended.json").read_text())["outcome"] == "preempted"


@pytest.mark.parametrize("outcome", ["preempted", "done"])
def test_if_the_grace_period_ends_first_nothing_refers_to_missing_uploads(shared: Shared, outcome: str) -> None:
    """A preempted job whose checkpoint did not arrive reports its end; a finished job whose model did not arrive does not."""
    job = """
tell(run, "progress", 14)
def stop(*_):
    save(run, 15, weights=b"w" * 1000) if OUTCOME == "preempted" else publish()
    end(OUTCOME)
    os._exit(0 if OUTCOME == "done" else 143)
signal.signal(signal.SIGTERM, stop)
(folder / "ready").touch()
while True:
    time.sleep(0.1)
""".replace("OUTCOME", repr(outcome))
    pod = shared.pod(JOB + job, RATCHET_POD_GRACE="16", SLOW="1")
    until(lambda: (shared.place() / "i1" / "ready").exists())
    pod.terminate()
    began = time.monotonic()
    assert ended(pod) == STOPPED
    assert time.monotonic() - began < 16
    assert told(shared) == [("progress", 14)]
    assert (shared.run / "i1" / "ended.json").exists() == (outcome == "preempted")
    shared.remote.publish(shared.spec, 1)
    assert shared.artifacts.resolve(checkpoint_name(PLAN, 1, 1)) is None


def test_a_pod_that_is_stopped_during_an_upload_ends_within_its_grace_period(shared: Shared) -> None:
    pod = shared.pod(JOB + 'publish()\nend("failed")\nsys.exit(1)\n', RATCHET_POD_GRACE="16", SLOW="1")
    until(lambda: (shared.place() / "i1" / "ended.json").exists())
    until(lambda: not psutil.Process(pod.pid).children())  # a job that still runs would be stopped, not uploaded
    time.sleep(0.5)
    pod.terminate()
    began = time.monotonic()
    assert ended(pod) == 1
    assert time.monotonic() - began < 16
    assert told(shared) == []
    assert json.loads((shared.run / "i1" / "ended.json").read_text())["outcome"] == "failed"


def test_a_pod_waits_for_an_unreachable_bucket_at_its_start_and_its_end(s3: S3, shared: Shared) -> None:
    s3.stop()
    pod = shared.pod(JOB + '(folder / "begun").touch()\nwhile not (run / "go").exists(): time.sleep(0.1)\nsave(run, 10)\nend("done")\n')
    time.sleep(3)
    assert pod.poll() is None
    s3.start()
    until(lambda: (shared.place() / "i1" / "begun").exists())
    s3.stop()
    (shared.place() / "go").touch()
    time.sleep(2)
    assert pod.poll() is None
    s3.start()
    assert ended(pod) == 0
    assert told(shared) == [("checkpoint", 10)]
    assert (shared.run / "i1" / "ended.json").exists()


def test_a_pod_that_is_stopped_before_its_job_starts_has_not_failed(s3: S3, shared: Shared) -> None:
    s3.stop()
    pod = shared.pod(JOB)
    assert pod.stdout is not None
    assert pod.stdout.readline(), "it says that the bucket does not answer, so that it also hears a signal"
    pod.send_signal(signal.SIGTERM)
    assert ended(pod) == STOPPED
    s3.start()


def test_a_bucket_that_stays_unreachable_preempts_the_job(s3: S3, shared: Shared) -> None:
    s3.stop()
    assert ended(shared.pod(JOB, PATIENCE="1")) == PREEMPTED
    assert PREEMPTED not in (0, FAILURE, PERMANENT), "Volcano must restart the gang"
    s3.start()


def test_the_timeout_also_applies_to_a_single_object(shared: Shared) -> None:
    """The pod gives up although the bucket responds and other files can be downloaded."""
    source = shared.leaving()
    manifest = save(source.place.run, 10)
    source.bulk()
    shared.remote.pin(shared.spec, shared.point(10, manifest))
    assert ended(shared.pod(JOB, 2, PATIENCE="2", BROKEN="weights")) == PREEMPTED


def test_a_failed_deletion_does_not_block_uploads(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    pod, now = shared.leaving(), [1000.0]
    monkeypatch.setattr(upload.time, "monotonic", lambda: now[0])
    for step in (10, 20):
        save(pod.place.run, step)
    while pod.bulk():
        pass
    for file in (pod.place.folder / "step_10").glob("*"):
        file.unlink()
    pod.bulk()
    now[0] += KEPT_SECONDS + 1

    def refused(key: str) -> None:
        raise Retryable(f"cannot delete {key}: AccessDenied")

    monkeypatch.setattr(shared.bucket, "delete", refused)
    assert not pod.bulk(), "nothing may be left to upload"
    assert steps_there(shared) == {"step_10", "step_20"}


def test_a_name_without_content_is_ignored(shared: Shared) -> None:
    first = JOB + 'artifacts.bind("reference/x", artifacts.put(b"reference values"))\n'
    assert ended(shared.pod(first)) == 0
    shared.bucket.delete(shared.remote.key(shared.artifacts.path(digest(b"reference values"))))
    assert ended(shared.pod(JOB + 'sys.exit(5 if artifacts.resolve("reference/x") is None else 6)\n', 2)) == 5


def test_another_job_under_the_same_name_is_refused(shared: Shared) -> None:
    other = shared.spec.model_copy(update={"plan_json": '{"another": "plan"}'})
    shared.bucket.put(shared.remote.key(shared.remote.folders.record(shared.spec.name)), canonical(other))
    assert ended(shared.pod(JOB)) == PERMANENT


def test_a_changed_input_is_refused(shared: Shared) -> None:
    shared.bucket.put(shared.remote.key(shared.artifacts.path(shared.spec.inputs["pairs.parquet"])), b"other pairs")
    assert ended(shared.pod(JOB)) == PERMANENT


def test_pods_of_a_gang_start_at_the_same_step_and_exchange_results(shared: Shared) -> None:
    source = shared.leaving()
    manifests = {step: save(source.place.run, step) for step in (10, 20)}
    while source.bulk():
        pass
    source.upload_small_files()
    shared.remote.pin(shared.spec, shared.point(10, manifests[10]))
    job = """
import json
node = int(os.environ["VC_TASK_INDEX"])
(folder / f"beat-{node}").write_text("1")
step = json.loads((run / "resume.json").read_text())["step"]
(folder / f"trainer{node or ''}.log").write_text(f"from {step}")
until = time.monotonic() + 20
while not (folder / f"beat-{1 - node}").exists() and time.monotonic() < until: time.sleep(0.1)
assert (folder / f"beat-{1 - node}").exists()
if node == 1:
    (folder / "result.json").write_text("out of memory")
    time.sleep(2)
else:
    while not (folder / "result-1.json").exists() and time.monotonic() < until: time.sleep(0.1)
    assert (folder / "result-1.json").read_text() == "out of memory"
    (folder / "result.json").write_text("a peer failed")
"""
    first = shared.pod(JOB + job, 2, 0, 2)
    until(lambda: shared.there("i2/start.json"))
    shared.remote.pin(shared.spec, shared.point(20, manifests[20]))  # too late: the gang has started
    second = shared.pod(JOB + job, 2, 1, 2)
    assert (ended(first), ended(second)) == (0, 0)
    assert shared.bucket.get(shared.key("i2/trainer.log")) == b"from 10"
    assert shared.bucket.get(shared.key("i2/trainer1.log")) == b"from 10"
    assert shared.bucket.get(shared.key("i2/result.json")) == b"a peer failed"


def test_a_pod_sends_heartbeats_while_it_downloads(shared: Shared) -> None:
    pod = shared.pod(JOB, 1, 1, 2)  # it waits until the first pod has chosen the step
    until(lambda: shared.there("i1/beat-1"))
    one = shared.bucket.get(shared.key("i1/beat-1"))
    until(lambda: shared.bucket.get(shared.key("i1/beat-1")) != one)
    kill(pod)
