"""Tests of the gang benchmark in its small form.

Ratchet's gangs never hold nodes while other nodes that they need are not available, and plain Jobs do. Idle nodes that fit only a part of a
gang stay idle without the guardian.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.cluster.rig.cluster import REPO

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("contest_parts")]


def measured(*parts: str) -> dict[str, Any]:
    """Run these parts of the small benchmark and return their figures."""
    chosen = [word for part in parts for word in ("--part", part)]
    command = [sys.executable, "benchmarks/gangs.py", "--small", "--json", *chosen]
    ran = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=400, check=False)
    assert ran.returncode == 0, ran.stderr
    return {part: told["measured"] for part, told in json.loads(ran.stdout).items()}


def test_no_gang_of_ours_holds_a_node_in_vain_and_an_evicted_one_is_back() -> None:
    said = measured("start_after_third_node", "contests", "recovery")
    (contest,) = said["contests"]
    ours, alone, plain = contest["ratchet"], contest["volcano_alone"], contest["plain_jobs"]
    assert ours["finished"] == alone["finished"] == contest["gangs"]
    # Eight is not a multiple of three, so filling the nodes pod by pod leaves an incomplete gang in every order.
    assert ours["samples_with_a_stuck_gang"] == 0 < plain["samples_with_a_stuck_gang"]
    assert ours["gpu_min_held_in_vain"] == 0 < plain["gpu_min_held_in_vain"]
    evicted = said["recovery"]["evicted_pod"]
    assert evicted["preemptions"] == 1
    assert evicted["whole_after_s"] > 0


def test_a_gang_without_a_node_is_served_and_idle_nodes_for_a_part_of_it_are_given_back() -> None:
    found = measured("capacity")["capacity"]
    assert found["static"]["from_zero"]["whole_after_s"] > 0
    pool = found["dynamic"]
    assert pool["from_zero_volcano_alone"] == pool["from_zero_volcano_alone"] | {"whole_after_s": None, "pods": 0, "machines": 0}
    assert pool["half_present"]["whole_after_s"] > 0
    unwatched = pool["half_present_without_guardian"]
    assert unwatched["whole_after_s"] is None
    assert unwatched["idle_gpu_min"] > 0
