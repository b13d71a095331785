"""Tests of the upkeep of a lake: rows stay, days get few files, readers see no new rows, and ingest waits for commits only."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Thread

import pytest
from pyiceberg.expressions import visitors

from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.erasure.lake_rows import LineRows, Target, purge
from ratchet.materializer.lake import tables, upkeep
from ratchet.materializer.lake.compaction import COMPACTION
from ratchet.materializer.lake.storing.dedup_index import DedupIndex
from ratchet.materializer.lake.tables import Lake
from ratchet.materializer.training_sets.prompt_sides import PromptSides
from tests.markers import marks_in
from tests.unit.materializer.conftest import make_datasets, make_loop, pseudonym_of
from tests.unit.materializer.records import T0, batch, evaluation, log, logs, span, spans

DAY = 86_400 * 10**9
FIRST = datetime.fromtimestamp(T0 / 10**9, UTC).date()
LONG_AFTER = FIRST + timedelta(days=40)


def fill(datasets: LakeDatasets, begin: int, end: int) -> None:
    """One trace, one rating and one bad record in each batch, on two days."""
    for n in range(begin, end):
        bad = span(9000 + n) | {"startTimeUnixNano": "never"}
        datasets.ingest(batch(spans(span(n, f"question {n}", at=T0 + (n % 2) * DAY), bad), logs(log(n, evaluation("user_feedback", 1)))))


def keep(lake: Lake, today: date = LONG_AFTER) -> list[upkeep.Merged]:
    return list(upkeep.keep(lake, today))


def seen(lake: Lake) -> set[str]:
    return set(lake.scan("traces")["id"])


@pytest.mark.slow
def test_closed_days_get_one_file_and_a_second_upkeep_does_nothing(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    fill(datasets, 1, 25)
    lake = datasets.lake
    before = {name: lake.scan(name).sort("batch") for name in upkeep.TABLES}
    assert len(before["traces"]) == len(before["feedback"]) == len(before["quarantine"]) == 24
    assert upkeep.pending(lake, "traces", LONG_AFTER) == 24
    assert upkeep.pending(lake, "traces", FIRST + timedelta(days=1)) == 24, "days that still get rows have many files"
    steps = keep(lake)
    assert {step.table for step in steps} == {"traces", "feedback", "quarantine"}
    assert upkeep.state(lake, "traces").files == 2
    assert upkeep.state(lake, "feedback").files == 1
    assert upkeep.state(lake, "quarantine").files == 1
    for name, rows in before.items():
        assert lake.scan(name).sort("batch").equals(rows)
    assert keep(lake) == []
    fill(datasets, 25, 26)
    assert keep(lake) == [], "a small file waits beside a large one"


@pytest.mark.slow
@pytest.mark.parametrize("merges_manifests", [False, True])
def test_incremental_readers_see_the_appended_rows_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merges_manifests: bool) -> None:
    if merges_manifests:
        monkeypatch.setattr(tables, "_PROPERTIES", tables._PROPERTIES | {"commit.manifest.min-count-to-merge": "2"})
    datasets = make_datasets(tmp_path)
    lake = datasets.lake
    fill(datasets, 1, 9)
    since = lake.snapshot("traces")
    fill(datasets, 9, 11)
    keep(lake)
    fill(datasets, 11, 13)
    keep(lake)
    found = lake.added("traces", since, ("id",))
    assert sorted(found["id"]) == [f"{n:032x}:{n:016x}" for n in range(9, 13)]
    assert sum(len(part) for part in lake.parts_added("traces", since, ("id",))) == 4
    assert lake.added("traces", lake.snapshot("traces"), ("id",)).is_empty()
    assert list(lake.parts_added("traces", lake.snapshot("traces"), ("id",))) == []


@pytest.mark.slow
def test_a_reader_whose_snapshot_was_tagged_reads_all_if_one_after_it_has_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_KEPT", 2)
    monkeypatch.setattr(upkeep, "_MANY", 3)
    datasets = make_datasets(tmp_path)
    lake = datasets.lake
    fill(datasets, 1, 4)
    since = lake.pin("traces", "kept")
    fill(datasets, 4, 9)
    keep(lake)
    assert lake.table("traces").snapshot_by_id(since or 0) is not None
    assert len(lake.added("traces", since, ("id",))) == 8, "the rows that were appended since are not known"
    assert sum(map(len, lake.parts_added("traces", since, ("id",)))) == 8


@pytest.mark.slow
@pytest.mark.parametrize("is_expired", [False, True])
def test_the_index_and_the_signatures_are_as_without_upkeep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_expired: bool) -> None:
    """With `is_expired`, both have read until a snapshot that has expired with those after it, and read everything again."""
    loop = make_loop(holdout={"near_duplicates": True})
    datasets, plain = make_datasets(tmp_path / "kept", loop), make_datasets(tmp_path / "plain", loop)
    index, lake = DedupIndex(datasets.lake), datasets.lake
    fill(datasets, 1, 5)
    datasets.prepare()
    read: list[int | None] = []
    added = Lake.parts_added

    def counted(self: Lake, name: upkeep.TableName, since: int | None, columns: tuple[str, ...]) -> object:
        for part in added(self, name, since, columns):
            read.append(len(part))
            yield part

    if is_expired:
        monkeypatch.setattr(upkeep, "_KEPT", 1)
        monkeypatch.setattr(upkeep, "_MANY", 2)
        monkeypatch.setattr(DedupIndex, "catch_up", lambda *_: None)
        for _ in range(3):
            datasets.lake.append("traces", lake.table("traces").scan().to_arrow().slice(0, 0), "none")
        rows = lake.table("traces").scan().to_arrow()
        keep(lake)
        monkeypatch.undo()
        assert len(rows) == 4
    else:
        keep(lake)
    monkeypatch.setattr(Lake, "parts_added", counted)
    fill(datasets, 3, 8)
    datasets.prepare()
    if not is_expired:
        assert sum(filter(None, read)) <= 3 + 2 * 3, "rows that were merged were read again"
    fill(plain, 1, 5)
    fill(plain, 3, 8)
    plain.prepare()
    assert seen(lake) == seen(plain.lake)
    assert datasets.cursor().traces == plain.cursor().traces == 7
    assert _entries(index) == _entries(DedupIndex(plain.lake))
    assert PromptSides(lake.root).signed() == lake.snapshot("traces")
    assert _signatures(lake) == _signatures(plain.lake)


def _entries(index: DedupIndex) -> list[object]:
    with index._open() as connection:
        return connection.execute("SELECT key, content FROM traces ORDER BY key").fetchall()


def _signatures(lake: Lake) -> list[object]:
    with PromptSides(lake.root)._store.changing() as connection:
        return connection.execute("SELECT root FROM signatures ORDER BY root").fetchall()


@pytest.mark.slow
def test_rows_are_ingested_while_a_step_writes_its_files(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    fill(datasets, 1, 5)

    def meanwhile(place: str) -> None:
        if place == "files written" and datasets.cursor().traces == 4:
            thread = Thread(target=fill, args=(datasets, 5, 7))
            thread.start()
            thread.join(60)
            assert not thread.is_alive(), "ingest waits for a step"

    steps = list(upkeep.keep(datasets.lake, LONG_AFTER, meanwhile))
    assert steps[0].files == 4
    assert datasets.cursor().traces == len(seen(datasets.lake)) == 6


@pytest.mark.slow
def test_an_erasure_waits_for_a_step_and_nothing_of_the_person_is_left(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    for n in range(1, 5):
        datasets.ingest(batch(spans(span(n, f"zq{n:03d}zq?", user__id=f"user-{n}"))))
    target = Target(frozenset({pseudonym_of(datasets, "u", "user-1")}))
    places: list[str] = []

    def erase() -> None:
        with datasets.lake.alone():
            places.append("erasure")
            LineRows(datasets.lake, target).remove(DedupIndex(datasets.lake))
            purge(datasets.lake)

    eraser = Thread(target=erase)

    def meanwhile(place: str) -> None:
        places.append(place)
        if place == "files written" and not eraser.ident:
            eraser.start()
            eraser.join(0.3)

    list(upkeep.keep(datasets.lake, LONG_AFTER, meanwhile))
    eraser.join(60)
    assert places[:2] == ["files written", "files replaced"]
    assert "erasure" in places[2:], "a later step may get the lock first, because flock wakes nobody in order"
    assert marks_in(tmp_path / "lake").keys() == {2, 3, 4}


@pytest.mark.slow
def test_a_tag_keeps_its_rows_and_a_frozen_read_is_as_before(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    lake = datasets.lake
    fill(datasets, 1, 6)
    read = lake.snapshot("traces")
    at = datetime.now(UTC) + timedelta(seconds=1)
    pinned = lake.pin("traces", "edition")
    keep(lake)
    assert read is not None
    assert lake.pin("traces", "same", (read, at)) == read, "a compaction changes no row"
    for step in range(3):
        fill(datasets, 6 + step, 7 + step)
        keep(lake)
    assert lake.scan("traces", snapshot=pinned).height == 5


@pytest.mark.slow
def test_a_writer_without_upkeep_merges_what_has_piled_up_and_expires_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_PILED_UP": 6, "_LOOK": 4, "_KEPT": 4, "_MANY": 8}.items():
        monkeypatch.setattr(upkeep, name, value)
    datasets = make_datasets(tmp_path)
    fill(datasets, 1, 30)
    for name in ("traces", "feedback"):
        now = upkeep.state(datasets.lake, name)  # type: ignore[arg-type]
        assert now.files <= 12
        assert now.snapshots <= 20
    assert len(seen(datasets.lake)) == datasets.cursor().traces == 29
    assert datasets.ingest(batch(*(spans(span(n, f"question {n}", at=T0 + (n % 2) * DAY)) for n in range(1, 31)))).traces.kept == 1
    merges = [one for one in datasets.lake.table("traces").metadata.snapshots if one.summary and one.summary[COMPACTION]]
    assert merges


@pytest.mark.slow
def test_files_are_replaced_however_the_threads_of_pyiceberg_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit has a manifest. The thread that looks at one waits before it compares the partitions, so that others look at theirs."""
    datasets = make_datasets(tmp_path)
    fill(datasets, 1, 13)
    compare, waiting = visitors._ManifestEvalVisitor.visit_equal, Barrier(2)

    def slow(self: object, term: object, literal: object) -> object:
        with suppress(BrokenBarrierError):
            waiting.wait(0.05)
        return compare(self, term, literal)

    monkeypatch.setattr(visitors._ManifestEvalVisitor, "visit_equal", slow)
    before = datasets.lake.scan("traces").sort("id")
    assert upkeep.compact(datasets.lake, "traces", LONG_AFTER) is not None
    assert upkeep.state(datasets.lake, "traces").files == 2
    assert datasets.lake.scan("traces").sort("id").equals(before)


@pytest.mark.slow
def test_the_writer_leaves_files_to_a_compaction_that_is_under_way(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    fill(datasets, 1, 4)
    found: list[object] = []

    def meanwhile(place: str) -> None:
        if place == "files written":
            with datasets.lake.writing():
                found.append(upkeep.compact(datasets.lake, "traces", LONG_AFTER, is_writing=True))

    step: Callable[[str], None] = meanwhile
    assert upkeep.compact(datasets.lake, "traces", LONG_AFTER, step) is not None
    assert found == [None]


@pytest.mark.slow
def test_a_table_of_an_earlier_release_gets_the_properties_of_this_one(tmp_path: Path) -> None:
    lake = make_datasets(tmp_path).lake
    with lake.table("traces").transaction() as change:
        change.remove_properties("commit.manifest.min-count-to-merge")
    keep(lake)
    table = lake.table("traces")
    assert table.properties["commit.manifest.min-count-to-merge"] == "32"
    keep(lake)
    assert lake.table("traces").metadata_location == table.metadata_location


@pytest.mark.slow
def test_upkeep_is_no_ingest_of_rows(tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path)
    fill(datasets, 1, 4)
    before = datasets.cursor()
    assert keep(datasets.lake)
    assert datasets.cursor() == before
