"""Contract tests for the receipts of erasures, in the home folder and on a real Postgres server."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.flows.cli.main import cli
from ratchet.flows.config import variables
from ratchet.flows.config.home import Home
from ratchet.flows.ledger.postgres_store import PostgresDatabase
from ratchet.flows.service.receipts import LineErased, Receipt, Receipts, receipt_id, receipt_text
from tests.contract.stores import change, rows, run_and_kill

BEGUN = datetime(2026, 11, 1, tzinfo=UTC)


def receipt(person: str, days: int | None = 1, traces: int = 2) -> Receipt:
    """The receipt of a person. `days` after its begin, it was finished."""
    finished = None if days is None else BEGUN + timedelta(days=days)
    lines = (LineErased(line="math", rows={"traces": traces}),) if finished else ()
    return Receipt(id=receipt_id([person]), people=(person,), begun=BEGUN, finished=finished, lines=lines)


@pytest.fixture
def home(database: PostgresDatabase | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    if database is not None:
        monkeypatch.setenv(variables.LEDGER_URL, database.url)
    return Home(tmp_path / "home")


@pytest.fixture
def shared(postgres_database: PostgresDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """The home of an installation with a ledger in Postgres."""
    monkeypatch.setenv(variables.LEDGER_URL, postgres_database.url)
    return Home(tmp_path / "home")


def in_files(home: Home, *receipts: Receipt) -> None:
    """Store receipts as an installation without Postgres does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(variables.LEDGER_URL, raising=False)
        for one in receipts:
            Receipts(home).store(one)


def test_nothing_is_stored_at_first_and_asking_creates_nothing(home: Home, database: PostgresDatabase | None) -> None:
    receipts = Receipts(home)
    assert receipts.get(receipt_id(["u1"])) is None
    assert receipts.all() == []
    receipts.copy_files()
    assert not home.root.exists()
    assert database is None or rows(database, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'ratchet%%'") == []


def test_receipts_come_back_and_are_files_for_people(home: Home) -> None:
    first, second = receipt("u1", None), receipt("u2")
    for one in (second, first):
        Receipts(home).store(one)
    assert [Receipts(home).get(one.id) for one in (first, second)] == [first, second]
    assert {one.id for one in Receipts(home).all()} == {first.id, second.id}
    Receipts(home).store(receipt("u1"))
    assert Receipts(home).get(first.id) == receipt("u1")
    assert len(Receipts(home).all()) == 2
    assert (home.erasures / f"{first.id[:16]}.txt").read_text() == receipt_text(receipt("u1"))


# With Postgres


def test_a_lost_volume_loses_no_receipt(shared: Home) -> None:
    Receipts(shared).store(receipt("u1"))
    shutil.rmtree(shared.root)
    assert Receipts(shared).all() == [Receipts(shared).get(receipt("u1").id)] == [receipt("u1")]
    assert not shared.root.exists()


def test_receipts_of_a_time_before_are_read_and_copied_once(shared: Home, postgres_database: PostgresDatabase) -> None:
    in_files(shared, receipt("u1"), receipt("u2", None))
    before = {path: path.stat().st_mtime_ns for path in shared.erasures.iterdir()}
    assert len(Receipts(shared).all()) == 2
    assert rows(postgres_database, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'ratchet%%'") == []
    for _ in range(2):
        Receipts(shared).copy_files()
    assert {path: path.stat().st_mtime_ns for path in shared.erasures.iterdir()} == before
    shutil.rmtree(shared.root)
    assert sorted(one.people for one in Receipts(shared).all()) == [("u1",), ("u2",)]


def test_other_files_in_the_folder_are_no_receipts(home: Home) -> None:
    Receipts(home).store(receipt("u-a"))
    (home.erasures / "all.json").write_text("[]", encoding="utf-8")
    Receipts(home).copy_files()
    assert len(Receipts(home).all()) == 1


@pytest.mark.parametrize("is_file_later", [False, True])
def test_the_later_state_of_a_receipt_counts(shared: Home, is_file_later: bool) -> None:
    """The volume or the database was restored from a backup, or a former release has continued an erasure."""
    row, file = (receipt("u1", None), receipt("u1", 1)) if is_file_later else (receipt("u1", 3, 4), receipt("u1", 1, 2))
    Receipts(shared).store(row)
    in_files(shared, file)
    later = file if is_file_later else row
    assert Receipts(shared).get(row.id) == later
    Receipts(shared).copy_files()
    assert Receipts(shared).all() == [later]
    shutil.rmtree(shared.root)
    assert Receipts(shared).all() == [later]


def test_a_database_that_was_restored_from_a_backup_gets_the_newer_receipts(shared: Home, postgres_database: PostgresDatabase) -> None:
    Receipts(shared).store(receipt("u1"))
    change(postgres_database, "DROP SCHEMA ratchet_receipts CASCADE")
    Receipts(shared).copy_files()
    shutil.rmtree(shared.root)
    assert Receipts(shared).all() == [receipt("u1")]


def test_a_damaged_file_is_named_and_stays(shared: Home) -> None:
    shared.erasures.mkdir(parents=True)
    (shared.erasures / "0123456789abcdef.json").write_text("{")
    with pytest.raises(Retryable, match=r"0123456789abcdef.json cannot be read"):
        Receipts(shared).copy_files()


_COPY = """
import sys, time
from pathlib import Path
from ratchet.flows.config.home import Home
from ratchet.flows.ledger import postgres_store
from ratchet.flows.service.receipts import Receipts

left, execute = int(sys.argv[2]), postgres_store._Statements.execute
def executed(self, sql, values=()):
    global left
    found = execute(self, sql, values)
    left -= 1
    if left == 0:
        print("now", flush=True)
        time.sleep(60)
    return found
postgres_store._Statements.execute = executed
Receipts(Home(Path(sys.argv[1]))).copy_files()
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", range(1, 5))
def test_a_copy_that_is_killed_is_completed_by_the_next_one(shared: Home, postgres_database: PostgresDatabase, after: int) -> None:
    """The copy of two receipts takes four statements."""
    both = [receipt("u1"), receipt("u2")]
    in_files(shared, *both)
    run_and_kill(_COPY, shared.root, str(after))
    assert len(Receipts(shared).all()) == 2
    Receipts(shared).copy_files()
    assert rows(postgres_database, "SELECT count(*) FROM ratchet_receipts.receipts") == [(2,)]
    shutil.rmtree(shared.root)
    assert {one.id for one in Receipts(shared).all()} == {one.id for one in both}


def test_no_receipt_is_stored_while_the_database_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variables.LEDGER_URL, f"postgresql+psycopg://ratchet@/db?host={tmp_path}")
    home = Home(tmp_path / "home")
    with pytest.raises(Retryable, match="ratchet_receipts"):
        Receipts(home).store(receipt("u1"))
    assert not home.root.exists()


def test_an_empty_database_is_not_taken_for_an_installation_where_nobody_was_erased(shared: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variables.HOME, str(shared.root))
    shown = CliRunner().invoke(cli, ["erase", "--receipts"])
    assert isinstance(shown.exception, ConfigError)
    assert "no line" in str(shown.exception)
