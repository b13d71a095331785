"""Tests that files to which nothing refers are deleted after a time for readers, and that all others stay."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan

from ratchet.materializer.lake import upkeep
from ratchet.materializer.lake.unused import READER_SECONDS, sweep
from tests.unit.materializer.conftest import make_datasets
from tests.unit.materializer.lake.test_upkeep import LONG_AFTER
from tests.unit.materializer.records import batch, span, spans

NOW = 1_800_000_000.0


def files(folder: Path) -> set[Path]:
    return {path for path in (folder / "lake" / "warehouse").rglob("*") if path.is_file()}


@pytest.mark.slow
def test_replaced_files_stay_for_readers_and_go_then_with_all_leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_KEPT", 1)
    monkeypatch.setattr(upkeep, "_MANY", 2)
    datasets = make_datasets(tmp_path)
    for n in range(1, 6):
        datasets.ingest(batch(spans(span(n))))
    lake = datasets.lake
    for path in files(tmp_path):
        os.utime(path, (1, 1))  # the age of a file does not say since when it is unused
    table = lake.table("traces")
    reader = list(table.scan().plan_files())
    list(upkeep.keep(lake, LONG_AFTER))
    for n in (6, 7):
        datasets.ingest(batch(spans(span(n))))
    list(upkeep.keep(lake, LONG_AFTER))
    stray = Path(table.location().removeprefix("file://")) / "data" / "of a killed writer.parquet"
    stray.write_bytes(b"half")
    before = files(tmp_path)
    tried = sweep(lake, NOW, 0, dry_run=True)
    assert (tried.files > 5, files(tmp_path), (tmp_path / "lake" / "unused.json").exists()) == (True, before, False)
    first = sweep(lake, NOW, READER_SECONDS)
    assert (first.files, first.waiting, files(tmp_path)) == (0, tried.files, before)
    assert sweep(lake, NOW + READER_SECONDS - 1, READER_SECONDS).files == 0
    assert ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table(reader).num_rows == 5
    second = sweep(lake, NOW + READER_SECONDS, READER_SECONDS)
    assert (second.files, second.waiting, stray.exists()) == (tried.files, 0, False)
    assert second.bytes > 0
    assert not any(Path(task.file.file_path.removeprefix("file://")).exists() for task in reader)
    assert len(lake.scan("traces")) == lake.scan("traces", snapshot=lake.snapshot("traces")).height == 7
    assert sweep(lake, NOW + 2 * READER_SECONDS, READER_SECONDS)[:2] == (0, 0)
    assert datasets.ingest(batch(spans(span(8)))).traces.kept == 1


@pytest.mark.slow
def test_tagged_rows_can_be_read_after_the_files_of_all_others_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_KEPT", 1)
    monkeypatch.setattr(upkeep, "_MANY", 2)
    datasets = make_datasets(tmp_path)
    lake = datasets.lake
    datasets.ingest(batch(spans(span(1))))
    pinned = lake.pin("traces", "edition")
    for n in range(2, 7):
        datasets.ingest(batch(spans(span(n))))
        list(upkeep.keep(lake, LONG_AFTER + timedelta(days=n)))
        sweep(lake, NOW + n, 0)
    assert lake.scan("traces", snapshot=pinned).height == 1
    assert len(lake.scan("traces")) == 6


def test_a_clock_that_was_set_back_does_not_make_a_file_older(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    stray = Path(datasets.lake.table("traces").location().removeprefix("file://")) / "data" / "stray"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"")
    assert sweep(datasets.lake, NOW, 60).waiting == 1
    assert sweep(datasets.lake, NOW - 1000, 60).waiting == 1
    assert sweep(datasets.lake, NOW - 940, 60).files == 1


@pytest.mark.slow
def test_a_lake_that_was_moved_loses_nothing_and_remembers_since_when_files_are_unused(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path / "former")
    for n in range(1, 6):
        datasets.ingest(batch(spans(span(n))))
    pinned = datasets.lake.pin("traces", "edition")
    Path(datasets.lake.table("traces").location().removeprefix("file://"), "data", "stray").write_bytes(b"half")
    assert sweep(datasets.lake, NOW, READER_SECONDS).waiting == 1
    (tmp_path / "former").rename(tmp_path / "new")
    moved = make_datasets(tmp_path / "new").lake
    assert upkeep.pending(moved, "traces", LONG_AFTER) == 5
    list(upkeep.keep(moved, LONG_AFTER))
    assert sweep(moved, NOW + READER_SECONDS, READER_SECONDS).files == 1
    assert len(moved.scan("traces")) == moved.scan("traces", snapshot=pinned).height == 5
