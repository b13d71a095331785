"""The benchmark of gangs runs, small, and shows what it is for: no gang of ours ever holds a part of its nodes, plain Jobs do."""

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
    assert ours["samples_with_a_partly_bound_gang"] == 0
    assert ours["gpu_min_held_by_partial_gangs"] == 0 < plain["gpu_min_held_by_partial_gangs"]
    evicted = said["recovery"]["measured"]["evicted_pod"]
    assert evicted["preemptions"] == 1
    assert evicted["whole_after_s"] > 0
