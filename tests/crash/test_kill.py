"""Tests with kill -9 of real processes: at every boundary, the cycle ends as in an undisturbed run, and no effect takes place twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow]
REPO = Path(__file__).resolve().parents[2]


def start(*args: object, **environment: str) -> subprocess.Popen[str]:
    """Start tests/crash/driver.py as a process with these arguments and environment variables."""
    command = [sys.executable, "-m", "tests.crash.driver", *map(str, args)]
    return subprocess.Popen(command, cwd=REPO, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Wait for a driver process to succeed and return the results it printed."""
    out, err = process.communicate(timeout=170)
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


def same(told: dict[str, Any], calm: dict[str, Any], where: object) -> None:
    """Assert that a run has the same rows, effects, route, aliases and job starts as the undisturbed run."""
    assert told["projection"] == calm["projection"], where
    assert Counter(told["effects"]) == Counter(calm["effects"]), where
    assert told["route"] == calm["route"], where
    assert told["aliases"] == calm["aliases"], where
    assert told["starts"] == calm["starts"] == ["1\n"], where


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of an undisturbed run that ends with a promotion."""
    return undisturbed(tmp_path_factory.mktemp("calm") / "home")


def undisturbed(root: Path, bad_canary: bool = False) -> dict[str, Any]:
    """Run one cycle without a kill and return its result; with `bad_canary` it ends with a rollback."""
    from tests.crash.driver import prepare, told

    prepare(root)
    if bad_canary:
        (root / "bad_canary").touch()
    finished(start("live", root))
    life: dict[str, Any] = json.loads(json.dumps(told(root)))
    return life


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
