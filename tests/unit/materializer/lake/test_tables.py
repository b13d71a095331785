"""Tests of the lake: compaction after many small batches keeps all rows, and partitions separate days and consent."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.materializer.lake import compaction, tables
from tests.unit.materializer.conftest import make_datasets
from tests.unit.materializer.records import T0, batch, evaluation, log, logs, span, spans

DAY = 86_400 * 10**9


@pytest.mark.slow
def test_compaction_merges_files_and_expires_snapshots_except_pinned_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_SNAPSHOTS", 8)
    monkeypatch.setattr(compaction, "_FILES", 3)
    datasets = make_datasets(tmp_path)
    pinned = None
    for n in range(1, 25):
        datasets.ingest(batch(spans(span(n, at=T0 + (n % 2) * DAY)), logs(log(n, evaluation("user_feedback", 1)))))
        if n == 5:
            pinned = datasets.lake.pin("traces", "a snapshot")
    table = datasets.lake._table("traces")
    assert len(table.metadata.snapshots) <= 9
    assert sum(1 for _ in table.scan().plan_files()) < 12
    assert sorted(datasets.lake.scan("traces")["id"]) == [f"{n:032x}:{n:016x}" for n in range(1, 25)]
    assert datasets.lake.scan("feedback").height == 24
    assert datasets.lake.scan("traces", snapshot=pinned).height == 5
    assert datasets.lake.pin("traces", "a snapshot") == pinned
    assert datasets.ingest(batch(*(spans(span(n, at=T0 + (n % 2) * DAY)) for n in range(1, 26)))).traces.kept == 1


@pytest.mark.slow
def test_tagged_snapshots_do_not_count_towards_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tagged snapshots never expire. If they counted, every commit would plan a compaction once there are enough of them."""
    monkeypatch.setattr(tables, "_SNAPSHOTS", 4)
    datasets = make_datasets(tmp_path)
    for n in range(1, 7):
        datasets.ingest(batch(spans(span(n))))
        datasets.lake.pin("traces", f"snapshot {n}")
    planned: list[int] = []
    monkeypatch.setattr(tables, "small_files", lambda table: planned.append(1) or [])
    datasets.ingest(batch(spans(span(7))))
    assert planned == []
    assert len(datasets.lake._table("traces").metadata.snapshots) == 7


def test_empty_lake_can_be_read(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    assert datasets.cursor().traces == 0
    assert datasets.lake.scan("traces").is_empty()
    assert datasets.lake.pin("traces", "x") is None


def test_partitions_separate_days_and_consent(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(batch(spans(span(1), span(2, metadata__consent=False), span(3, at=T0 + DAY))))
    folders = {
        path.parent.relative_to(tmp_path / "lake").as_posix().partition("data/")[2]
        for path in (tmp_path / "lake").rglob("traces/data/**/*.parquet")
    }
    assert len(folders) == 3
    assert all("consent=" in folder and "day=" in folder for folder in folders)
