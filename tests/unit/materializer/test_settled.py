"""Tests of the reader of rows with their present consent."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.data.senders import Role, Sender
from ratchet.contracts.errors import Inconclusive
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.lake.deletion import Change
from ratchet.materializer.privacy.masked_values import placeholder_pattern
from ratchet.materializer.settled import SettledReader
from tests.unit.materializer.conftest import make_datasets
from tests.unit.materializer.records import T0, batch, evaluation, logs, span, spans

DESK = Sender(name="desk", roles=(Role.FEEDBACK,))
SECOND = 10**9


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of reads of each table so far."""
    from ratchet.materializer.lake.tables import Lake

    counted: Counter[str] = Counter()
    for method in ("scan", "parts"):
        read = getattr(Lake, method)

        def counting(self: Lake, name: Any, *args: Any, read: Any = read, **more: Any) -> Any:
            counted[name] += 1
            return read(self, name, *args, **more)

        monkeypatch.setattr(Lake, method, counting)
    return counted


def reader(datasets: LakeDatasets) -> SettledReader:
    return SettledReader(datasets.lake, placeholder_pattern(datasets.loop.privacy))


def refusal(user: str) -> Any:
    said = evaluation("user_consent", 0.0, at=T0 + 60 * SECOND, user__id=user) | {"eventName": "gen_ai.evaluation.result"}
    return replace(batch(logs(said)), sender=DESK)


def test_an_edition_without_any_trace_names_the_ingest(tmp_path: Path) -> None:
    with pytest.raises(Inconclusive, match="no trace is in the lake yet; run `ratchet ingest`"):
        make_datasets(tmp_path).edition(1)


def test_an_edition_and_the_snapshot_after_it_read_each_row_once(tmp_path: Path, scans: Counter[str]) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(batch(spans(span(1), span(2))))
    now, shared = datetime.now(UTC), reader(datasets)
    scans.clear()
    shared.read(None, "edition")
    frozen = shared.read(now, "snapshot")
    assert scans == {"traces": 1, "feedback": 1, "consent": 1}
    alone = reader(datasets).read(now, "snapshot")
    assert frozen.traces.every().equals(alone.traces.every())
    assert frozen.feedback.equals(alone.feedback)
    assert shared._unused is None, "the rows of an idle line stay in memory"


@pytest.mark.slow
def test_rows_that_were_ingested_after_the_given_time_are_left_out_of_shared_rows(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(batch(spans(span(1))))
    between = datasets.lake.scan("traces")["ingested"].max()
    datasets.clock.sleep(5)
    datasets.ingest(batch(spans(span(2)), b""))
    shared = reader(datasets)
    assert len(shared.current().traces) == 2
    assert isinstance(between, datetime)
    assert len(shared.read(between, "snapshot").traces) == 1


@pytest.mark.slow
def test_what_is_withdrawn_is_read_again_only_after_a_new_statement(tmp_path: Path, scans: Counter[str]) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(batch(spans(span(1), span(2))))
    now, read = datetime.now(UTC), reader(datasets)
    before = read.read(now, "snapshot").withdrawn
    scans.clear()
    assert (read.withdrawn(now, "snapshot"), scans) == (before, {})
    assert reader(datasets).withdrawn(now, "snapshot") == before
    make_datasets(tmp_path).ingest(refusal("user-1"))  # as another process does
    assert read.withdrawn(now, "snapshot") != before
    assert read.withdrawn(now, "snapshot") == reader(datasets).withdrawn(now, "snapshot")


def test_rows_that_arrive_between_an_edition_and_its_snapshot_do_not_cause_a_second_read(tmp_path: Path, scans: Counter[str]) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(batch(spans(span(1))))
    opened, shared = datetime.now(UTC), reader(datasets)
    scans.clear()
    assert len(shared.current().traces) == 1
    make_datasets(tmp_path).ingest(batch(spans(span(2))))  # as the service does meanwhile
    assert len(shared.read(opened, "snapshot").traces) == 1
    assert scans == {"traces": 1, "feedback": 1, "consent": 1}
    assert len(reader(datasets).read(opened, "snapshot").traces) == 1, "the tag names the rows that were read"


def test_rows_in_memory_are_read_again_if_some_were_ingested_before_the_given_time(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(batch(spans(span(1))))
    shared = reader(datasets)
    shared.current()
    make_datasets(tmp_path).ingest(batch(spans(span(2))))
    assert len(shared.read(datetime.now(UTC), "snapshot").traces) == 2


@pytest.mark.slow
def test_a_snapshot_with_rows_that_were_removed_meanwhile_is_not_pinned(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    datasets.ingest(batch(spans(span(1), span(2))))
    opened, shared = datetime.now(UTC), reader(datasets)
    before = shared.current().snapshots["traces"]
    lake = make_datasets(tmp_path).lake
    with lake.writing():
        assert lake.rewrite("traces", Change(["id"], lambda rows: rows["id"] == rows["id"].min())) == 1
    assert len(shared.read(opened, "snapshot").traces) == 1
    assert datasets.lake.pin("traces", "snapshot") == datasets.lake.snapshot("traces") != before
