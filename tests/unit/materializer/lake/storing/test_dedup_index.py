"""The rows that ingest adds to the index are those that the index would read from the lake."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.data.datasets import Counts
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.lake.storing import dedup_index
from ratchet.materializer.lake.storing.dedup_index import DedupIndex
from tests.unit.materializer.conftest import make_datasets, signed
from tests.unit.materializer.records import T0, batch, evaluation, log, logs, span, spans

_TABLES = ("traces", "feedback", "consent", "quarantine", "names", "covered")


def _content(datasets: LakeDatasets) -> dict[str, list[Any]]:
    with closing(sqlite3.connect(datasets.lake.root / "seen.sqlite")) as index:
        return {table: sorted(index.execute(f"SELECT * FROM {table}").fetchall()) for table in _TABLES}


@pytest.mark.slow
@pytest.mark.parametrize("part", [1, 3, 1000])
def test_the_index_is_the_same_as_one_that_is_built_from_the_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    monkeypatch.setattr(dedup_index, "_PART", part)
    datasets = make_datasets(tmp_path)
    told = {"gen_ai__response__id": "r-7"}
    first = [span(1), span(1), span(2, metadata__consent=None), span(3, metadata__consent=False), span(4, **told), 7]
    datasets.ingest(batch(spans(*first), logs(log(1, evaluation("user_feedback", 1)), log(9, evaluation("user_correction", text="x")))))
    datasets.ingest(batch(spans(span(2), signed(tmp_path, span(1)), signed(tmp_path, span(5)), span(3)), spans(span(1, answer="A: 9"))))
    lines = [
        {"id": f"j{n}", "timestamp": T0, "messages": [{"role": "user", "content": "q"}], "response": "a", "consent": True} for n in range(9)
    ]
    rated = [one | {"feedback": n % 2, "user_id": f"u{n}", "response_id": f"r{n}"} for n, one in enumerate(lines)]
    datasets.ingest(batch(*rated, *rated[:2], {"id": "j0", "timestamp": T0, "consent_for": "trace", "consent": False}, kind="jsonl"))
    for table in ("traces", "feedback", "consent", "quarantine"):
        datasets._seen.catch_up(table)  # type: ignore[arg-type]
    added = _content(datasets)
    for file in datasets.lake.root.glob("seen.sqlite*"):
        file.unlink()
    again = DedupIndex(datasets.lake)
    for table in ("traces", "feedback", "consent", "quarantine"):
        again.catch_up(table)  # type: ignore[arg-type]
    assert added == _content(datasets)
    assert all(added[table] for table in _TABLES)


@pytest.mark.slow
def test_rows_that_another_writer_has_appended_are_read_from_the_lake(tmp_path: Path) -> None:
    datasets, other = make_datasets(tmp_path), make_datasets(tmp_path)
    datasets.ingest(batch(spans(span(1))))
    commit = datasets.lake.append("traces", datasets.lake.table("traces").scan().to_arrow().slice(0, 0), "0" * 64)
    assert commit is None  # nothing was appended
    other.ingest(batch(spans(span(2))))
    assert datasets.ingest(batch(spans(span(2), span(3)))).traces.duplicate == 1


@pytest.mark.slow
def test_a_response_of_a_signed_row_without_content_has_the_content_of_its_trace(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)

    def corrected(at: int) -> Counts:
        event = evaluation("user_correction", at=at, text="x", gen_ai__response__id="r-1")
        return datasets.ingest(batch(logs(event | {"eventName": event["name"]}))).feedback

    datasets.ingest(batch(spans(signed(tmp_path, span(1, metadata__consent=None)))))
    assert corrected(T0 + 10).skipped == 1
    datasets.ingest(batch(spans(signed(tmp_path, span(1, gen_ai__response__id=None)))))
    assert corrected(T0 + 20_000).kept == 1
