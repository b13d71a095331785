"""The benchmark of gangs runs, small, and shows what it is for: no gang of ours ever holds nodes while others that it needs are not to be
had; plain Jobs do."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cluster.rig.cluster import REPO

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("contest_parts")
def test_a_small_run_holds_no_node_in_vain() -> None:
    command = [sys.executable, "benchmarks/gangs.py", "--small", "--json"]
    ran = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=170, check=False)
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    (contest,) = said["contests"]["measured"]
    ours, plain = contest["ratchet"], contest["plain_jobs"]
    assert ours["finished"] == contest["gangs"]
    # Eight nodes are no multiple of three: who fills them pod by pod ends up with a part of a gang, in whatever order.
    assert ours["samples_with_a_stuck_gang"] == 0 < plain["samples_with_a_stuck_gang"]
    assert ours["gpu_min_held_in_vain"] == 0 < plain["gpu_min_held_in_vain"]
    evicted = said["recovery"]["measured"]["evicted_pod"]
    assert evicted["preemptions"] == 1
    assert evicted["whole_after_s"] > 0
