"""Tests of the catalog of a local lake: a metadata file is read once, and the tables that it gives are those of the last commit."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from ratchet.materializer.lake.tables import Lake
from tests.unit.materializer.conftest import make_datasets
from tests.unit.materializer.records import batch, span, spans


def test_an_ingest_reads_each_metadata_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets, read, open_file = make_datasets(tmp_path), list[str](), PyArrowFileIO.new_input
    datasets.ingest(batch(spans(span(1))))

    def opened(self: PyArrowFileIO, location: str) -> object:
        if location.endswith(".metadata.json"):
            read.append(location)
        return open_file(self, location)

    monkeypatch.setattr(PyArrowFileIO, "new_input", opened)
    for number in range(2, 5):
        datasets.ingest(batch(spans(span(number))))
    assert len(read) == len(set(read)) == 3, "one of traces for each commit"


def test_each_lake_sees_the_commits_of_another_one(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    reader = Lake(datasets.lake.root)
    for number in range(1, 4):
        datasets.ingest(batch(spans(span(number))))
        assert reader.snapshot("traces") == datasets.lake.snapshot("traces")
        assert len(reader.scan("traces")) == number
