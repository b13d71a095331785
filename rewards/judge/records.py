"""The records of judges: verdicts by content, tokens, people's grades and beliefs.

A verdict is recorded when it arrives, and never changes: labels and the gate read it from here, so that an answer is paid for once and a
repeated step gets the same scores. The records contain no text of a user, only digests.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ratchet.contracts.data.beliefs import JudgeBelief
from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import Digest
from ratchet.contracts.schema import parse, stamped
from ratchet.rewards.judge.client import Answer
from ratchet.rewards.judge.verdict import Outcome
from ratchet.runtime.sql_store import SqlStore, Statements, StoreDatabase, StoreLayout, open_store

PERIOD = timedelta(hours=24)
"""Time to which a budget of tokens applies."""

LAYOUT = StoreLayout(
    "judgements",
    ("verdicts", "tokens", "grades", "beliefs", "settings"),
    create=(
        "CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, outcome TEXT NOT NULL, value REAL, at TEXT NOT NULL) WITHOUT ROWID",
        "CREATE TABLE IF NOT EXISTS tokens (judge TEXT NOT NULL, line TEXT NOT NULL, at TEXT NOT NULL, tokens INTEGER NOT NULL)",
        "CREATE INDEX IF NOT EXISTS tokens_by_time ON tokens (judge, line, at)",
        "CREATE TABLE IF NOT EXISTS grades (line TEXT NOT NULL, answer TEXT NOT NULL, grade REAL NOT NULL, grader TEXT NOT NULL, "
        "at TEXT NOT NULL, PRIMARY KEY (line, answer))",
        "CREATE TABLE IF NOT EXISTS beliefs (line TEXT NOT NULL, judge TEXT NOT NULL, belief BLOB NOT NULL, PRIMARY KEY (line, judge))",
        "CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    ),
    pragmas=("journal_mode = WAL", "synchronous = NORMAL"),
    of_a_line=("tokens", "grades", "beliefs"),
)
"""A file has the records of all lines. In Postgres, each line NAME has its own, in the schema `ratchet_judgements_NAME`."""
_CHUNK = 500
"""Keys per query. SQLite limits the number of parameters."""


class JudgeRecords:
    """The records of one line in the database, or without one in the file `path`. Any number of processes may use them.

    Methods raise Retryable if the records cannot be read or written.
    """

    def __init__(self, path: Path, line: str, database: StoreDatabase | None = None) -> None:
        self._path = path
        self._line = line
        self._store = open_store(LAYOUT, path, database)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise Retryable(f"the records of judges in {self._path} are not usable ({error}); free space or fix permissions") from error

    @contextmanager
    def _changing(self) -> Iterator[Statements]:
        with self._errors(), self._store.changing() as database:
            yield database

    def _read(self, query: str, values: Sequence[object]) -> list[Any]:
        """Return the rows of a query; none if nothing was ever recorded."""
        with self._errors(), self._store.reading() as database:
            return [] if database is None else database.execute(query, values).fetchall()

    @contextmanager
    def recording(self, judge: Digest) -> Iterator[Recorder]:
        """Yield a function that records the verdict of a key; each one is stored when the call returns."""
        with self._errors(), self._store.held() as store:
            yield Recorder(store, judge, self._line)

    def verdicts(self, keys: Sequence[Digest]) -> dict[Digest, tuple[Outcome, float | None]]:
        """Return the recorded verdicts of these keys."""
        found: dict[Digest, tuple[Outcome, float | None]] = {}
        for start in range(0, len(keys), _CHUNK):
            part = keys[start : start + _CHUNK]
            marks = ",".join("?" * len(part))
            rows = self._read(f"SELECT key, outcome, value FROM verdicts WHERE key IN ({marks})", part)  # noqa: S608
            found |= {key: (Outcome(outcome), value) for key, outcome, value in rows}
        return found

    def used(self, judge: Digest, now: datetime) -> int:
        """Return the tokens that a judge has used for the line in the last 24 hours."""
        query = "SELECT COALESCE(SUM(tokens), 0) FROM tokens WHERE judge = ? AND line = ? AND at > ?"
        return sum(int(used) for (used,) in self._read(query, (judge, self._line, _time(now - PERIOD))))

    def salt(self) -> str:
        """Return a random text of this installation, by which answers are selected: nobody outside can predict the selection."""
        with self._changing() as database:
            database.execute("INSERT INTO settings VALUES ('salt', ?) ON CONFLICT DO NOTHING", (secrets.token_hex(16),))
            (salt,) = database.execute("SELECT value FROM settings WHERE name = 'salt'").fetchone()
        return str(salt)

    def believe(self, belief: JudgeBelief) -> None:
        """Record the belief in a judge, in place of the former one."""
        statement = "INSERT INTO beliefs VALUES (?, ?, ?) ON CONFLICT (line, judge) DO UPDATE SET belief = excluded.belief"
        with self._changing() as database:
            database.execute(statement, (self._line, belief.judge, stamped(belief)))

    def belief(self, judge: Digest) -> JudgeBelief | None:
        """Return the belief in a judge; None if it was never measured for the line."""
        rows = self._read("SELECT belief FROM beliefs WHERE line = ? AND judge = ?", (self._line, judge))
        return parse(JudgeBelief, rows[0][0]) if rows else None

    def grade(self, grades: Mapping[Digest, float], grader: str, now: datetime) -> None:
        """Record people's grades, by the digest of the answer and its prompt. A later grade replaces an earlier one."""
        rows = [(self._line, answer, grade, grader, _time(now)) for answer, grade in grades.items()]
        with self._changing() as database:
            database.executemany(
                "INSERT INTO grades VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (line, answer) DO UPDATE SET grade = excluded.grade, grader = excluded.grader, at = excluded.at",
                rows,
            )

    def grades(self) -> dict[Digest, float]:
        """Return people's grades of answers, by the digest of the answer and its prompt."""
        return dict(self._read("SELECT answer, grade FROM grades WHERE line = ?", (self._line,)))


class Recorder:
    """Records verdicts, each in a transaction with the tokens that it cost."""

    def __init__(self, store: SqlStore, judge: Digest, line: str) -> None:
        self._store = store
        self._judge = judge
        self._line = line

    def __call__(self, key: Digest, answer: Answer) -> None:
        """Record a verdict. The first one of a key stays."""
        at = _time(datetime.now(UTC))
        with self._store.changing() as database:
            row = (key, answer.outcome.value, answer.value, at)
            database.execute("INSERT INTO verdicts VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", row)
            database.execute("INSERT INTO tokens VALUES (?, ?, ?, ?)", (self._judge, self._line, at, answer.tokens))


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds")
