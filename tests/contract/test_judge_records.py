"""Contract tests for the records of judges, in a SQLite file and on a real Postgres server."""

from __future__ import annotations

import multiprocessing
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ratchet.contracts.data.beliefs import JudgeBelief
from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import digest
from ratchet.flows.ledger.postgres_store import PostgresDatabase
from ratchet.rewards.judge.client import Answer
from ratchet.rewards.judge.records import JudgeRecords
from ratchet.rewards.judge.verdict import Outcome
from tests.contract.stores import rows, run_and_kill

NOW = datetime.now(UTC)
JUDGE = digest("judge")
KEYS = [digest(number) for number in range(1_200)]


@pytest.fixture
def records(database: PostgresDatabase | None, tmp_path: Path) -> JudgeRecords:
    return JudgeRecords(tmp_path / "home" / "judgements.db", "math", database)


def answered(value: float | None, tokens: int = 10) -> Answer:
    return Answer(Outcome.INVALID if value is None else Outcome.SCORED, value, tokens)


def belief(rejects: float = 1.0) -> JudgeBelief:
    return JudgeBelief(judge=JUDGE, name="judge", model="m", believed=rejects == 1.0, reason="measured")


def everything(records: JudgeRecords) -> tuple[object, ...]:
    return records.verdicts(KEYS), records.used(JUDGE, NOW), records.grades(), records.belief(JUDGE), records.salt()


def fill(records: JudgeRecords) -> None:
    with records.recording(JUDGE) as record:
        record(KEYS[0], answered(0.75))
        record(KEYS[1], answered(None))
    records.grade({KEYS[0]: 1.0, KEYS[2]: 0.25}, "Ada", NOW)
    records.believe(belief())


def test_nothing_is_recorded_at_first(records: JudgeRecords, tmp_path: Path) -> None:
    assert records.verdicts(KEYS) == {}
    assert records.used(JUDGE, NOW) == 0
    assert records.grades() == {}
    assert records.belief(JUDGE) is None
    assert list(tmp_path.iterdir()) == [], "a command that only reads creates nothing"


def test_records_come_back_as_they_were(records: JudgeRecords) -> None:
    fill(records)
    assert records.verdicts(KEYS) == {KEYS[0]: (Outcome.SCORED, 0.75), KEYS[1]: (Outcome.INVALID, None)}
    assert records.used(JUDGE, NOW + timedelta(minutes=1)) == 20
    assert records.used(JUDGE, NOW + timedelta(hours=25)) == 0
    assert records.used(digest("another judge"), NOW) == 0
    assert records.grades() == {KEYS[0]: 1.0, KEYS[2]: 0.25}
    assert records.belief(JUDGE) == belief()


def test_the_first_verdict_stays_and_each_one_is_paid(records: JudgeRecords) -> None:
    with records.recording(JUDGE) as record:
        record(KEYS[0], answered(1.0))
        record(KEYS[0], answered(0.0))
    assert records.verdicts(KEYS[:1]) == {KEYS[0]: (Outcome.SCORED, 1.0)}
    assert records.used(JUDGE, NOW) == 20


def test_a_later_grade_and_a_later_belief_replace_earlier_ones(records: JudgeRecords) -> None:
    fill(records)
    records.grade({KEYS[0]: 0.0}, "Grace", NOW)
    records.believe(belief(0.5))
    assert records.grades() == {KEYS[0]: 0.0, KEYS[2]: 0.25}
    assert records.belief(JUDGE) == belief(0.5)


def test_lines_have_their_own_tokens_grades_and_beliefs(database: PostgresDatabase | None, records: JudgeRecords) -> None:
    fill(records)
    theirs = None if database is None else PostgresDatabase(database.url, "other")
    other = JudgeRecords(records._path, "other", theirs)
    assert (other.used(JUDGE, NOW), other.grades(), other.belief(JUDGE)) == (0, {}, None)


def _record(path: Path, database: PostgresDatabase | None, number: int) -> str:
    records = JudgeRecords(path, "math", database)
    with records.recording(JUDGE) as record:
        for key in KEYS[:20]:
            record(key, answered(float(number)))
    return records.salt()


@pytest.mark.slow
def test_processes_that_record_at_once_agree_and_lose_no_token(database: PostgresDatabase | None, records: JudgeRecords) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        salts = pool.starmap(_record, [(records._path, database, number) for number in range(4)])
    assert len(set(salts)) == 1
    assert set(records.verdicts(KEYS)) == set(KEYS[:20])
    assert records.used(JUDGE, NOW) == 4 * 20 * 10


def test_a_lost_volume_loses_no_record(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    records = JudgeRecords(tmp_path / "home" / "judgements.db", "math", postgres_database)
    fill(records)
    before = everything(records)
    shutil.rmtree(tmp_path / "home", ignore_errors=True)
    assert everything(JudgeRecords(tmp_path / "new" / "judgements.db", "math", postgres_database)) == before


def test_an_upgrade_keeps_the_records_of_every_line_of_the_file(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    lines = ("math", "other")
    for line in lines:
        fill(JudgeRecords(tmp_path / "judgements.db", line))
    before = [everything(JudgeRecords(tmp_path / "judgements.db", line)) for line in lines]
    opened = [JudgeRecords(tmp_path / "judgements.db", line, PostgresDatabase(postgres_database.url, line)) for line in lines]
    assert [everything(one) for one in opened] == before
    (tmp_path / "judgements.db").unlink()
    assert [everything(one) for one in opened] == before


def test_a_line_gets_no_tokens_grades_and_beliefs_of_other_lines(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    """A file has those of all lines. They would stay in the schema of a line after the end of theirs."""
    for line in ("math", "other"):
        fill(JudgeRecords(tmp_path / "judgements.db", line))
    salt = JudgeRecords(tmp_path / "judgements.db", "math").salt()
    assert JudgeRecords(tmp_path / "judgements.db", "math", postgres_database).salt() == salt
    for table in ("tokens", "grades", "beliefs"):
        assert rows(postgres_database, f"SELECT DISTINCT line FROM ratchet_judgements_math.{table}") == [("math",)]
    new = PostgresDatabase(postgres_database.url, "new")
    assert JudgeRecords(tmp_path / "judgements.db", "new", new).salt() == salt
    assert rows(new, "SELECT line FROM ratchet_judgements_new.grades") == []
    assert set(JudgeRecords(tmp_path / "judgements.db", "new", new).verdicts(KEYS)) == {KEYS[0], KEYS[1]}


_RECORD = """
import sys, time
from pathlib import Path
from ratchet.flows.ledger.postgres_store import PostgresDatabase
from ratchet.rewards.judge.records import JudgeRecords
from tests.contract.test_judge_records import JUDGE, KEYS, answered

with JudgeRecords(Path(sys.argv[2]), "math", PostgresDatabase(sys.argv[1], "math")).recording(JUDGE) as record:
    for key in KEYS[:30]:
        record(key, answered(1.0))
    print("now", flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_a_verdict_is_stored_when_the_call_returns(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    run_and_kill(_RECORD, postgres_database.url, tmp_path / "judgements.db")
    records = JudgeRecords(tmp_path / "judgements.db", "math", postgres_database)
    assert len(records.verdicts(KEYS)) == 30
    assert records.used(JUDGE, NOW) == 300


def test_nothing_is_asked_while_the_database_is_away(tmp_path: Path) -> None:
    database = PostgresDatabase(f"postgresql+psycopg://ratchet@/db?host={tmp_path}", "math")
    records = JudgeRecords(tmp_path / "judgements.db", "math", database)
    with pytest.raises(Retryable, match="ratchet_judgements_math"):
        records.verdicts(KEYS)
    with pytest.raises(Retryable, match="ratchet_judgements_math"):
        records.used(JUDGE, NOW)
