"""Tests with kill -9 of an ingest into a lake with its files on S3, and its catalog in Postgres or behind REST: nothing lost or doubled."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.lake.tables import TABLES
from ratchet.materializer.lake.unused import sweep
from tests.crash.processes import REPO
from tests.crash.shared_ingest import given, opened
from tests.shared_lake import SharedPlaces, postgres, rest_places, shared_places  # noqa: F401  fixtures

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COUNT = 2
NOW = 1_800_000_000.0


@pytest.fixture(params=["postgres", "rest"])
def places(request: pytest.FixtureRequest) -> SharedPlaces:
    found: SharedPlaces = request.getfixturevalue("shared_places" if request.param == "postgres" else "rest_places")
    return found


def ingest(places: SharedPlaces, folder: Path, kill_at: int) -> int:
    """Run an ingest of all batches into a new lake, and return its exit status."""
    values = [str(folder), places.url, places.warehouse, folder.name, str(COUNT)]
    command = [sys.executable, "-m", "tests.crash.shared_ingest", *values]
    return subprocess.run(command, cwd=REPO, env={**os.environ, "RATCHET_KILL_AT": str(kill_at)}, timeout=120, check=False).returncode


def rows(datasets: LakeDatasets) -> dict[str, int]:
    """Return the number of rows of each table, counted from the rows themselves."""
    return {name: len(datasets.lake.scan(name)) for name in TABLES}


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.soak)])
def test_an_ingest_that_is_killed_at_each_boundary_loses_and_doubles_nothing(
    places: SharedPlaces,
    tmp_path: Path,
    every: int,
) -> None:
    """With 11: when a table is created, between two appends, after a commit, and after the metadata file of one."""
    expected = {"traces": COUNT, "feedback": COUNT, "consent": COUNT, "quarantine": COUNT}
    kill_at, killed = 1, 0
    while True:
        folder = tmp_path / f"line-{kill_at}"
        status = ingest(places, folder, kill_at)
        if status == 0:
            break
        assert status == -signal.SIGKILL
        killed += 1
        if killed % 2:
            shutil.rmtree(folder / "lake")  # the pod's volume is lost, too
        datasets = opened(folder, places.url, places.warehouse, folder.name)
        for n in range(1, COUNT + 1):
            report = datasets.ingest(given(n))
            assert (report.traces.kept, report.traces.quarantined, report.feedback.kept) == (1, 1, 2)
        assert rows(datasets) == expected
        sweep(datasets.lake, NOW, 0)
        assert rows(datasets) == expected, "no file that is needed was swept"
        kill_at += every
    assert killed * every >= 34
