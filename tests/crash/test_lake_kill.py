"""Tests with kill -9 of the upkeep of a lake in each of its phases: no row is lost or doubled, and a repeat completes it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.lake.tables import TABLES, Lake
from tests.crash.lake import GRACE, run
from tests.crash.processes import REPO
from tests.unit.materializer.conftest import make_datasets
from tests.unit.materializer.records import T0, batch, evaluation, log, logs, span, spans

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DAY = 86_400 * 10**9
NOW = T0 / 10**9 + 40 * 86_400
BATCHES = 9


class Site:
    """A lake whose first upkeep has begun to wait for the readers of some files, and which has got more batches since."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.datasets: LakeDatasets = make_datasets(folder)
        self.lake = self.datasets.lake
        self.fill(1, 6)
        self.pinned = self.lake.pin("traces", "edition")
        run(self.lake.root, NOW)
        self.fill(6, BATCHES + 1)
        shutil.copytree(self.lake.root, folder / "backup")
        self.rows = self.read()

    def fill(self, begin: int, end: int) -> None:
        """Ingest batches with a trace and a rating each, on two days."""
        for n in range(begin, end):
            self.datasets.ingest(
                batch(spans(span(n, f"question {n}", at=T0 + (n % 2) * DAY)), logs(log(n, evaluation("user_feedback", 1))))
            )

    def restore(self) -> None:
        """Put the lake back as it was before a kill."""
        shutil.rmtree(self.lake.root)
        shutil.copytree(self.folder / "backup", self.lake.root)
        self.lake = Lake(self.lake.root)

    def read(self) -> dict[str, pl.DataFrame]:
        """The rows of all tables, in an order that does not depend on files."""
        return {name: self.lake.scan(name).sort("batch", "ingested") for name in TABLES}

    def upkeep(self, kill_at: int = 0) -> subprocess.Popen[bytes]:
        """Start an upkeep that deletes the unused files which the first one has seen."""
        command = [sys.executable, "-m", "tests.crash.lake", str(self.lake.root), str(NOW + GRACE)]
        return subprocess.Popen(command, cwd=REPO, env={**os.environ, "RATCHET_KILL_AT": str(kill_at)}, stderr=subprocess.PIPE)

    def check(self) -> None:
        """The killed upkeep has changed no row; a repeat completes it, and its leftovers go, too."""
        self.same()
        run(self.lake.root, NOW + GRACE)
        self.same()
        assert self.lake.unused(), "files of the last upkeep wait for readers"
        run(self.lake.root, NOW + 3 * GRACE)
        assert self.lake.unused() == []
        self.same()
        assert self.lake.scan("traces", snapshot=self.pinned).height == 5
        files = {name: sum(1 for _ in self.lake.table(name).scan().plan_files()) for name in TABLES}
        assert files == {"traces": 2, "feedback": 1, "consent": 0, "quarantine": 0}
        again = make_datasets(self.folder).ingest(batch(*(spans(span(n, f"question {n}", at=T0 + (n % 2) * DAY)) for n in range(1, 11))))
        assert (again.traces.kept, again.traces.duplicate) == (1, BATCHES)

    def same(self) -> None:
        """The lake has the rows that were ingested, each once."""
        for name, rows in self.read().items():
            assert rows.equals(self.rows[name])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("lake"))


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_upkeep_that_is_killed_at_each_boundary_loses_and_doubles_nothing(site: Site, every: int) -> None:
    kill_at, killed = 1, 0
    while True:
        site.restore()
        process = site.upkeep(kill_at)
        _, errors = process.communicate(timeout=120)
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, errors.decode()
            break
        killed += 1
        site.check()
        kill_at += every
    site.check()
    assert killed * every >= 16


@pytest.mark.parametrize("seed", [1, 2, pytest.param(3, marks=pytest.mark.soak), pytest.param(4, marks=pytest.mark.soak)])
def test_upkeep_that_is_killed_at_a_random_moment_loses_and_doubles_nothing(site: Site, seed: int) -> None:
    site.restore()
    process = site.upkeep()
    begun = time.monotonic()
    while process.poll() is None and not _has_begun(site) and time.monotonic() - begun < 60:
        time.sleep(0.005)
    time.sleep(random.Random(seed).random() * 0.5)
    process.kill()
    process.communicate()
    site.check()


def _has_begun(site: Site) -> bool:
    """Whether the upkeep has taken the lock of a compaction."""
    with site.lake.compacting(wait=False) as is_free:
        return not is_free
