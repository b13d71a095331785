"""A backfill by real workers gives the same rows and the same digests as one by the service, also if workers are killed in between."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from ratchet.contracts.data.datasets import RawBatch, Snapshot
from ratchet.contracts.ids import digest
from ratchet.contracts.ports import Compute
from ratchet.materializer import datasets as lake_datasets
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.receive.files.source import FileSource
from ratchet.materializer.training_sets import split
from ratchet.runtime.compute.children import Child
from ratchet.runtime.compute.processes import ProcessCompute
from ratchet.runtime.compute.ray_cluster import RayCompute
from tests.made_up_traces import made_up_lines
from tests.ray_cluster import RayCluster, ray_cluster
from tests.unit.materializer.conftest import make_datasets, make_loop
from tests.unit.materializer.small_datasets import LATER
from tests.waiting import until

pytestmark = pytest.mark.slow

TABLES = ("traces", "feedback", "quarantine", "consent")


def made_up(seed: int) -> RawBatch:
    """Return a batch of about 3 MB."""
    data = made_up_lines(seed)
    return RawBatch("app", "jsonl", digest(data), f"file {seed}", lambda: io.BytesIO(data))


def fill(folder: Path, batches: list[RawBatch], compute: Compute | None = None) -> tuple[LakeDatasets, Snapshot]:
    """Ingest, prepare and freeze."""
    datasets = make_datasets(folder, make_loop(), compute)
    reports = list(datasets.ingest_each(batches))
    assert all(report.traces.adds_up and report.feedback.adds_up for report in reports)
    datasets.prepare()
    return datasets, datasets.freeze("s", LATER, datasets.edition(1))


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "_SIGNED", 300)
    monkeypatch.setattr(lake_datasets, "AT_ONCE", 400)


@pytest.fixture(scope="module")
def batches() -> list[RawBatch]:
    return [made_up(seed) for seed in range(4)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, batches: list[RawBatch]) -> tuple[LakeDatasets, Snapshot]:
    return fill(tmp_path_factory.mktemp("inline"), batches)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as started:
        yield started


def assert_same(found: tuple[LakeDatasets, Snapshot], expected: tuple[LakeDatasets, Snapshot]) -> None:
    for table in TABLES:
        one, other = (which[0].lake.scan(table).drop("ingested") for which in (found, expected))
        assert one.equals(other), table
        assert len(one), table
    assert expected[1].counts["used"] > 500
    assert found[1].content == expected[1].content
    assert found[1].counts == expected[1].counts
    assert found[0].edition(1).prompts == expected[0].edition(1).prompts


class Killing(ProcessCompute):
    """Kills the processes of the first three requests that it has sent, each in the middle of its work."""

    killed = 0

    def answer(self, data: bytes, note: Callable[[Child, int], None]) -> bytes:
        def noted(child: Child, number: int) -> None:
            note(child, number)
            if self.killed < 3:
                self.killed += 1
                os.kill(child.pid, signal.SIGKILL)

        return super().answer(data, noted)


def test_processes_give_the_same(tmp_path: Path, batches: list[RawBatch], expected: tuple[LakeDatasets, Snapshot]) -> None:
    compute = ProcessCompute(2)
    assert_same(fill(tmp_path, batches, compute), expected)
    compute.close()


def test_killed_processes_give_the_same(tmp_path: Path, batches: list[RawBatch], expected: tuple[LakeDatasets, Snapshot]) -> None:
    compute = Killing(3, tries=5)
    assert_same(fill(tmp_path, batches, compute), expected)
    assert compute.killed == 3
    compute.close()


def test_ray_gives_the_same_also_if_a_worker_is_killed(
    tmp_path: Path,
    batches: list[RawBatch],
    expected: tuple[LakeDatasets, Snapshot],
    cluster: RayCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    compute = RayCompute(cluster.address, 2)
    until(lambda: "nodes: 2" in compute.reach(), 60)
    assert_same(fill(tmp_path / "calm", batches, compute), expected)
    killer = Killer(cluster)
    killer.start()
    found = fill(tmp_path / "killed", batches, compute)
    killer.join()
    assert killer.killed == "ray::ratchet"
    assert_same(found, expected)
    compute.close()


class Killer(threading.Thread):
    """Kills the first Ray worker that it sees at a task."""

    def __init__(self, cluster: RayCluster) -> None:
        super().__init__(daemon=True)
        self.cluster = cluster
        self.killed = ""

    def run(self) -> None:
        def busy() -> list[psutil.Process]:
            return [worker for worker in self.cluster.workers() if _name(worker) == "ray::ratchet"]

        worker = until(busy, 60, pause=0.005)[0]
        worker.kill()
        self.killed = "ray::ratchet"


def _name(process: psutil.Process) -> str:
    try:
        return str(process.cmdline()[0])
    except (psutil.Error, IndexError):
        return ""


@pytest.mark.shared
def test_real_traces_give_the_same(tmp_path: Path, traces: Path) -> None:
    """The exports of the shared traces: OTLP files, most of them with ratings."""

    def filled(folder: Path, compute: Compute | None = None) -> tuple[LakeDatasets, Snapshot]:
        return fill(folder, list(FileSource("gateway", "otlp", traces / "otlp").batches()), compute)

    compute = ProcessCompute(2)
    expected, found = filled(tmp_path / "one"), filled(tmp_path / "two", compute)
    for table in TABLES:
        assert found[0].lake.scan(table).drop("ingested").equals(expected[0].lake.scan(table).drop("ingested")), table
    assert found[1].content == expected[1].content
    compute.close()
