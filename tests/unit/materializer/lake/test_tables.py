"""Tests of the lake: an empty one can be read, and partitions separate days and consent."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.exceptions import CommitFailedException, ValidationException

from ratchet.contracts.errors import Retryable
from ratchet.materializer.lake.tables import Lake
from tests.unit.materializer.conftest import make_datasets
from tests.unit.materializer.records import T0, batch, span, spans

DAY = 86_400 * 10**9


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


@pytest.mark.parametrize(
    ("failure", "advice"),
    [
        (CommitFailedException("the table has changed"), "the table has changed; try again"),
        (ValidationException("a file is gone"), "a file is gone; try again"),
        (OSError("no space left on device"), "no space left on device; free disk space, then try again"),
    ],
)
def test_only_a_failure_of_the_storage_asks_for_disk_space(tmp_path: Path, failure: Exception, advice: str) -> None:
    with pytest.raises(Retryable) as found, Lake(tmp_path).reaching("merge files of traces"):
        raise failure
    assert str(found.value) == f"cannot merge files of traces in {tmp_path}: {advice}"
