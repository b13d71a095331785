"""Tests that compaction writes each row a few times only, and changes no row."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.table import Table

from ratchet.materializer.lake import compaction, tables
from tests.unit.materializer.conftest import make_datasets
from tests.unit.materializer.records import T0, batch, span, spans

DAY = 86_400 * 10**9


def test_sizes_grow_by_four() -> None:
    assert [compaction._tier(rows) for rows in (1, 2, 7, 8, 31, 32, 127, 128, 2048)] == [0, 1, 1, 2, 2, 3, 3, 4, 6]


@pytest.mark.slow
def test_a_row_is_written_a_few_times_however_many_commits_its_day_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_SNAPSHOTS", 6)
    monkeypatch.setattr(compaction, "_FILES", 4)
    datasets, written = make_datasets(tmp_path), list[int]()
    merge = compaction.merge

    def counted(table: Table, files: list[compaction.FileScanTask], *more: object) -> None:
        written.append(sum(task.file.record_count for task in files))
        merge(table, files, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(tables, "merge", counted)
    for n in range(60):
        many = [span(100 * n + k, f"question {n} {k} " + "with some words " * 8, at=T0 + (k % 2) * DAY) for k in range(1, 5)]
        datasets.ingest(batch(spans(*many)))
    lake = datasets.lake
    rows = lake.scan("traces")
    assert len(rows) == rows["id"].n_unique() == 240
    assert sum(written) > 240, "rows were merged"
    assert sum(written) < 5 * 240, "merging whole days would write each row thirty times"
    files = list(lake._table("traces").scan().plan_files())
    assert len(files) < 40
    for task in files:
        assert task.file.record_count > 0
    assert not {path.name for path in lake.unreachable("traces")} & {Path(task.file.file_path).name for task in files}


def test_files_of_different_partitions_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_SNAPSHOTS", 4)
    monkeypatch.setattr(compaction, "_FILES", 2)
    datasets = make_datasets(tmp_path)
    for n in range(1, 6):
        datasets.ingest(batch(spans(span(n), span(n + 50, metadata__consent=False), span(n + 100, at=T0 + DAY))))
    table = datasets.lake._table("traces")
    assert len({str(task.file.partition) for task in table.scan().plan_files()}) == 3
    before = datasets.lake.scan("traces")["id"].sort().to_list()
    assert len(before) == len(set(before)) == 15
    again = make_datasets(tmp_path)
    assert again.ingest(batch(spans(*(span(n) for n in range(1, 6))))).traces.duplicate == 5
