"""Contract tests for small documents, as files and on a real Postgres server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.flows.ledger.postgres_store import PostgresDatabase
from ratchet.runtime.documents import LAYOUT, Documents, FolderDocuments, MovedDocuments, StoredDocuments, copy_documents, open_documents
from ratchet.runtime.sql_store import SqliteStore
from tests.contract.stores import change, rows, run_and_kill


@pytest.fixture(params=["folder", "sqlite", "postgres", "moved"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Documents]:
    """Opens the documents of a place, again for each caller."""
    if request.param == "folder":
        return lambda place: FolderDocuments(tmp_path / "documents" / place)
    if request.param == "sqlite":
        return lambda place: StoredDocuments(SqliteStore(LAYOUT, tmp_path / "documents.db"), place)
    if request.param == "moved":
        store = SqliteStore(LAYOUT, tmp_path / "documents.db")
        return lambda place: MovedDocuments(StoredDocuments(store, place), FolderDocuments(tmp_path / "documents" / place))
    database: PostgresDatabase = request.getfixturevalue("postgres_database")
    return lambda place: open_documents(tmp_path / place, database, place)


def put(documents: Documents, name: str, content: bytes) -> None:
    documents.change(name, lambda _: content)


def test_what_was_never_stored_is_none_and_asking_creates_nothing(opened: Callable[[str], Documents], tmp_path: Path) -> None:
    assert opened("jobs").read("a.json") is None
    assert opened("jobs").within("", ".json") == {}
    assert list(tmp_path.iterdir()) == []


def test_documents_are_found_by_folder_and_ending(opened: Callable[[str], Documents]) -> None:
    documents = opened("jobs")
    for name in ("b.json", "a.json", "a.txt", "cluster/c.json", "cluster/meters/d.json", "clusters/e.json", "b.json.part"):
        put(documents, name, name.encode())
    assert documents.within("", ".json") == {"a.json": b"a.json", "b.json": b"b.json"}
    assert list(documents.within("cluster", ".json")) == ["cluster/c.json"]
    assert list(documents.within("", "")) == ["a.json", "a.txt", "b.json", "b.json.part"]
    assert documents.names("", ".json") == ["a.json", "b.json"]
    assert opened("lake").within("", "") == {}, "another place has documents of its own"
    put(opened("lake"), "a.json", b"other")
    assert opened("jobs").read("a.json") == b"a.json"


def test_a_change_gets_the_content_and_none_deletes(opened: Callable[[str], Documents]) -> None:
    documents = opened("jobs")
    assert documents.change("a.json", lambda former: None if former is None else b"never") is None
    assert documents.change("a.json", lambda former: (former or b"") + b"\x00\xff1") == b"\x00\xff1"
    assert opened("jobs").change("a.json", lambda former: (former or b"") + b"2") == b"\x00\xff12"
    assert opened("jobs").read("a.json") == b"\x00\xff12"
    with pytest.raises(ValueError, match="no"):
        documents.change("a.json", fail)
    assert documents.read("a.json") == b"\x00\xff12"
    assert documents.change("a.json", lambda _: None) is None
    assert opened("jobs").read("a.json") is None


def fail(_: bytes | None) -> bytes:
    raise ValueError("no")


def test_changes_of_several_callers_are_all_kept(opened: Callable[[str], Documents]) -> None:
    def count() -> None:
        for _ in range(20):
            opened("jobs").change("n", lambda former: b"%d" % (int(former or b"0") + 1))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert opened("jobs").read("n") == b"80"


def test_files_can_only_be_read_by_their_owner(tmp_path: Path) -> None:
    put(FolderDocuments(tmp_path / "new"), "a/b.json", b"1")
    assert (tmp_path / "new" / "a" / "b.json").stat().st_mode & 0o777 == 0o600


def test_a_copy_adds_what_is_missing_and_changes_nothing(opened: Callable[[str], Documents], tmp_path: Path) -> None:
    source, target = FolderDocuments(tmp_path / "source"), opened("jobs")
    put(source, "a", b"old")
    put(source, "b", b"old")
    put(target, "b", b"new")
    copy_documents(source, target, ["a", "b", "missing"])
    copy_documents(source, target, ["a", "b", "missing"])
    assert (target.read("a"), target.read("b"), target.read("missing")) == (b"old", b"new", None)
    assert source.read("a") == b"old"


def test_documents_of_a_former_place_are_read_and_move_when_they_change(tmp_path: Path) -> None:
    former, target = FolderDocuments(tmp_path / "former"), FolderDocuments(tmp_path / "target")
    for name in ("a", "b", "c"):
        put(former, name, b"old")
    put(target, "c", b"newer")
    put(target, "d", b"new")
    documents = MovedDocuments(target, former)
    assert (documents.read("a"), documents.read("c")) == (b"old", b"newer")
    assert documents.within("", "") == {"a": b"old", "b": b"old", "c": b"newer", "d": b"new"}
    assert documents.change("a", lambda known: known) == b"old"
    assert documents.change("b", lambda known: (known or b"") + b"!") == b"old!"
    assert (target.read("a"), target.read("b"), former.read("b")) == (b"old", b"old!", b"old")
    assert documents.change("b", lambda _: None) is None
    assert (documents.read("b"), former.read("b")) == (None, None)


@pytest.mark.slow
def test_a_change_that_is_killed_stores_nothing_and_holds_up_nobody(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    documents = open_documents(tmp_path, postgres_database, "jobs")
    put(documents, "a", b"before")
    program = """
        import sys, time
        from ratchet.flows.ledger.postgres_store import PostgresDatabase
        from ratchet.runtime.documents import open_documents

        def changed(former):
            print("in", flush=True)
            time.sleep(60)
            return b"after"

        open_documents(None, PostgresDatabase(sys.argv[1], "math"), "jobs").change("a", changed)
    """
    run_and_kill(program, postgres_database.url)
    assert documents.change("a", lambda former: (former or b"") + b"!") == b"before!"


def test_a_database_that_refuses_is_a_reason_to_try_again(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    documents = open_documents(tmp_path, postgres_database, "jobs")
    put(documents, "a", b"1")
    assert rows(postgres_database, "SELECT place, name FROM ratchet_documents_math.documents") == [("jobs", "a")]
    change(postgres_database, "ALTER TABLE ratchet_documents_math.documents RENAME COLUMN content TO contents")
    with pytest.raises(Retryable, match="ratchet_documents_math"):
        documents.read("a")


def test_a_folder_that_cannot_be_read_is_a_reason_to_try_again(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(Retryable, match="cannot read"):
        FolderDocuments(tmp_path).read("a")
