"""Contract tests for the places of a store: a SQLite file and a schema of a real Postgres server."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.flows.ledger import postgres_store
from ratchet.flows.ledger.former_file import FormerFile
from ratchet.flows.ledger.postgres_store import PostgresDatabase
from ratchet.runtime.sql_store import SqliteStore, SqlStore, StoreLayout, open_store
from tests.contract.stores import change, run_and_kill
from tests.contract.stores import rows as rows_in
from tests.postgres import PostgresServer

LAYOUT = StoreLayout(
    "things",
    ("things", "others"),
    create=(
        "CREATE TABLE IF NOT EXISTS things (name TEXT PRIMARY KEY, size INTEGER NOT NULL, share REAL, content BLOB) WITHOUT ROWID",
        "CREATE TABLE IF NOT EXISTS others (name TEXT PRIMARY KEY)",
    ),
)
INSERT = "INSERT INTO things VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"


@pytest.fixture
def store(database: PostgresDatabase | None, tmp_path: Path) -> SqlStore:
    return open_store(LAYOUT, tmp_path / "things.sqlite", database)


def names(store: SqlStore) -> list[str] | None:
    with store.reading() as connection:
        return None if connection is None else [name for (name,) in connection.execute("SELECT name FROM things ORDER BY name")]


def fill(store: SqlStore, *added: str) -> None:
    with store.changing() as connection:
        connection.executemany(INSERT, [(name, 2**40, 0.5, name.encode()) for name in added])


def test_reading_creates_nothing(store: SqlStore, tmp_path: Path) -> None:
    assert names(store) is None
    assert names(store) is None
    assert list(tmp_path.iterdir()) == []


def test_reading_during_the_first_change_finds_nothing(store: SqlStore) -> None:
    with store.changing() as connection:
        connection.execute("INSERT INTO others VALUES ('a')")
        assert names(store) is None
    assert names(store) == []


def test_values_come_back_as_they_were(store: SqlStore) -> None:
    fill(store, "b", "a", "ä", "B")
    with store.reading() as connection:
        assert connection is not None
        found = [tuple(row) for row in connection.execute("SELECT * FROM things WHERE name BETWEEN ? AND ? ORDER BY name", ("B", "b"))]
        assert found == [("B", 2**40, 0.5, b"B"), ("a", 2**40, 0.5, b"a"), ("b", 2**40, 0.5, b"b")]  # ordered by code points everywhere
        assert connection.execute("SELECT coalesce(sum(size), 0) FROM things WHERE name = ?", ("c",)).fetchone()[0] == 0


def test_a_block_that_fails_stores_nothing(store: SqlStore) -> None:
    fill(store, "a")
    with suppress(KeyboardInterrupt), store.changing() as connection:
        connection.execute(INSERT, ("b", 1, None, b""))
        raise KeyboardInterrupt
    assert names(store) == ["a"]


def test_a_reader_cannot_write(store: SqlStore) -> None:
    fill(store, "a")

    def write() -> None:
        with store.reading() as connection:
            assert connection is not None
            connection.execute(INSERT, ("b", 1, None, b""))

    with pytest.raises(Exception, match=r"read-?only"):
        write()
    assert names(store) == ["a"]


def test_many_short_transactions_of_one_caller_are_stored_one_by_one(store: SqlStore) -> None:
    with suppress(KeyboardInterrupt), store.held() as held:
        fill(held, "a")
        assert names(store) == names(held) == ["a"]
        fill(held, "b")
        raise KeyboardInterrupt
    assert names(store) == ["a", "b"]


def test_one_writer_at_a_time_also_at_the_first_use(store: SqlStore) -> None:
    """Each thread counts the rows and stores the next number. Without exclusion, two would store the same one, and one would be lost."""

    def count() -> None:
        for _ in range(5):
            with store.changing() as connection:
                (known,) = connection.execute("SELECT count(*) FROM things").fetchone()
                connection.execute("INSERT INTO things VALUES (?, ?, ?, ?)", (f"{known:03}", known, None, b""))

    threads = [Thread(target=count) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(store) == [f"{number:03}" for number in range(30)]


# A file of an installation that had no Postgres before


def test_the_rows_of_a_file_are_copied_once(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    file = tmp_path / "things.sqlite"
    fill(SqliteStore(LAYOUT, file), *(f"{number:05}" for number in range(4_500)))
    store = postgres_database.store(LAYOUT, file)
    with store.changing() as connection:
        assert connection.execute("SELECT count(*), min(name), max(size) FROM things").fetchone() == (4_500, "00000", 2**40)
        connection.execute("DELETE FROM things WHERE name > ?", ("00000",))
    fill(store, "new")
    assert names(postgres_database.store(LAYOUT, file)) == ["00000", "new"]
    assert len(names(SqliteStore(LAYOUT, file)) or ()) == 4_500, "the file stays as it was"


def test_reading_before_the_copy_reads_the_file_and_changes_nothing(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    file = tmp_path / "things.sqlite"
    fill(SqliteStore(LAYOUT, file), "a")
    assert names(postgres_database.store(LAYOUT, file)) == ["a"]
    assert rows_in(postgres_database, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'ratchet%%'") == []


def test_a_file_with_texts_does_not_stay(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    file, layout = tmp_path / "things.sqlite", replace(LAYOUT, holds_texts=True)
    fill(SqliteStore(layout, file), "a")
    store = postgres_database.store(layout, file)
    fill(store, "b")
    assert (names(store), file.exists()) == (["a", "b"], False)
    fill(SqliteStore(layout, file), "by a former release")
    fill(store, "c")
    assert (names(store), file.exists()) == (["a", "b", "by a former release", "c"], False)


def test_a_file_that_cannot_be_read_holds_up_the_store(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    (tmp_path / "things.sqlite").write_bytes(b"no database" * 1000)
    store = postgres_database.store(LAYOUT, tmp_path / "things.sqlite")
    with pytest.raises(Retryable, match=r"things.sqlite are not copied \(file is not a database\)"):
        fill(store, "a")
    assert rows_in(postgres_database, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'ratchet%%'") == []


_COPY = """
import sys, time
from pathlib import Path
from ratchet.flows.ledger import postgres_store
from ratchet.flows.ledger.former_file import FormerFile
from tests.contract.test_sql_store import LAYOUT, fill

copied, kill_after = [], int(sys.argv[3])
executemany = postgres_store._Statements.executemany
def executed(self, sql, rows):
    executemany(self, sql, rows)
    copied.append(sql)
    if len(copied) == kill_after:
        print("now", flush=True)
        time.sleep(60)
postgres_store._Statements.executemany = executed
fill(postgres_store.PostgresDatabase(sys.argv[1], "math").store(LAYOUT, Path(sys.argv[2])), "new")
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_a_killed_copy_begins_again(postgres_database: PostgresDatabase, tmp_path: Path, after: int) -> None:
    """The copy takes three statements, and the first change of the caller is the fourth."""
    file = tmp_path / "things.sqlite"
    fill(SqliteStore(LAYOUT, file), *(f"{number:05}" for number in range(4_500)))
    run_and_kill(_COPY, postgres_database.url, file, str(after))
    store = postgres_database.store(LAYOUT, file)
    assert len(names(store) or ()) == 4_500
    fill(store, "new")
    assert len(names(store) or ()) == 4_501


# A database that fails


def test_a_database_that_is_away_is_named_without_a_password(store_server: PostgresServer, tmp_path: Path) -> None:
    url = store_server.url("nowhere").replace("ratchet@", "ratchet:hunter2@")
    store = PostgresDatabase(url, "math").store(LAYOUT, tmp_path / "things.sqlite")
    with pytest.raises(Retryable, match=r"RATCHET_LEDGER_URL .* ratchet_things_math: .*nowhere") as raised:
        names(store)
    with pytest.raises(Retryable, match="RATCHET_LEDGER_URL"):
        fill(store, "a")
    assert "hunter2" not in str(raised.value) + repr(PostgresDatabase(url, "math"))


def test_a_missing_driver_is_named(tmp_path: Path) -> None:
    store = PostgresDatabase("postgresql+nothing://ratchet:hunter2@localhost/db", "math").store(LAYOUT, tmp_path / "things.sqlite")
    with pytest.raises(ConfigError, match=r"no driver for .* is installed"):
        names(store)


def test_a_lost_connection_stores_nothing_and_the_next_try_works(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    store = postgres_database.store(LAYOUT, tmp_path / "things.sqlite")
    fill(store, "a")

    def lose_it() -> None:
        with store.changing() as connection:
            connection.execute(INSERT, ("b", 1, None, b""))
            change(postgres_database, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            connection.execute(INSERT, ("c", 1, None, b""))

    with pytest.raises(Retryable, match="ratchet_things_math"):
        lose_it()
    fill(store, "d")
    assert names(store) == ["a", "d"]


def test_a_role_without_the_right_to_create_schemas_uses_one_that_exists(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    change(postgres_database, "DROP ROLE IF EXISTS modest")
    change(postgres_database, "CREATE ROLE modest LOGIN")
    modest = PostgresDatabase(postgres_database.url.replace("ratchet@", "modest@"), "math").store(LAYOUT, tmp_path / "things.sqlite")
    with pytest.raises(Retryable, match='CREATE SCHEMA "ratchet_things_math" AUTHORIZATION "modest"'):
        fill(modest, "a")
    change(postgres_database, "CREATE SCHEMA ratchet_things_math AUTHORIZATION modest")
    fill(modest, "a")
    assert names(modest) == ["a"]


_SUSPENDED = """
import sys, time
from dataclasses import replace
from pathlib import Path
from ratchet.contracts.errors import Retryable
from ratchet.flows.ledger import postgres_store
from ratchet.flows.ledger.former_file import FormerFile
from tests.contract.test_sql_store import INSERT, LAYOUT

layout = replace(LAYOUT, idle_seconds=1)
store = postgres_store.PostgresDatabase(sys.argv[1], "math").store(layout, Path(sys.argv[2]))
try:
    with store.changing() as connection:
        connection.execute(INSERT, ("old", 1, None, b""))
        print("inside", flush=True)
        sys.stdin.readline()
        connection.execute(INSERT, ("older", 1, None, b""))
except Retryable as error:
    print("refused", flush=True)
"""


@pytest.mark.slow
def test_a_suspended_writer_is_replaced_and_stores_nothing(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    file = tmp_path / "things.sqlite"
    command = [sys.executable, "-c", textwrap.dedent(_SUSPENDED), postgres_database.url, str(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        process.send_signal(signal.SIGSTOP)
        store = postgres_database.store(LAYOUT, file)
        fill(store, "new")  # waits until the database has ended the other transaction
        process.send_signal(signal.SIGCONT)
        assert process.communicate("go on\n")[0] == "refused\n"
    assert names(store) == ["new"]


def test_a_writer_that_waits_too_long_says_so(postgres_database: PostgresDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_store, "_SETTINGS", postgres_store._SETTINGS.replace("30s", "100ms"))
    store = postgres_database.store(LAYOUT, tmp_path / "things.sqlite")
    fill(store, "a")
    entered, done = threading.Event(), threading.Event()

    def long() -> None:
        with store.changing():
            entered.set()
            done.wait(30)

    thread = Thread(target=long)
    thread.start()
    entered.wait(30)
    with pytest.raises(Retryable, match="lock timeout"):
        fill(store, "b")
    assert names(store) == ["a"], "a reader does not wait"
    done.set()
    thread.join()


# A return to a former release


def test_a_former_release_cannot_write_to_the_file_after_the_copy(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    """It reads and writes the file, and would decide again what the database has decided."""
    file = tmp_path / "things.sqlite"
    fill(SqliteStore(LAYOUT, file), "a")
    fill(postgres_database.store(LAYOUT, file), "b")
    for statement in ("INSERT INTO things VALUES ('c', 1, NULL, NULL)", "UPDATE things SET size = 1", "DELETE FROM things"):
        with closing(sqlite3.connect(file)) as connection, pytest.raises(sqlite3.Error, match="database of RATCHET_LEDGER_URL"):
            connection.execute(statement)
    with pytest.raises(sqlite3.Error, match="database of RATCHET_LEDGER_URL"):
        fill(SqliteStore(LAYOUT, file), "c")
    fill(postgres_database.store(LAYOUT, file), "c")
    assert names(postgres_database.store(LAYOUT, file)) == ["a", "b", "c"]


def test_a_former_release_cannot_write_during_the_copy(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    file = tmp_path / "things.sqlite"
    fill(SqliteStore(LAYOUT, file), "a")
    with (
        postgres_database.store(LAYOUT, file).changing(),
        closing(sqlite3.connect(file, timeout=0)) as connection,
        pytest.raises(sqlite3.OperationalError, match="locked"),
    ):
        connection.execute("INSERT INTO others VALUES ('b')")


def test_what_a_former_release_wrote_to_a_file_without_a_mark_is_added(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    """It begins a new file if there is none. What the database has stays as it is."""
    file = tmp_path / "things.sqlite"
    fill(postgres_database.store(LAYOUT, file), "a")
    with SqliteStore(LAYOUT, file).changing() as connection:
        connection.executemany(INSERT, [("a", 1, None, b""), ("b", 2, None, b"")])
    store = postgres_database.store(LAYOUT, file)
    fill(store, "c")
    with store.reading() as found:
        assert found is not None
        assert found.execute("SELECT name, size FROM things ORDER BY name").fetchall() == [("a", 2**40), ("b", 2), ("c", 2**40)]
    with pytest.raises(sqlite3.Error, match="database of RATCHET_LEDGER_URL"):
        fill(SqliteStore(LAYOUT, file), "d")


def test_a_change_that_fails_leaves_the_file_to_a_former_release(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    file = tmp_path / "things.sqlite"
    fill(SqliteStore(LAYOUT, file), "a")
    with suppress(KeyboardInterrupt), postgres_database.store(LAYOUT, file).changing():
        raise KeyboardInterrupt
    fill(SqliteStore(LAYOUT, file), "b")
    assert names(postgres_database.store(LAYOUT, file)) == ["a", "b"]


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_kill_between_mark_and_end_of_the_copy_loses_and_repeats_nothing(
    postgres_database: PostgresDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stored: bool, is_first: bool
) -> None:
    """The process ends right before or right after the database stores the copy."""
    file = tmp_path / "things.sqlite"
    if not is_first:
        fill(postgres_database.store(LAYOUT, file), "a")
    fill(SqliteStore(LAYOUT, file), "a", "b")
    moving = FormerFile.moving

    @contextmanager
    def dying(self: FormerFile, copy: str, line: str) -> Iterator[object]:
        with moving(self, copy, line) as parts:
            yield parts
        raise KeyboardInterrupt

    def die(_self: FormerFile) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(FormerFile, *(("complete", die) if is_stored else ("moving", dying)))
        fill(postgres_database.store(LAYOUT, file), "c")
    if is_stored:
        change(postgres_database, "DELETE FROM ratchet_things_math.things WHERE name = 'b'")
    before = names(postgres_database.store(LAYOUT, file))
    fill(postgres_database.store(LAYOUT, file), "d")
    assert before == (["a", "c"] if is_stored else ["a", "b"] if is_first else ["a"])
    assert names(postgres_database.store(LAYOUT, file)) == (["a", "c", "d"] if is_stored else ["a", "b", "d"])
    change(postgres_database, "DROP SCHEMA ratchet_things_math CASCADE")
    with pytest.raises(ConfigError):
        names(postgres_database.store(LAYOUT, file))


# A schema that is lost


@pytest.mark.parametrize("begins_with", [["a"], []])
def test_a_lost_schema_is_not_made_again_from_the_old_rows_of_the_file(
    postgres_database: PostgresDatabase, tmp_path: Path, begins_with: list[str]
) -> None:
    """The ledger may have been moved with `pg_dump -t ratchet_rows`. Both ways out of the message work."""
    file = tmp_path / "things.sqlite"
    fill(SqliteStore(LAYOUT, file), "a")
    fill(postgres_database.store(LAYOUT, file), "b")
    change(postgres_database, "DROP SCHEMA ratchet_things_math CASCADE")
    for use in (names, fill):
        with pytest.raises(ConfigError, match=r"no complete schema ratchet_things_math.*things.sqlite.*restore the schema") as raised:
            use(postgres_database.store(LAYOUT, file))
    assert rows_in(postgres_database, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'ratchet%%'") == []
    if begins_with:
        statement = str(raised.value).split('"')[1]
        with closing(sqlite3.connect(file)) as connection, connection:
            connection.execute(statement)
    else:
        file.unlink()
    fill(postgres_database.store(LAYOUT, file), "c")
    assert names(postgres_database.store(LAYOUT, file)) == [*begins_with, "c"]


# Settings and rights that an administrator may have chosen


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_another_default_isolation_does_not_change_the_exclusion(
    postgres_database: PostgresDatabase, store_server: PostgresServer, tmp_path: Path, level: str
) -> None:
    """A snapshot from before the lock would show each writer what was there when it began to wait."""
    change(postgres_database, "DROP ROLE IF EXISTS strict")
    change(postgres_database, "CREATE ROLE strict LOGIN SUPERUSER")
    change(postgres_database, f"ALTER ROLE strict SET default_transaction_isolation = '{level}'")
    database = PostgresDatabase(store_server.url().replace("ratchet@", "strict@"), "math")
    test_one_writer_at_a_time_also_at_the_first_use(database.store(LAYOUT, tmp_path / "things.sqlite"))
    change(postgres_database, "DROP SCHEMA ratchet_things_math CASCADE")
    postgres_store._engine.cache_clear()  # the connections of the role have the default of their start


@pytest.mark.parametrize("has_file", [False, True])
def test_a_role_without_rights_on_the_schema_is_told_so(postgres_database: PostgresDatabase, tmp_path: Path, has_file: bool) -> None:
    file = tmp_path / "things.sqlite"
    if has_file:
        fill(SqliteStore(LAYOUT, file), "a")
    fill(postgres_database.store(LAYOUT, file), "b")
    change(postgres_database, "DROP ROLE IF EXISTS stranger")
    change(postgres_database, "CREATE ROLE stranger LOGIN")
    stranger = PostgresDatabase(postgres_database.url.replace("ratchet@", "stranger@"), "math").store(LAYOUT, file)
    for use in (names, fill):
        with pytest.raises(Retryable, match='grant USAGE, CREATE on schema "ratchet_things_math" to the user of the database'):
            use(stranger)


def test_the_text_of_a_file_may_have_a_nul(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    """SQLite stores one, and Postgres refuses it in texts. It would stop the copy for ever."""
    file = tmp_path / "things.sqlite"
    with SqliteStore(LAYOUT, file).changing() as connection:
        connection.execute(INSERT, ("a\0b", 1, None, b"a\0b"))
    store = postgres_database.store(LAYOUT, file)
    fill(store, "c\0")
    with store.reading() as found:
        assert found is not None
        query = "SELECT name, content FROM things WHERE name = ?"
        assert [found.execute(query, (name,)).fetchone() for name in ("a\0b", "c\0")] == [("a\ufffdb", b"a\0b"), ("c\ufffd", b"c\0")]


def test_a_store_says_how_long_a_writer_may_be_idle(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    for layout, expected in ((LAYOUT, "1min"), (replace(LAYOUT, idle_seconds=3600), "1h")):
        with postgres_database.store(layout, tmp_path / "things.sqlite").changing() as connection:
            assert connection.execute("SHOW idle_in_transaction_session_timeout").fetchone() == (expected,)
