"""Tests of the lake: an empty one can be read, and partitions separate days and consent."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ratchet.contracts.data.records import FEEDBACK, TRACES
from ratchet.materializer.lake import commits
from ratchet.materializer.lake.commits import LeanTransaction
from ratchet.materializer.lake.schemas import arrow_schema, arrow_table
from ratchet.materializer.lake.tables import Lake, TableName, ordered
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


def _rows(table: TableName, count: int) -> list[dict[str, Any]]:
    """Random rows of several days, in no order, with equal keys and nulls."""
    rng, begin = random.Random(5), datetime(2026, 5, 1, tzinfo=UTC)
    made = []
    for number in range(count):
        row: dict[str, Any] = dict.fromkeys(column.name for column in (TRACES if table == "traces" else FEEDBACK))
        row |= {"source": "s", "batch": "0" * 64, "ingested": 1, "kind": "rating", "value": rng.random(), "trusted": True, "operator": True}
        row |= {"id": f"t{number}", "origin": "traffic", "status": "ok", "consent": rng.random() < 0.5, "verified": False}
        row |= {"model": rng.choice(("a", "b", None)), "answer": f"answer {number}", "trace_id": f"t{number}"}
        at = begin + timedelta(hours=rng.randint(0, 100))
        made.append(row | {"time": int(at.timestamp() * 1_000_000)})
    return made


@pytest.mark.parametrize("table", ["traces", "feedback"])
def test_each_file_has_the_rows_that_pyiceberg_would_write_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: TableName) -> None:
    columns = TRACES if table == "traces" else FEEDBACK
    rows = arrow_table(_rows(table, 200), columns)
    found = []
    for folder in ("ours", "large", "theirs"):
        lake = Lake(tmp_path / folder)
        with LeanTransaction(lake.table(table)) as change:
            if folder == "theirs":
                change.append(ordered(rows, table))
            else:
                monkeypatch.setattr(commits, "_FILE_BYTES", 1 << 30 if folder == "ours" else rows.nbytes - 1)
                change.append_rows(rows, ("model", "time", "id") if table == "traces" else (), {})
        files = lake.table(table).scan().plan_files()
        written = {str(one.file.partition): pq.read_table(one.file.file_path.removeprefix("file://")).to_pylist() for one in files}
        assert len(written) == len(list(files)) > 3
        found.append(written)
    assert found[0] == found[1] == found[2]


def test_rows_of_another_schema_are_not_appended(tmp_path: Path) -> None:
    rows = arrow_table(_rows("feedback", 1), FEEDBACK)
    with pytest.raises(ValueError, match="columns"), LeanTransaction(Lake(tmp_path).table("feedback")) as change:
        change.append_rows(rows.append_column("other", rows.column("source")), (), {})
    assert arrow_schema(FEEDBACK).names == rows.column_names
