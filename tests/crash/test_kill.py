"""Tests with kill -9 of real processes: at every boundary, the cycle ends as in an undisturbed run, and no effect takes place twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.crash.processes import finished, start, undisturbed

pytestmark = [pytest.mark.slow]


def same(told: dict[str, Any], calm: dict[str, Any], where: object) -> None:
    """Assert that a run has the same rows, effects, route, aliases and job starts as the undisturbed run."""
    assert told["projection"] == calm["projection"], where
    assert Counter(told["effects"]) == Counter(calm["effects"]), where
    assert told["route"] == calm["route"], where
    assert told["aliases"] == calm["aliases"], where
    assert told["starts"] == calm["starts"] == ["1\n"], where


def sweeps(root: Path, bad_canary: bool, start_at: int = 1) -> list[dict[str, Any]]:
    """Kill one run at every boundary from `start_at` and return the results; two sweeps run in parallel."""
    halves = []
    for first in (start_at, start_at + 1):
        home = root / f"from{first}"
        home.mkdir(parents=True)
        if bad_canary:
            (home / "bad_canary").touch()
        halves.append(start("sweep", home, first, 2))
    return [life for half in halves for life in finished(half)]


def test_promotion_with_a_kill_at_every_boundary(tmp_path: Path, calm: dict[str, Any]) -> None:
    assert [row[2] for row in calm["projection"] if row[1] == "ended"] == ["promoted", "promoted"]
    lives = sweeps(tmp_path, bad_canary=False)
    for life in lives:
        same(life, calm, f"killed at boundary {life['n']}")
    assert sorted(life["n"] for life in lives) == list(range(1, len(lives) + 1))
    assert len(lives) > 90


def test_rollback_with_a_kill_at_every_boundary(tmp_path: Path) -> None:
    calm = undisturbed(tmp_path / "calm", bad_canary=True)
    assert [row[2] for row in calm["projection"] if row[1] == "ended"] == ["rolled_back", "rolled_back"]
    lives = sweeps(tmp_path, bad_canary=True, start_at=70)  # up to the rollout, the boundaries are those of a promotion
    for life in lives:
        same(life, calm, f"killed at boundary {life['n']}")
    assert len(lives) > 20


@pytest.mark.parametrize("every", [7, 12])
def test_repeatedly_killed_runs_finish_the_cycle(tmp_path: Path, calm: dict[str, Any], every: int) -> None:
    (told,) = finished(start("stumble", tmp_path / "home", every))
    same(told, calm, f"killed at every {every}th boundary")
    assert told["n"] > 3
