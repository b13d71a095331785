"""Contract tests for what the quarantine stores beside the lake's table, in a SQLite file and on a real Postgres server."""

from __future__ import annotations

import multiprocessing
import shutil
from contextlib import closing
from pathlib import Path
from sqlite3 import connect

import pytest

from ratchet.contracts.data.quarantine import QuarantineCounts
from ratchet.contracts.errors import Retryable
from ratchet.flows.ledger.postgres_store import PostgresDatabase
from ratchet.materializer.lake.places.place import CATALOG, LakePlace
from ratchet.materializer.quarantine.kept import FILE, Bytes, Cut, KeptRecords
from tests.contract.stores import rows, run_and_kill
from tests.unit.materializer.conftest import make_datasets, pseudonym_of
from tests.unit.materializer.lake.test_deletion import erase
from tests.unit.materializer.records import batch, span, spans

MUCH = 1 << 30
NEVER = 1 << 60


@pytest.fixture
def kept(database: PostgresDatabase | None, tmp_path: Path) -> KeptRecords:
    return KeptRecords(LakePlace(tmp_path, database=database))


def one(content: bytes = b"abc", user: str | None = "u1", expires: int = NEVER, sealed: bytes | None = b"sealed") -> Bytes:
    return Bytes(content, False, user, expires, sealed)


def cut(name: str, offset: int = 0) -> Cut:
    return Cut(name, offset, 10, None, "line 1", "malformed_json")


def left(kept: KeptRecords, *names: str) -> list[str]:
    return [name for name in names if kept.get(name)]


def test_nothing_is_stored_at_first_and_asking_creates_nothing(kept: KeptRecords, tmp_path: Path) -> None:
    assert kept.get("a") is None
    assert kept.cut("app", "file") == []
    assert kept.counts(0) == QuarantineCounts(read=0, quarantined=0, reasons={})
    assert kept.expire(NEVER) == kept.forget_users(["u1"]) == kept.forget_people(["u1"]) == 0
    kept.end(["a"])
    assert kept.keep({}, MUCH) == set()
    assert list(tmp_path.iterdir()) == []


def test_bytes_come_back_as_they_were_and_are_replaced(kept: KeptRecords) -> None:
    every = bytes(range(256))
    stored = {"a": one(every), "b": Bytes(b"", True, None, 5)}
    assert kept.keep(stored, MUCH) == {"a", "b"}
    assert {name: kept.get(name) for name in stored} == stored
    kept.keep({"a": one(b"new", "u2", 7, None)}, MUCH)
    assert kept.get("a") == one(b"new", "u2", 7, None)


def test_the_limit_counts_what_is_stored_and_what_is_replaced(kept: KeptRecords) -> None:
    assert kept.keep({"a": one(b"x" * 60, sealed=None), "b": one(b"x" * 60, sealed=None), "c": one(b"x" * 30, sealed=None)}, 100) == {
        "a",
        "c",
    }
    assert kept.keep({"a": one(b"x" * 50, sealed=b"y" * 20)}, 100) == {"a"}
    assert kept.keep({"a": one(b"x" * 71, sealed=None)}, 100) == set()
    assert left(kept, "a", "b", "c") == ["a", "c"]


@pytest.mark.slow
def test_many_records_are_stored_and_deleted_at_once(kept: KeptRecords) -> None:
    names = [f"{number:04}" for number in range(1_200)]
    assert len(kept.keep({name: one(user=name) for name in names}, MUCH)) == 1_200
    assert len(kept.keep({name: one(b"abcd", name) for name in names}, MUCH)) == 1_200
    assert kept.forget_users(names[:1_100]) == 1_100
    kept.end(names[1_100:1_199])
    assert left(kept, *names[1_000:]) == ["1199"]


def test_bytes_expire(kept: KeptRecords) -> None:
    kept.keep({"a": one(expires=5), "b": one(expires=6)}, MUCH)
    assert kept.expire(5) == 1
    assert left(kept, "a", "b") == ["b"]


def test_the_bytes_of_a_person_and_of_nobody_are_deleted(kept: KeptRecords) -> None:
    kept.keep({"a": one(user="u1"), "b": one(user="u2"), "c": one(user=None), "d": one(b"quotes u1.", "u2"), "e": one(b"_%?", "u3")}, MUCH)
    assert kept.forget_people(["u1", "u_%"]) == 3
    assert left(kept, *"abcde") == ["b", "e"]


def test_cut_records_are_remembered_until_they_end(kept: KeptRecords) -> None:
    kept.watch("app", "file", [cut("b", 2), cut("a", 1)])
    kept.watch("app", "other", [cut("c")])
    kept.watch("app", "file", [cut("a", 3)])
    kept.watch("app", "file", [])
    assert kept.cut("app", "file") == [cut("b", 2), cut("a", 3)]
    kept.end(["a", "c"])
    assert kept.cut("app", "file") == [cut("b", 2)]
    assert kept.cut("app", "other") == []


def test_a_batch_counts_once_and_old_ones_are_forgotten(kept: KeptRecords) -> None:
    counts = QuarantineCounts(read=10, quarantined=3, reasons={"a": 1, "b": 2})
    kept.count("first", 100, counts, 0)
    kept.count("first", 150, counts, 0)
    kept.count("second", 200, counts, 0)
    assert kept.counts(0) == QuarantineCounts(read=20, quarantined=6, reasons={"a": 2, "b": 4})
    kept.count("third", 300, counts, 150)
    assert kept.counts(0) == kept.counts(200) == QuarantineCounts(read=20, quarantined=6, reasons={"a": 2, "b": 4})


def _keep(place: LakePlace, number: int) -> int:
    return len(KeptRecords(place).keep({f"{number}-{at}": one(b"x" * 10, sealed=None) for at in range(20)}, 500))


@pytest.mark.slow
def test_processes_that_store_at_once_keep_to_the_limit(database: PostgresDatabase | None, tmp_path: Path) -> None:
    place = LakePlace(tmp_path, database=database)
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert sum(pool.starmap(_keep, [(place, number) for number in range(4)])) == 50


def test_a_lost_volume_loses_no_bytes(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    place = LakePlace(tmp_path / "home" / "lake", database=postgres_database)
    KeptRecords(place).keep({"a": one()}, MUCH)
    shutil.rmtree(tmp_path / "home", ignore_errors=True)
    assert KeptRecords(place).get("a") == one()


@pytest.mark.parametrize("is_old", [False, True])
def test_an_upgrade_moves_the_bytes_of_the_file(postgres_database: PostgresDatabase, tmp_path: Path, is_old: bool) -> None:
    """The file has texts of people: an erasure must find them in one place. A file of an older release has no sealed records."""
    former, sealed = KeptRecords(tmp_path), None if is_old else b"sealed"
    former.keep({"a": one(sealed=sealed), "b": one(user="u2", sealed=sealed)}, MUCH)
    former.watch("app", "file", [cut("a")])
    former.count("first", 100, QuarantineCounts(read=1, quarantined=1, reasons={"a": 1}), 0)
    if is_old:
        with closing(connect(tmp_path / FILE)) as connection, connection:
            connection.execute("ALTER TABLE kept DROP COLUMN sealed")
    kept = KeptRecords(LakePlace(tmp_path, database=postgres_database))
    assert kept.get("a") == one(sealed=sealed), "before the move"
    assert kept.forget_users(["u2"]) == 1
    assert not (tmp_path / FILE).exists()
    assert (kept.get("a"), kept.get("b")) == (one(sealed=sealed), None)
    assert (kept.cut("app", "file"), kept.counts(0).read) == ([cut("a")], 1)


_FORGET = """
import sys, time
from pathlib import Path
from ratchet.flows.ledger.former_file import FormerFile
from ratchet.flows.ledger.postgres_store import PostgresDatabase
from ratchet.materializer.lake.places.place import CATALOG, LakePlace
from ratchet.materializer.quarantine.kept import KeptRecords

def erase(_store):
    print("stored, and the file is still there", flush=True)
    time.sleep(60)
FormerFile.erase = erase
KeptRecords(LakePlace(Path(sys.argv[2]), database=PostgresDatabase(sys.argv[1], "math"))).forget_people(["u1"])
"""


@pytest.mark.slow
def test_an_erasure_that_is_killed_in_the_move_does_not_leave_the_file(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    KeptRecords(tmp_path).keep({"a": one(), "b": one(user="u2")}, MUCH)
    run_and_kill(_FORGET, postgres_database.url, tmp_path)
    kept = KeptRecords(LakePlace(tmp_path, database=postgres_database))
    assert left(kept, "a", "b") == ["b"]
    assert (tmp_path / FILE).exists()
    kept.forget_people(["u1"])
    assert not (tmp_path / FILE).exists()
    assert left(kept, "a", "b") == ["b"]


def test_what_a_former_release_has_kept_meanwhile_is_not_lost(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    """Former and new processes may run side by side during an upgrade."""
    kept = KeptRecords(LakePlace(tmp_path, database=postgres_database))
    kept.keep({"a": one()}, MUCH)
    KeptRecords(tmp_path).keep({"a": one(b"other"), "b": one()}, MUCH)
    kept.watch("app", "file", [cut("a")])
    assert (kept.get("a"), kept.get("b")) == (one(), one())
    assert not (tmp_path / FILE).exists()


def test_an_erasure_and_the_retention_reach_the_database(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    datasets = make_datasets(tmp_path, place=LakePlace(tmp_path / "lake", database=postgres_database))
    for number in (1, 2):
        bad = span(number, user__id=f"user-{number}") | {"startTimeUnixNano": "never"}
        datasets.ingest(batch(spans(bad)))
    assert len(rows(postgres_database, "SELECT * FROM ratchet_quarantine_math.kept")) == 2
    erase(datasets, "user-1")
    (user,) = rows(postgres_database, 'SELECT "user" FROM ratchet_quarantine_math.kept')
    assert user == (pseudonym_of(datasets, "u", "user-2"),)
    assert [datasets.quarantine.content(entry.id) is not None for entry in datasets.quarantine.entries()] == [True]
    datasets.clock.sleep(31 * 86_400)
    assert datasets.quarantine.expire() == 1
    assert rows(postgres_database, "SELECT * FROM ratchet_quarantine_math.kept") == []
    assert sorted(tmp_path.glob("lake/*.sqlite")) == [tmp_path / "lake" / CATALOG, tmp_path / "lake" / "seen.sqlite"]


def test_the_database_removes_deleted_rows_by_itself(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    """The settings say after how many deleted rows Postgres begins; its default is a fifth of the table."""
    KeptRecords(LakePlace(tmp_path, database=postgres_database)).keep({"a": one()}, MUCH)
    options = rows(
        postgres_database,
        "SELECT unnest(reloptions) FROM pg_class WHERE relnamespace = 'ratchet_quarantine_math'::regnamespace AND relname = 'kept' "
        "UNION ALL SELECT unnest(t.reloptions) FROM pg_class c JOIN pg_class t ON t.oid = c.reltoastrelid WHERE c.relname = 'kept'",
    )
    assert sorted(options) == sorted([("autovacuum_vacuum_threshold=0",), ("autovacuum_vacuum_scale_factor=0",)] * 2)


def test_nothing_is_kept_while_the_database_is_away(tmp_path: Path) -> None:
    kept = KeptRecords(LakePlace(tmp_path, database=PostgresDatabase(f"postgresql+psycopg://ratchet@/db?host={tmp_path}", "math")))
    with pytest.raises(Retryable, match="ratchet_quarantine_math"):
        kept.keep({"a": one()}, MUCH)
    with pytest.raises(Retryable, match="ratchet_quarantine_math"):
        kept.forget_people(["u1"])
