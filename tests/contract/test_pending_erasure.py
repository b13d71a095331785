"""Contract tests for the state of an erasure that is not complete, in a file and on a real Postgres server."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.flows.ledger.postgres_store import PostgresDatabase
from ratchet.materializer.erasure import pending as module
from ratchet.materializer.erasure.marks import Marks, text_mark
from ratchet.materializer.erasure.pending import Pending, PendingErasure
from tests.contract.stores import rows, run_and_kill

FILE = "erasing.json"


def mark(*texts: str) -> Marks:
    return Marks(texts=tuple(sorted(map(text_mark, texts))))


FIRST = Pending(
    run="a", of_people=True, marks=mark("one", "two"), rows={"traces": 3}, artifacts={"1" * 64: 2}, plans=("2" * 64,), cycle="c/1"
)


@pytest.fixture
def erasure(database: PostgresDatabase | None, tmp_path: Path) -> PendingErasure:
    return PendingErasure(tmp_path / FILE, database)


def test_nothing_has_begun_at_first_and_asking_creates_nothing(
    erasure: PendingErasure, database: PostgresDatabase | None, tmp_path: Path
) -> None:
    assert erasure.read() == Pending()
    erasure.forget(erasure.read())
    erasure.move_file()
    assert list(tmp_path.iterdir()) == []
    assert database is None or rows(database, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'ratchet%%'") == []


def test_the_state_comes_back_until_it_is_forgotten(erasure: PendingErasure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PART", 100)
    erasure.write(FIRST)
    assert erasure.read() == FIRST
    erasure.write(Pending(run="b"))
    assert erasure.read() == Pending(run="b")
    erasure.forget(erasure.read())
    erasure.forget(erasure.read())
    assert erasure.read() == Pending()


def test_the_state_of_another_erasure_that_has_begun_since_is_not_forgotten(erasure: PendingErasure) -> None:
    first = Pending(run="a", of_people=True, marks=mark("one"))
    erasure.write(first)
    both = first.model_copy(update={"marks": mark("one", "two")})
    erasure.write(both)
    erasure.forget(first)
    assert erasure.read() == both
    erasure.forget(both)
    assert erasure.read() == Pending()


def test_states_are_joined_once() -> None:
    other = Pending(run="b", marks=mark("two", "three"), rows={"traces": 1, "feedback": 1}, plans=("3" * 64,))
    joined = FIRST | other
    assert (joined.run, joined.of_people, joined.marks, joined.cycle) == ("a", True, mark("one", "two", "three"), "c/1")
    assert joined.rows == {"feedback": 1, "traces": 3}
    assert joined | other == joined | joined == joined


# With Postgres


def test_a_lost_volume_loses_no_mark(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    PendingErasure(tmp_path / "home" / FILE, postgres_database).write(FIRST)
    shutil.rmtree(tmp_path / "home", ignore_errors=True)
    assert PendingErasure(tmp_path / "home" / FILE, postgres_database).read() == FIRST
    assert list(tmp_path.iterdir()) == []


def test_each_line_has_its_own_state(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    other = PendingErasure(tmp_path / "other.json", PostgresDatabase(postgres_database.url, "other"))
    PendingErasure(tmp_path / FILE, postgres_database).write(FIRST)
    assert other.read() == Pending()
    other.forget(other.read())
    assert PendingErasure(tmp_path / FILE, postgres_database).read() == FIRST


def test_the_file_of_a_time_before_is_read_moved_once_and_never_comes_back(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    file = tmp_path / FILE
    PendingErasure(file, None).write(FIRST)
    erasure = PendingErasure(file, postgres_database)
    assert (erasure.read(), file.exists()) == (FIRST, True), "reading moves nothing"
    assert rows(postgres_database, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'ratchet%%'") == []
    erasure.move_file()
    assert (erasure.read(), file.exists()) == (FIRST, False)
    erasure.forget(erasure.read())
    erasure.move_file()
    assert erasure.read() == Pending()


def test_a_file_is_joined_with_what_the_database_has(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    """A former release may have begun another erasure meanwhile, or an old state of the volume was restored."""
    file, other = tmp_path / FILE, Pending(run="b", marks=mark("three"), rows={"feedback": 1})
    erasure = PendingErasure(file, postgres_database)
    erasure.write(FIRST)
    PendingErasure(file, None).write(other)
    assert erasure.read() == FIRST | other
    erasure.move_file()
    assert erasure.read() == FIRST | other


@pytest.mark.parametrize("step", ["write", "forget"])
def test_a_file_is_gone_after_the_next_step_of_the_erasure(postgres_database: PostgresDatabase, tmp_path: Path, step: str) -> None:
    file = tmp_path / FILE
    PendingErasure(file, None).write(FIRST)
    erasure = PendingErasure(file, postgres_database)
    if step == "write":
        erasure.write(erasure.read())
        assert erasure.read() == FIRST
    else:
        erasure.forget(erasure.read())
        assert erasure.read() == Pending()
    assert not file.exists()


def test_an_erasure_that_ends_during_the_move_stays_complete(
    postgres_database: PostgresDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / FILE
    PendingErasure(file, None).write(FIRST)
    moving, ending = (PendingErasure(file, postgres_database) for _ in range(2))
    read = moving._of_file

    def read_and_end() -> Pending:
        found = read()
        ending.forget(ending.read())
        return found

    monkeypatch.setattr(moving, "_of_file", read_and_end)
    moving.move_file()
    assert ending.read() == Pending()


_MOVE = """
import sys, time
from pathlib import Path
from ratchet.flows.ledger import postgres_store
from ratchet.materializer.erasure.pending import Pending, PendingErasure

def here(*_args, **_kwargs):
    print("here", flush=True)
    time.sleep(60)

url, file, step, action = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]
erasure = PendingErasure(file, postgres_store.PostgresDatabase(url, "math"))
execute = postgres_store._Statements.execute
def executed(self, sql, values=()):
    found = execute(self, sql, values)
    if sql.startswith(step):
        here()
    return found
postgres_store._Statements.execute = executed
if step == "unlink":
    Path.unlink = here
erasure.forget(erasure.read()) if action == "forget" else erasure.move_file()
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", ["SELECT content", "DELETE", "INSERT", "unlink"])
def test_a_move_that_is_killed_loses_nothing_and_is_repeated(postgres_database: PostgresDatabase, tmp_path: Path, step: str) -> None:
    file = tmp_path / FILE
    PendingErasure(file, None).write(FIRST)
    run_and_kill(_MOVE, postgres_database.url, file, step, "move")
    erasure = PendingErasure(file, postgres_database)
    assert (erasure.read(), file.exists()) == (FIRST, True)
    erasure.move_file()
    assert (erasure.read(), file.exists()) == (FIRST, False)
    assert rows(postgres_database, "SELECT count(*) FROM ratchet_erasing_math.parts") == [(1,)]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["DELETE", "unlink"])
def test_an_end_that_is_killed_leaves_an_erasure_that_can_be_completed(
    postgres_database: PostgresDatabase, tmp_path: Path, step: str
) -> None:
    erasure = PendingErasure(tmp_path / FILE, postgres_database)
    erasure.write(FIRST)
    run_and_kill(_MOVE, postgres_database.url, tmp_path / FILE, step, "forget")
    assert erasure.read() == FIRST
    erasure.forget(erasure.read())
    assert erasure.read() == Pending()


def test_marks_are_not_written_to_the_disk_while_the_database_is_away(tmp_path: Path) -> None:
    erasure = PendingErasure(tmp_path / FILE, PostgresDatabase(f"postgresql+psycopg://ratchet@/db?host={tmp_path}", "math"))
    for act in (erasure.read, lambda: erasure.write(FIRST), lambda: erasure.forget(FIRST)):
        with pytest.raises(Retryable, match="ratchet_erasing_math"):
            act()
    assert list(tmp_path.iterdir()) == []


def test_the_database_removes_deleted_marks_by_itself(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    PendingErasure(tmp_path / FILE, postgres_database).write(FIRST)
    found = rows(postgres_database, "SELECT unnest(reloptions) FROM pg_class WHERE relname = 'parts'")
    assert sorted(found) == [("autovacuum_vacuum_scale_factor=0",), ("autovacuum_vacuum_threshold=0",)]
