"""Tests with kill -9 of real processes: the cycle ends as in an undisturbed run, and no effect takes place twice.

`make soak` kills at every boundary, `make test` at a few; the simulation crashes at every boundary in both.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.crash.processes import finished, start, undisturbed

pytestmark = [pytest.mark.slow]


def same(told: dict[str, Any], calm: dict[str, Any], where: object, jobs: int = 1) -> None:
    """Assert that a run has the same rows, effects, route, aliases and job starts as the undisturbed run."""
    assert told["projection"] == calm["projection"], (where, told["ends"])
    assert Counter(told["effects"]) == Counter(calm["effects"]), where
    assert told["route"] == calm["route"], where
    assert told["aliases"] == calm["aliases"], where
    assert told["starts"] == calm["starts"] == ["1\n"] * jobs, where


def sweeps(root: Path, marker: str, start_at: int, every: int) -> list[dict[str, Any]]:
    """Kill one run at every `every`-th boundary from `start_at` and return the results; two sweeps run in parallel."""
    halves = []
    for first in (start_at, start_at + every):
        home = root / f"from{first}"
        home.mkdir(parents=True)
        if marker:
            (home / marker).touch()
        halves.append(start("sweep", home, first, 2 * every))
    return [life for half in halves for life in finished(half)]


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.soak)])
def test_promotion_with_a_kill_at_the_boundaries(tmp_path: Path, calm: dict[str, Any], every: int) -> None:
    assert [row[2] for row in calm["projection"] if row[1] == "ended"] == ["promoted", "promoted"]
    lives = sweeps(tmp_path, "", 1, every)
    for life in lives:
        same(life, calm, f"killed at boundary {life['n']}")
    assert sorted(life["n"] for life in lives) == list(range(1, len(lives) * every + 1, every))
    assert len(lives) * every > 90


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.soak)])
def test_rollback_with_a_kill_at_the_boundaries(tmp_path: Path, every: int) -> None:
    calm = undisturbed(tmp_path / "calm", "bad_canary")
    assert [row[2] for row in calm["projection"] if row[1] == "ended"] == ["rolled_back", "rolled_back"]
    lives = sweeps(tmp_path, "bad_canary", 70, every)  # up to the rollout, the boundaries are those of a promotion
    for life in lives:
        same(life, calm, f"killed at boundary {life['n']}")
    assert len(lives) * every > 20


@pytest.mark.parametrize("every", [19, pytest.param(1, marks=pytest.mark.soak)])
def test_search_with_a_kill_at_the_boundaries(tmp_path: Path, every: int) -> None:
    calm = undisturbed(tmp_path / "calm", "search")
    rows = [row for row in calm["projection"] if row[1] in ("trial_intended", "trial_ended", "chosen")]
    assert [(row[1], row[2]) for row in rows[:-1]] == [(kind, str(n)) for n in (1, 2, 3) for kind in ("trial_intended", "trial_ended")]
    assert rows[-1][1:3] == ["chosen", "2"], "the second recipe has the highest rate"
    lives = sweeps(tmp_path, "search", 25, every)  # up to the approval, the boundaries are those of a promotion
    for life in lives:
        same(life, calm, f"killed at boundary {life['n']}", jobs=3)
    assert len(lives) * every > 70


@pytest.mark.parametrize("every", [7, 12])
def test_repeatedly_killed_runs_finish_the_cycle(tmp_path: Path, calm: dict[str, Any], every: int) -> None:
    (told,) = finished(start("stumble", tmp_path / "home", every))
    same(told, calm, f"killed at every {every}th boundary")
    assert told["n"] > 3
