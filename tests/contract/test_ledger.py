"""Contract tests for every ledger: in memory, on SQLite, and on a real Postgres server if Postgres is installed."""

from __future__ import annotations

import contextlib
import multiprocessing
import sqlite3
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ratchet.contracts.cycle import Append, Row
from ratchet.contracts.errors import Conflict, Fenced, NewerRelease, Permanent, Retryable, Unwritable
from ratchet.contracts.fakes import MemoryLedger
from ratchet.contracts.hash_chain import verify_chain
from ratchet.contracts.ports import Ledger
from ratchet.contracts.schema import SCHEMA_VERSION
from ratchet.flows.ledger.opening import open_ledger_at
from ratchet.flows.ledger.sql import SqlLedger
from ratchet.flows.ledger.sqlite import SqliteLedger
from tests.contract.ledger_writer import contend
from tests.postgres import postgres_server

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Open = Callable[[], Ledger]


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a private Postgres server. Skips the test if Postgres is not installed."""
    with postgres_server() as server:
        yield server.url()


@pytest.fixture
def empty_postgres(postgres: str) -> Iterator[str]:
    yield postgres
    engine = sa.create_engine(postgres)
    with engine.begin() as connection:
        for table in ("ratchet_rows", "ratchet_leases"):
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {table}")
    engine.dispose()


@pytest.fixture(params=["memory", "sqlite", "sql-on-sqlite", "postgres"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """A function that opens the same ledger again at each call."""
    if request.param == "memory":
        ledger = MemoryLedger()
        return lambda: ledger
    if request.param == "sqlite":
        return lambda: SqliteLedger(tmp_path / "deep" / "ledger.db")
    if request.param == "sql-on-sqlite":
        return lambda: SqlLedger(f"sqlite:///{tmp_path / 'deep' / 'ledger.db'}")
    url = request.getfixturevalue("empty_postgres")
    return lambda: SqlLedger(url)


@pytest.fixture
def ledger(reopen: Open) -> Ledger:
    return reopen()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database that several processes share."""
    return f"sqlite:///{tmp_path / 'ledger.db'}" if request.param == "sqlite" else str(request.getfixturevalue("empty_postgres"))


def rows(stream: str, after: int, *keys: str) -> Append:
    return Append(stream=stream, after=after, rows=tuple(Row(kind="noted", key=key, data={"key": key}) for key in keys))


def test_readers_of_sqlite_do_not_wait_for_a_writer(tmp_path: Path) -> None:
    ledger = open_ledger_at(f"sqlite:///{tmp_path / 'ledger.db'}")
    written = ledger.append([rows("a", 0, "one")], None, NOON)
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert ledger.read("a") == written
        assert ledger.streams("a") == ["a"]
        assert ledger.holder("a") is None


@pytest.mark.slow
def test_rows_are_read_in_order_as_a_chain(ledger: Ledger) -> None:
    written = ledger.append([rows("a", 0, "one", "two")], None, NOON) + ledger.append([rows("a", 2, "three")], None, NOON)
    assert ledger.read("a") == written
    assert [entry.seq for entry in written] == [1, 2, 3]
    assert ledger.read("a", after=2) == written[2:]
    assert ledger.read("b") == ledger.read("a", after=3) == []
    verify_chain(ledger.read("a"))


@pytest.mark.slow
def test_heads_are_the_last_rows_of_all_streams(ledger: Ledger) -> None:
    assert ledger.heads() == []
    ledger.append([rows("b", 0, "one", "two"), rows("a/1", 0, "one")], None, NOON)
    last = ledger.append([rows("b", 2, "three")], None, NOON)[-1]
    found = ledger.heads()
    assert [(head.stream, head.seq) for head in found] == [("a/1", 1), ("b", 3)]
    assert found[1].hash == last.hash
    assert found[0].hash == ledger.read("a/1")[0].hash


def test_lengths_count_the_rows_of_the_streams_that_exist(ledger: Ledger) -> None:
    ledger.append([Append(stream="a", after=0, rows=(Row(kind="x"), Row(kind="y")))], None, NOON)
    ledger.append([Append(stream="b", after=0, rows=(Row(kind="x"),))], None, NOON)
    assert ledger.lengths(["a", "b", "c"]) == {"a": 2, "b": 1}
    assert ledger.lengths([]) == {}


def test_content_is_read_as_it_was_written(ledger: Ledger) -> None:
    data = {"text": "é\n\u2028\U0001f980'\"%_\\", "list": [1, 2.5, None, True, {"deep": []}], "big": 2**53, "small": 1e-300, "empty": {}}
    at = NOON + timedelta(microseconds=123)
    ledger.append([Append(stream="a", after=0, rows=(Row(kind="noted", data=data),))], None, at)
    (entry,) = ledger.read("a")
    assert (entry.data, entry.at, entry.epoch) == (data, at, 0)
    verify_chain([entry])


@pytest.mark.parametrize("after", [0, 1, 3, 99])
def test_append_after_a_wrong_row_number_is_a_conflict(ledger: Ledger, after: int) -> None:
    ledger.append([rows("a", 0, "one", "two")], None, NOON)
    with pytest.raises(Conflict):
        ledger.append([rows("a", after, "three")], None, NOON)
    assert len(ledger.read("a")) == 2


def test_appends_to_several_streams_are_atomic(ledger: Ledger) -> None:
    ledger.append([rows("b", 0, "there")], None, NOON)
    for order in (["a", "b", "c"], ["b", "a", "c"], ["a", "c", "b"]):
        with pytest.raises(Conflict):
            ledger.append([rows(stream, 0, "x") for stream in order], None, NOON)
    assert (ledger.read("a"), len(ledger.read("b")), ledger.read("c")) == ([], 1, [])
    assert ledger.streams("") == ["b"]
    ledger.append([rows("a", 0, "x"), rows("b", 1, "y", "z"), rows("c", 0, "x")], None, NOON)
    assert [len(ledger.read(stream)) for stream in "abc"] == [1, 3, 1]


def test_two_appends_to_one_stream_must_be_consecutive(ledger: Ledger) -> None:
    with pytest.raises(Conflict):
        ledger.append([rows("a", 0, "one"), rows("a", 0, "two")], None, NOON)
    assert ledger.read("a") == []
    ledger.append([rows("a", 0, "one"), rows("a", 1, "two")], None, NOON)
    verify_chain(ledger.read("a"))
    assert len(ledger.read("a")) == 2


def test_streams_are_found_by_their_literal_prefix(ledger: Ledger) -> None:
    names = ["line/a", "line/a_b", "line/a%b", "line/axb", "line/A", "line/a\\b", "lines", "line/é", "other"]
    for name in names:
        ledger.append([rows(name, 0, "x", "y")], None, NOON)
    assert ledger.streams("") == sorted(names)
    for prefix in ("line/", "line/a_", "line/a%", "line/a", "line/A", "line/a\\", "line/é", "%", "_", "nothing"):
        assert ledger.streams(prefix) == sorted(name for name in names if name.startswith(prefix)), prefix


def test_lease_has_one_holder_until_it_expires(ledger: Ledger) -> None:
    first = ledger.acquire("line", "one", 60, NOON)
    assert first is not None
    assert (first.holder, first.epoch, first.expires) == ("one", 1, NOON + timedelta(seconds=60))
    assert ledger.acquire("line", "two", 60, NOON + timedelta(seconds=59)) is None
    assert ledger.acquire("other", "two", 60, NOON) is not None
    second = ledger.acquire("line", "two", 60, NOON + timedelta(seconds=60))
    assert second is not None
    assert second.epoch == 2
    assert ledger.holder("line") == second
    assert ledger.holder("unknown") is None


def test_former_lease_holder_cannot_write(ledger: Ledger) -> None:
    old = ledger.acquire("line", "one", 60, NOON)
    assert old is not None
    ledger.append([rows("a", 0, "one")], old, NOON)
    new = ledger.acquire("line", "two", 60, NOON + timedelta(seconds=61))
    with pytest.raises(Fenced):
        ledger.append([rows("a", 1, "late"), rows("b", 0, "late")], old, NOON)
    with pytest.raises(Fenced):
        ledger.renew(old, 60, NOON)
    ledger.release(old)  # a stale lease is ignored without an error
    assert ledger.holder("line") == new
    ledger.append([rows("a", 1, "two")], new, NOON)
    assert [entry.epoch for entry in ledger.read("a")] == [1, 2]


def test_lease_from_before_the_clock_was_set_back_has_ended(ledger: Ledger) -> None:
    ledger.acquire("line", "dead", 60, NOON)
    assert ledger.acquire("line", "two", 60, NOON - timedelta(seconds=59)) is None, "clocks of two machines may differ a little"
    second = ledger.acquire("line", "two", 60, NOON - timedelta(hours=1))
    assert second is not None
    assert second.epoch == 2
    assert ledger.acquire("line", "three", 60, NOON - timedelta(hours=1)) is None


def test_expired_lease_is_valid_until_another_holder_acquires_it(ledger: Ledger) -> None:
    lease = ledger.acquire("line", "one", 60, NOON)
    assert lease is not None
    late = NOON + timedelta(hours=1)
    ledger.append([rows("a", 0, "late")], lease, late)
    renewed = ledger.renew(lease, 60, late)
    assert (renewed.epoch, renewed.expires) == (1, late + timedelta(seconds=60))
    assert ledger.acquire("line", "two", 60, late) is None


def test_released_lease_is_free_at_once_and_its_epoch_is_not_reused(ledger: Ledger) -> None:
    lease = ledger.acquire("line", "one", 60, NOON)
    assert lease is not None
    ledger.release(lease)
    after = ledger.acquire("line", "two", 60, NOON)
    assert after is not None
    assert after.epoch == 2
    again = ledger.acquire("line", "two", 60, NOON)  # the same holder acquires it again after a crash
    assert again is not None
    assert again.epoch == 3
    with pytest.raises(Fenced):
        ledger.append([rows("a", 0, "x")], after, NOON)


def test_unknown_lease_is_fenced(ledger: Ledger, reopen: Open) -> None:
    lease = MemoryLedger().acquire("ghost", "one", 60, NOON)
    assert lease is not None
    with pytest.raises(Fenced):
        ledger.append([rows("a", 0, "x")], lease, NOON)
    with pytest.raises(Fenced):
        ledger.renew(lease, 60, NOON)
    ledger.release(lease)
    assert ledger.holder("ghost") is None


def test_reopened_ledger_continues(reopen: Open) -> None:
    lease = reopen().acquire("line", "one", 60, NOON)
    reopen().append([rows("a", 0, "one")], lease, NOON)
    reopen().append([rows("a", 1, "two")], lease, NOON)
    verify_chain(reopen().read("a"))
    assert reopen().holder("line") == lease


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.integers(1, 2)), max_size=12))
def test_any_sequence_of_appends_matches_a_list_model(steps: list[tuple[str, int, int]]) -> None:
    ledger, model = MemoryLedger(), {"a": 0, "b": 0}
    for stream, after, count in steps:
        try:
            ledger.append([rows(stream, after, *"xy"[:count])], None, NOON)
            assert after == model[stream]
            model[stream] += count
        except Conflict:
            assert after != model[stream]
    for stream, length in model.items():
        assert len(ledger.read(stream)) == length
        verify_chain(ledger.read(stream))


@pytest.mark.slow
def test_concurrent_processes_write_every_row_once(url: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    workers = [spawn.Process(target=contend, args=(url, n, 6, results)) for n in range(4)]  # the database does not exist yet
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    entries = open_ledger_at(url).read("a")
    verify_chain(entries)
    assert sorted(entry.key for entry in entries) == sorted(f"{worker}-{n}" for worker in range(4) for n in range(6))


@pytest.mark.slow
def test_one_of_eight_concurrent_appends_succeeds_and_the_others_conflict(url: str) -> None:
    ledger, outcomes, gate = open_ledger_at(url), [], threading.Barrier(8)

    def write(worker: int) -> None:
        own = open_ledger_at(url)
        gate.wait()
        try:
            own.append([rows("a", 0, str(worker)), rows("b", 0, str(worker))], None, NOON)
            outcomes.append("written")
        except Retryable as error:
            outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["Conflict"] * 7 + ["written"]
    assert ledger.read("a")[0].key == ledger.read("b")[0].key


def test_one_of_eight_threads_gets_the_lease(url: str) -> None:
    got, gate = [], threading.Barrier(8)
    open_ledger_at(url)

    def take(worker: int) -> None:
        own = open_ledger_at(url)
        gate.wait()
        got.append(own.acquire("line", str(worker), 60, NOON))

    threads = [threading.Thread(target=take, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8
    assert len([lease for lease in got if lease]) == 1


CHANGES = {
    "kind": "other",
    "key": "other",
    "data": '{"key":"other"}',
    "at": "2027-01-01T00:00:00+00:00",
    "epoch": 7,
    "previous": "f" * 64,
    "hash": "f" * 64,
    "seq": 99,
}


@pytest.mark.parametrize("row", [1, 2, 3])
@pytest.mark.parametrize("column", CHANGES)
def test_any_changed_cell_is_detected(tmp_path: Path, column: str, row: int) -> None:
    ledger = _three(tmp_path)
    _sql(tmp_path, f'UPDATE ratchet_rows SET "{column}" = ? WHERE seq = ?', CHANGES[column], row)
    with pytest.raises(Permanent, match="changed"):
        verify_chain(ledger.read("a"))


@pytest.mark.parametrize("row", [1, 2])
def test_deleted_row_is_detected(tmp_path: Path, row: int) -> None:
    ledger = _three(tmp_path)
    _sql(tmp_path, "DELETE FROM ratchet_rows WHERE seq = ?", row)
    with pytest.raises(Permanent, match="changed"):
        verify_chain(ledger.read("a"))


def test_renamed_stream_is_detected(tmp_path: Path) -> None:
    ledger = _three(tmp_path)
    _sql(tmp_path, "UPDATE ratchet_rows SET stream = ?", "b")
    with pytest.raises(Permanent, match="changed"):
        verify_chain(ledger.read("b"))


def _three(folder: Path) -> SqlLedger:
    ledger = open_ledger_at(f"sqlite:///{folder / 'ledger.db'}")
    ledger.append([rows("a", 0, "one", "two", "three")], None, NOON)
    verify_chain(ledger.read("a"))
    return ledger


def _sql(folder: Path, statement: str, *values: object) -> None:
    import sqlite3

    with sqlite3.connect(folder / "ledger.db") as connection:
        connection.execute(statement, values)


def test_unreachable_database_is_retryable_and_the_error_hides_the_password() -> None:
    with pytest.raises(Retryable) as caught:
        open_ledger_at("postgresql+psycopg://ratchet:secret-word@127.0.0.1:1/nowhere")
    assert "secret-word" not in str(caught.value)


def test_invalid_database_url_is_permanent() -> None:
    with pytest.raises(Permanent, match="sqlite:///"):
        open_ledger_at("not an address")


def test_folder_that_cannot_be_created_is_retryable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Retryable):
        open_ledger_at(f"sqlite:///{tmp_path / 'file' / 'ledger.db'}")


def test_file_that_is_not_a_database_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"this is not a database, " * 100)
    with pytest.raises((Retryable, Permanent), match="not a database"):
        open_ledger_at(f"sqlite:///{tmp_path / 'ledger.db'}")


def test_missing_driver_is_an_error_with_a_remedy() -> None:
    with pytest.raises(Permanent, match="install"):
        open_ledger_at("mysql+pymysql://x@127.0.0.1/x")


def from_the_future(ledger: Ledger) -> None:
    """Give the last row of the stream `s` the version of a newer release."""
    if isinstance(ledger, MemoryLedger):
        ledger.rows["s"][-1] = ledger.rows["s"][-1].model_copy(update={"schema_version": SCHEMA_VERSION + 1})
        return
    with sa.create_engine(f"sqlite:///{ledger.file}" if isinstance(ledger, SqliteLedger) else ledger.url).begin() as connection:
        connection.execute(sa.text(f"UPDATE ratchet_rows SET schema_version = {SCHEMA_VERSION + 1} WHERE stream = 's'"))


def test_row_of_a_newer_release_is_refused_and_nothing_is_written(ledger: Ledger) -> None:
    ledger.append([Append(stream="s", after=0, rows=(Row(kind="opened"),))], None, NOON)
    from_the_future(ledger)
    with pytest.raises(NewerRelease, match=r"row 1 of s was written by a newer release of Ratchet"):
        ledger.read("s")
    both = [Append(stream="other", after=0, rows=(Row(kind="opened"),)), Append(stream="s", after=1, rows=(Row(kind="ended"),))]
    with pytest.raises(NewerRelease):
        ledger.append(both, None, NOON)
    assert ledger.streams("") == ["s"]


def test_both_ledgers_of_a_sqlite_file_read_what_the_other_wrote(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    first, second = SqliteLedger(file), SqlLedger(f"sqlite:///{file}")
    written = first.append([rows("a", 0, "one")], None, NOON) + second.append([rows("a", 1, "two")], None, NOON)
    assert first.read("a") == second.read("a") == written
    assert first.heads() == second.heads()
    assert second.acquire("x", "me", 60, NOON) is not None
    assert first.holder("x") == second.holder("x")
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as other, contextlib.closing(sqlite3.connect(file)) as ours:
        SqlLedger(f"sqlite:///{tmp_path / 'other.db'}")
        columns = (
            "SELECT m.name, p.name, p.type, p.\"notnull\", p.pk FROM sqlite_master m, pragma_table_info(m.name) p WHERE m.type = 'table'"
        )
        assert sorted(ours.execute(columns)) == sorted(other.execute(columns))


def test_names_of_streams_are_compared_by_case(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "ledger.db")
    ledger.append([rows("line/a%", 0, "x"), rows("Line/b", 0, "x"), rows("line/ä", 0, "x")], None, NOON)
    assert ledger.streams("line/") == ["line/a%", "line/ä"]


def test_a_file_that_cannot_be_opened_is_unwritable(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").mkdir()
    with pytest.raises(Unwritable, match="make the file and its folder writable"):
        SqliteLedger(tmp_path / "ledger.db")
