"""Tests of lakes with their files on S3 and their catalog in Postgres or behind REST.

Several lines, two writers, failures, deletions, cheap looks.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException

from ratchet.contracts.data.datasets import Cursor, IngestReport
from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.erasure.lake_rows import LineRows, Target, purge, tombstone
from ratchet.materializer.lake import upkeep
from ratchet.materializer.lake.places.place import LakePlace, catalog_engine
from ratchet.materializer.lake.places.rest import is_rest
from ratchet.materializer.lake.places.size import lake_cursor
from ratchet.materializer.lake.storing.dedup_index import DedupIndex
from ratchet.materializer.lake.tables import TABLES, Lake
from ratchet.materializer.lake.unused import sweep
from tests.markers import marks_in
from tests.shared_lake import SharedPlaces, postgres, rest_places, shared_places  # noqa: F401  fixtures
from tests.unit.materializer.conftest import make_datasets, pseudonym_of
from tests.unit.materializer.lake.test_upkeep import LONG_AFTER
from tests.unit.materializer.records import T0, batch, evaluation, log, logs, span, spans

pytestmark = pytest.mark.slow

DAY = 86_400 * 10**9
NOW = 1_800_000_000.0


@pytest.fixture(params=["postgres", "rest"])
def places(request: pytest.FixtureRequest) -> SharedPlaces:
    found: SharedPlaces = request.getfixturevalue("shared_places" if request.param == "postgres" else "rest_places")
    return found


def catalog_class(places: SharedPlaces) -> type[Catalog]:
    """The class of pyiceberg whose commits go to the catalog."""
    return RestCatalog if is_rest(places.url) else SqlCatalog


def opened(places: SharedPlaces, folder: Path, line: str = "math") -> LakeDatasets:
    return make_datasets(folder, place=places.new(folder / "lake", line))


def one(n: int) -> Any:
    trace = span(n, f"zq{n:03d}zq?", f"zq{n:03d}zq!", at=T0 + n * DAY)
    return batch(spans(trace), logs(log(n, evaluation("user_correction", text=f"zq{n:03d}zq", user__id=f"user-{n}"))))


def ids(datasets: LakeDatasets) -> list[str]:
    return sorted(datasets.lake.scan("traces", ("id",))["id"])


def test_the_lines_of_an_installation_share_a_catalog_and_no_row(places: SharedPlaces, tmp_path: Path) -> None:
    lines = [f"line-{n}" for n in range(4)]

    def fill(n: int) -> Cursor:
        datasets = opened(places, tmp_path / lines[n], lines[n])
        for k in range(3):  # the first ones create the tables of the catalog at the same time
            datasets.ingest(one(3 * n + k + 1))
        return datasets.cursor()

    with ThreadPoolExecutor(4) as threads:
        assert [found.traces for found in threads.map(fill, range(4))] == [3] * 4
    assert [len(set(ids(opened(places, tmp_path / line, line)))) for line in lines] == [3] * 4
    assert {key.split("/")[1] for key in places.objects()} == set(lines)


def test_another_machine_goes_on_with_a_lake_whose_folder_is_lost(places: SharedPlaces, tmp_path: Path) -> None:
    first = opened(places, tmp_path / "first")
    report = first.ingest(one(1))
    again = opened(places, tmp_path / "second")
    assert again.ingest(one(1)) == report
    assert again.cursor() == first.cursor()
    assert list(places.new(tmp_path / "third").tables()) != []
    assert not (tmp_path / "third").exists()


@pytest.mark.parametrize("where", ["before the append", "before the commit"])
@pytest.mark.parametrize("table", ["traces", "feedback", "quarantine"])
def test_a_writer_that_was_suspended_stores_nothing_twice(
    places: SharedPlaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, table: str
) -> None:
    given = batch(spans(span(1)), b"{", logs(log(1, evaluation("user_feedback", 1))))
    slow, fast = opened(places, tmp_path / "slow"), opened(places, tmp_path / "fast")
    done: list[IngestReport] = []
    begun = threading.Event()

    def meanwhile(name: str) -> None:
        """Let the fast writer store the batch, once."""
        if name == table and not begun.is_set():
            begun.set()
            done.append(fast.ingest(given))

    kind = catalog_class(places)
    append, commit = slow.lake.append, kind.commit_table

    def late_append(name: Any, *rest: Any) -> Any:
        meanwhile(name)
        return append(name, *rest)

    def late_commit(catalog: Any, changed: Any, *rest: Any) -> Any:
        meanwhile(changed.name()[-1])
        return commit(catalog, changed, *rest)

    if where == "before the append":
        monkeypatch.setattr(slow.lake, "append", late_append)
    else:
        monkeypatch.setattr(kind, "commit_table", late_commit)
    with pytest.raises(Retryable, match="another writer has"):
        slow.ingest(given)
    assert slow.ingest(given) == done[0]
    assert {name: slow.lake.size(name)[0] for name in TABLES} == {"traces": 1, "feedback": 1, "consent": 0, "quarantine": 1}


def test_a_database_that_is_away_loses_nothing_and_says_why(places: SharedPlaces, tmp_path: Path) -> None:
    datasets = opened(places, tmp_path)
    datasets.ingest(one(1))
    place = places.new(tmp_path / "lake")
    places.server.kill()
    try:
        for ask in (lambda: datasets.ingest(one(2)), lambda: datasets.lake.scan("traces"), lambda: lake_cursor(place), place.exists):
            with pytest.raises(Retryable, match=r"[Cc]onnection"):
                ask()
    finally:
        places.server.start()
    assert datasets.ingest(one(2)).traces.kept == 1
    assert datasets.ingest(one(2)).traces.kept == 1
    assert len(ids(datasets)) == lake_cursor(place).traces == 2


def test_a_commit_whose_answer_is_lost_is_not_made_twice(places: SharedPlaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = catalog_class(places)
    datasets, commit, lost = opened(places, tmp_path), kind.commit_table, [0]

    def without_answer(*given: Any) -> Any:
        made = commit(*given)
        if lost[0] < 2:
            lost[0] += 1
            places.server.kill()
            places.server.start()
            if kind is RestCatalog:
                raise CommitStateUnknownException("the answer was lost")
            with catalog_engine(places.url).connect() as connection:
                connection.exec_driver_sql("SELECT 1/0")
        return made

    monkeypatch.setattr(kind, "commit_table", without_answer)
    for _ in range(2):
        with pytest.raises(Retryable, match=r"division by zero|the answer was lost"):
            datasets.ingest(one(1))
    assert datasets.ingest(one(1)).traces.kept == 1
    assert {name: datasets.lake.size(name)[0] for name in ("traces", "feedback")} == {"traces": 1, "feedback": 1}


def test_a_bucket_that_refuses_for_a_while_loses_nothing(places: SharedPlaces, tmp_path: Path) -> None:
    datasets = opened(places, tmp_path)
    datasets.ingest(one(1))
    places.s3.stop()
    try:
        with pytest.raises(Retryable, match="check the catalog of RATCHET_CATALOG_URL and the bucket"):
            datasets.ingest(one(2))
        with pytest.raises(Retryable, match=r"cannot (read|open) traces"):
            datasets.lake.scan("traces")
    finally:
        places.s3.start()
    assert datasets.ingest(one(2)).traces.kept == 1
    assert len(ids(datasets)) == 2


def stored(places: SharedPlaces, folder: Path) -> dict[int, set[str]]:
    """Return the markers in all versions of all objects, as `marks_in` does."""
    folder.mkdir()
    pages = places.s3.client.get_paginator("list_object_versions").paginate(Bucket=places.s3.bucket)
    for n, version in enumerate(one for page in pages for one in page.get("Versions", ())):
        which = {"Key": version["Key"], "VersionId": version["VersionId"]}
        (folder / str(n)).write_bytes(places.s3.client.get_object(Bucket=places.s3.bucket, **which)["Body"].read())
    return marks_in(folder)


@pytest.mark.parametrize("versioned", [False, True])
def test_an_erasure_deletes_the_objects_for_good(places: SharedPlaces, tmp_path: Path, versioned: bool) -> None:
    if versioned:
        on = {"Status": "Enabled"}
        places.s3.client.put_bucket_versioning(Bucket=places.s3.bucket, VersioningConfiguration=on)
    datasets = opened(places, tmp_path)
    for n in range(1, 5):
        datasets.ingest(one(n))
    pinned = datasets.lake.pin("traces", "a snapshot")
    assert stored(places, tmp_path / "before").keys() == {1, 2, 3, 4}
    target = Target(frozenset(pseudonym_of(datasets, "u", f"user-{n}") for n in (1, 3)))
    with datasets.lake.alone():
        tombstone(datasets.lake, target.users, (), datetime(2026, 11, 1, tzinfo=UTC))
        LineRows(datasets.lake, target).remove(DedupIndex(datasets.lake))
        files, size = purge(datasets.lake)
    assert files > 5
    assert size > 0
    assert stored(places, tmp_path / "after").keys() == {2, 4}
    assert datasets.lake.pin("traces", "a snapshot") != pinned
    assert datasets.ingest(one(1)).traces.reasons == {"erased": 1}
    assert len(ids(datasets)) == 2


def test_replaced_objects_and_leftovers_are_swept_after_a_time_for_readers(
    places: SharedPlaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_KEPT", 1)
    monkeypatch.setattr(upkeep, "_MANY", 2)
    datasets = opened(places, tmp_path)
    other = opened(places, tmp_path / "other", "other")
    other.ingest(one(9))
    for n in range(1, 6):
        datasets.ingest(batch(spans(span(n))))
    assert upkeep.pending(datasets.lake, "traces", LONG_AFTER) == 5
    list(upkeep.keep(datasets.lake, LONG_AFTER))
    assert upkeep.pending(datasets.lake, "traces", LONG_AFTER) == 0
    stray = "lakes/math/traces/data/of a killed writer.parquet"
    places.s3.client.put_object(Bucket=places.s3.bucket, Key=stray, Body=b"half")
    before = places.objects()
    tried = sweep(datasets.lake, NOW, 0, dry_run=True)
    assert tried.files >= 5
    first = sweep(datasets.lake, NOW, 60)
    assert (first.files, first.waiting, places.objects()) == (0, tried.files, before)
    second = sweep(datasets.lake, NOW + 60, 60)
    assert (second.files, second.waiting, second.bytes > 0) == (tried.files, 0, True)
    assert len(places.objects()) == len(before) - tried.files
    assert stray not in places.objects()
    assert (len(ids(datasets)), len(ids(other))) == (5, 1)
    assert sweep(datasets.lake, NOW + 120, 60)[:2] == (0, 0)


def test_a_look_at_a_lake_needs_none_of_the_large_libraries_and_creates_nothing(places: SharedPlaces, tmp_path: Path) -> None:
    place = places.new(tmp_path / "lake")
    assert (lake_cursor(place), place.exists(), place.state()) == (Cursor(traces=0, feedback=0, newest=None, consent=0), False, ())
    assert list(tmp_path.iterdir()) == []
    datasets = opened(places, tmp_path)
    datasets.ingest(one(1))
    before = place.state()
    assert place.exists()
    look = (
        "import sys; from pathlib import Path; from ratchet.materializer.lake.places.place import LakePlace; "
        "from ratchet.materializer.lake.places.size import lake_cursor; "
        f"place = LakePlace(Path('nowhere'), 'math', {places.url!r}, {places.warehouse!r}); "
        "print(lake_cursor(place).traces, {'pyiceberg', 'pyarrow', 'polars'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ("1 set()" if not is_rest(places.url) else done.stdout.strip())
    datasets.ingest(one(2))
    assert place.state() != before
    assert lake_cursor(place).traces == 2


@pytest.mark.parametrize("engine", ["polars", "duckdb"])
def test_other_engines_read_the_lake(places: SharedPlaces, tmp_path: Path, engine: str) -> None:
    opened(places, tmp_path).ingest(one(1))
    given = {"s3.region": "us-east-1", "s3.endpoint": places.s3.settings.endpoint or ""}
    catalog = catalog_class(places)("ratchet", uri=places.url, warehouse=places.warehouse, **given)
    table = catalog.load_table("math.traces")
    if engine == "polars":
        found = pl.scan_iceberg(table).select("answer").collect().rows()
    else:
        connection = table.scan().to_duckdb("traces", connection=duckdb.connect())
        found = connection.sql("select answer from traces").fetchall()
    assert found == [("zq001zq!",)]


def test_an_index_of_another_lake_hides_no_record(places: SharedPlaces, tmp_path: Path) -> None:
    datasets = opened(places, tmp_path)
    datasets.ingest(one(1))
    other = make_datasets(tmp_path, place=places.new(tmp_path / "lake", "other"))
    assert other.ingest(one(1)).traces.kept == 1
    assert len(ids(other)) == 1


def test_a_wrong_url_says_what_to_do_and_shows_no_password(tmp_path: Path) -> None:
    urls = ("postgresql+nothing://ada:a-secret-word@db/catalog", "postgresql+psycopg://ada:a-secret-word@127.0.0.1:1/catalog")
    for url in (*urls, "http://ada:a-secret-word@127.0.0.1:1/catalog", "http://:a-secret-word@127.0.0.1:1/?warehouse=one"):
        place = LakePlace(tmp_path, "shop", url, "s3://bucket/lakes")
        for ask in (place.tables, lambda place=place: Lake(place).scan("traces")):  # type: ignore[misc]
            with pytest.raises((ConfigError, Retryable)) as refused:
                ask()
            assert "a-secret-word" not in str(refused.value)
