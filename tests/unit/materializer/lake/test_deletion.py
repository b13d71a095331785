"""Tests of deletions from the lake: rows, history, statistics and files; and that nothing of erased people is ingested."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ratchet.contracts.data.senders import Role, Sender
from ratchet.materializer.consent import erased_people
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.erasure.lake_rows import LineRows, Target, purge, tombstone
from ratchet.materializer.lake.storing.dedup_index import DedupIndex
from ratchet.materializer.quarantine.kept import Bytes, KeptRecords
from tests.markers import marks_in
from tests.unit.materializer.conftest import make_datasets, pseudonym_of
from tests.unit.materializer.records import T0, batch, evaluation, log, logs, span, spans

DAY = 86_400 * 10**9
SHOP = Sender(name="shop", roles=(Role.TRACES, Role.FEEDBACK))


def filled(folder: Path) -> LakeDatasets:
    """Datasets with one trace per user and day. Each text of user `n` begins with a marker, so that statistics contain it."""
    datasets = make_datasets(folder)
    for n in range(1, 5):
        trace = span(n, f"zq{n:03d}zq?", f"zq{n:03d}zq!", at=T0 + n * DAY)
        datasets.ingest(batch(spans(trace), logs(log(n, evaluation("user_correction", text=f"zq{n:03d}zq", user__id=f"user-{n}")))))
    return datasets


def erase(datasets: LakeDatasets, *users: str) -> None:
    target = Target(frozenset(pseudonym_of(datasets, "u", user) for user in users))
    with datasets.lake.writing():
        tombstone(datasets.lake, target.users, (), datetime(2026, 11, 1, tzinfo=UTC))
        LineRows(datasets.lake, target).remove(DedupIndex(datasets.lake))
        purge(datasets.lake)


@pytest.mark.slow
def test_neither_a_snapshot_nor_a_statistic_nor_a_file_keeps_deleted_rows_and_tags_move(tmp_path: Path) -> None:
    datasets = filled(tmp_path)
    pinned = datasets.lake.pin("traces", "a snapshot")
    assert marks_in(tmp_path / "lake").keys() == {1, 2, 3, 4}
    erase(datasets, "user-1", "user-3")
    assert marks_in(tmp_path / "lake").keys() == {2, 4}
    moved = datasets.lake.pin("traces", "a snapshot")
    assert (moved != pinned, moved) == (True, datasets.lake.snapshot("traces"))
    assert len(datasets.lake.scan("traces", snapshot=moved)) == 2
    assert datasets.ingest(batch(spans(span(9)))).traces.kept == 1  # the table can be written


@pytest.mark.slow
def test_a_table_that_loses_all_rows_goes_on(tmp_path: Path) -> None:
    datasets = filled(tmp_path)
    erase(datasets, *(f"user-{n}" for n in range(1, 5)))
    assert marks_in(tmp_path / "lake").keys() == set()
    assert datasets.cursor().traces == 0
    assert datasets.ingest(batch(spans(span(9)))).traces.kept == 1


@pytest.mark.slow
def test_records_of_erased_people_and_corrections_of_their_traces_are_skipped_and_counted(tmp_path: Path) -> None:
    datasets = filled(tmp_path)
    erase(datasets, "user-1")
    later = [spans(span(1, "zq001zq again", user__id="user-1")), spans(span(20, user__id="user-1", metadata__consent=None))]
    said = log(1, evaluation("user_correction", text="zq001zq by another", user__id="user-2", at=T0 + 99))
    report = datasets.ingest(replace(batch(*later, logs(said)), sender=SHOP))
    assert report.traces.adds_up
    assert report.feedback.adds_up
    assert (report.traces.skipped, report.traces.reasons) == (2, {"erased": 2})
    assert (report.feedback.skipped, report.feedback.reasons) == (1, {"no_consent": 1})
    assert 1 not in marks_in(tmp_path / "lake")


@pytest.mark.slow
def test_only_a_newer_consent_of_the_operator_lifts_an_erasure(tmp_path: Path) -> None:
    datasets = filled(tmp_path)
    erase(datasets, "user-1")
    after = int(datetime(2026, 11, 1, 1, tzinfo=UTC).timestamp()) * 10**9
    stated = evaluation("user_consent", 1.0, at=after, user__id="user-1")
    record = logs(stated | {"eventName": "gen_ai.evaluation.result"})
    datasets.ingest(replace(batch(record), sender=SHOP))
    assert erased_people(datasets.lake.scan("consent")).users == {pseudonym_of(datasets, "u", "user-1")}
    assert datasets.ingest(batch(spans(span(30, user__id="user-1")))).traces.reasons == {"erased": 1}
    datasets.ingest(batch(record))  # a file of the operator
    assert erased_people(datasets.lake.scan("consent")).users == set()


@pytest.mark.slow
def test_quarantined_records_of_a_person_and_bytes_of_nobody_are_deleted(tmp_path: Path) -> None:
    datasets = filled(tmp_path)
    mine, other = (pseudonym_of(datasets, "u", user) for user in ("user-1", "user-2"))
    kept = KeptRecords(datasets.lake.root)
    contents = {"a": (b"zq001zq", mine), "b": (b"zq002zq", other), "c": (b"zq003zq", None), "d": (f"quotes {mine}".encode(), other)}
    kept.keep({name: Bytes(content, False, user, 1 << 60) for name, (content, user) in contents.items()}, 1 << 20)
    bad = [span(500 + n, user__id=f"user-{n}") | {"startTimeUnixNano": "never"} for n in (1, 2)]
    datasets.ingest(batch(spans(*bad)))
    assert LineRows(datasets.lake, Target(frozenset({mine}))).counts()["quarantine"] == 1
    erase(datasets, "user-1")
    assert [name for name in contents if kept.get(name)] == ["b"]
    assert datasets.lake.scan("quarantine")["user"].to_list() == [other]
