"""Tests of the pod entrypoint: the pod's identity, and failures that another pod may have caused."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ratchet.contracts.jobs.exit_codes import FAILURE, PREEMPTED, STOPPED
from ratchet.runtime.jobs.job_protocol import beat_file
from ratchet.trainers.job import pod_entrypoint

TOLD = {"RATCHET_FIRST_INCARNATION": "3", "RATCHET_RESTARTS": "2", "RATCHET_TASK": "worker", "VC_TASK_INDEX": "1", "RATCHET_NODES": "2"}


@pytest.mark.parametrize(
    ("changes", "incarnation", "node"),
    [
        ({}, 5, 1),
        ({"RATCHET_RESTARTS": ""}, 3, 1),
        ({"RATCHET_TASK": "head"}, 5, 0),
        ({"RATCHET_BACKEND": "nemo-rl", "VC_TASK_INDEX": "0"}, 5, 1),
    ],
)
def test_a_pod_knows_its_incarnation_and_its_node(changes: dict[str, str], incarnation: int, node: int) -> None:
    assert pod_entrypoint.identity({**TOLD, **changes}) == (incarnation, node)


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pod_entrypoint.PodEntrypoint:
    """Return the first pod of a gang of two nodes, with short timeouts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pod_entrypoint, "PEER_SECONDS", 6.0)
    monkeypatch.setattr(pod_entrypoint, "SILENT_SECONDS", 3.0)
    made = pod_entrypoint.PodEntrypoint({**os.environ, **TOLD, "VC_TASK_INDEX": "0"})
    made.folder.mkdir()
    return made


@pytest.mark.slow
def test_a_failure_next_to_a_silent_peer_is_a_preemption(one: pod_entrypoint.PodEntrypoint) -> None:
    (one.folder / beat_file(1)).write_text("7")
    assert one._believed(FAILURE) == PREEMPTED


@pytest.mark.slow
def test_a_failure_next_to_live_peers_is_a_failure(one: pod_entrypoint.PodEntrypoint) -> None:
    beat = "import pathlib, time\nfor n in range(150):\n    pathlib.Path('beat-1').write_text(str(n)); time.sleep(0.1)"
    with subprocess.Popen([sys.executable, "-c", beat], cwd=one.folder) as peer:
        while not (one.folder / beat_file(1)).exists():
            time.sleep(0.01)
        assert one._believed(FAILURE) == FAILURE
        peer.kill()


def test_a_failure_of_a_pod_that_was_stopped_is_no_failure(one: pod_entrypoint.PodEntrypoint) -> None:
    one.stopped = True
    assert one._believed(FAILURE) == STOPPED
    assert one._believed(0) == 0


@pytest.mark.slow
def test_a_pod_ends_with_its_supervisors_exit_code_and_sends_heartbeats(tmp_path: Path) -> None:
    told = {**TOLD, "RATCHET_NODES": "1", "VC_TASK_INDEX": "0", "RATCHET_ATTEMPT": "1"}
    root = Path(pod_entrypoint.__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "ratchet.trainers.job.pod_entrypoint"],
        cwd=tmp_path,
        env={**os.environ, **told, "PYTHONPATH": str(root)},
        check=False,
    )
    assert done.returncode == 78, "without a plan, a retry cannot succeed"
    assert (tmp_path / "i5" / beat_file(0)).exists()
