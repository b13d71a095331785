"""The installation's records of judges: verdicts by content, tokens, people's grades and beliefs, in one SQLite file.

A verdict is recorded when it arrives, and never changes: labels and the gate read it from here, so that an answer is paid for once and a
repeated step gets the same scores. The records contain no text of a user, only digests.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ratchet.contracts.data.beliefs import JudgeBelief
from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import Digest
from ratchet.contracts.schema import parse, stamped
from ratchet.rewards.judge.client import Answer
from ratchet.rewards.judge.verdict import Outcome

PERIOD = timedelta(hours=24)
"""Time to which a budget of tokens applies."""

_TABLES = """
CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, outcome TEXT NOT NULL, value REAL, at TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tokens (judge TEXT NOT NULL, line TEXT NOT NULL, at TEXT NOT NULL, tokens INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS tokens_by_time ON tokens (judge, line, at);
CREATE TABLE IF NOT EXISTS grades
  (line TEXT NOT NULL, answer TEXT NOT NULL, grade REAL NOT NULL, grader TEXT NOT NULL, at TEXT NOT NULL, PRIMARY KEY (line, answer));
CREATE TABLE IF NOT EXISTS beliefs (line TEXT NOT NULL, judge TEXT NOT NULL, belief BLOB NOT NULL, PRIMARY KEY (line, judge));
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_CHUNK = 500
"""Keys per query. SQLite limits the number of parameters."""


class JudgeRecords:
    """The records of one line in the file `path`, which is created at first use. Any number of processes may use it."""

    def __init__(self, path: Path, line: str) -> None:
        self._path = path
        self._line = line

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            with closing(sqlite3.connect(self._path, timeout=60.0, isolation_level=None, check_same_thread=False)) as database:
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = NORMAL")
                database.executescript(_TABLES)
                yield database
        except (sqlite3.Error, OSError) as error:
            raise Retryable(f"the records of judges in {self._path} are not usable ({error}); free space or fix permissions") from error

    @contextmanager
    def recording(self, judge: Digest) -> Iterator[Recorder]:
        """Yield a function that records the verdict of a key; each one is stored when the call returns."""
        with self._open() as database:
            yield Recorder(database, judge, self._line)

    def verdicts(self, keys: Sequence[Digest]) -> dict[Digest, tuple[Outcome, float | None]]:
        """Return the recorded verdicts of these keys."""
        found: dict[Digest, tuple[Outcome, float | None]] = {}
        with self._open() as database:
            for start in range(0, len(keys), _CHUNK):
                part = keys[start : start + _CHUNK]
                marks = ",".join("?" * len(part))
                rows = database.execute(f"SELECT key, outcome, value FROM verdicts WHERE key IN ({marks})", part)  # noqa: S608
                found |= {key: (Outcome(outcome), value) for key, outcome, value in rows}
        return found

    def used(self, judge: Digest, now: datetime) -> int:
        """Return the tokens that a judge has used for the line in the last 24 hours."""
        with self._open() as database:
            since = _time(now - PERIOD)
            query = "SELECT COALESCE(SUM(tokens), 0) FROM tokens WHERE judge = ? AND line = ? AND at > ?"
            (used,) = database.execute(query, (judge, self._line, since)).fetchone()
        return int(used)

    def salt(self) -> str:
        """Return a random text of this installation, by which answers are selected: nobody outside can predict the selection."""
        with self._open() as database:
            database.execute("INSERT OR IGNORE INTO settings VALUES ('salt', ?)", (secrets.token_hex(16),))
            (salt,) = database.execute("SELECT value FROM settings WHERE name = 'salt'").fetchone()
        return str(salt)

    def believe(self, belief: JudgeBelief) -> None:
        """Record the belief in a judge, in place of the former one."""
        with self._open() as database:
            database.execute("INSERT OR REPLACE INTO beliefs VALUES (?, ?, ?)", (self._line, belief.judge, stamped(belief)))

    def belief(self, judge: Digest) -> JudgeBelief | None:
        """Return the belief in a judge; None if it was never measured for the line."""
        with self._open() as database:
            row = database.execute("SELECT belief FROM beliefs WHERE line = ? AND judge = ?", (self._line, judge)).fetchone()
        return None if row is None else parse(JudgeBelief, row[0])

    def grade(self, grades: Mapping[Digest, float], grader: str, now: datetime) -> None:
        """Record people's grades, by the digest of the answer and its prompt. A later grade replaces an earlier one."""
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            rows = [(self._line, answer, grade, grader, _time(now)) for answer, grade in grades.items()]
            database.executemany("INSERT OR REPLACE INTO grades VALUES (?, ?, ?, ?, ?)", rows)
            database.execute("COMMIT")

    def grades(self) -> dict[Digest, float]:
        """Return people's grades of answers, by the digest of the answer and its prompt."""
        with self._open() as database:
            return dict(database.execute("SELECT answer, grade FROM grades WHERE line = ?", (self._line,)))


class Recorder:
    """Records verdicts, each in a transaction with the tokens that it cost."""

    def __init__(self, database: sqlite3.Connection, judge: Digest, line: str) -> None:
        self._database = database
        self._judge = judge
        self._line = line

    def __call__(self, key: Digest, answer: Answer) -> None:
        """Record a verdict. The first one of a key stays."""
        at = _time(datetime.now(UTC))
        self._database.execute("BEGIN IMMEDIATE")
        self._database.execute("INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?, ?)", (key, answer.outcome.value, answer.value, at))
        self._database.execute("INSERT INTO tokens VALUES (?, ?, ?, ?)", (self._judge, self._line, at, answer.tokens))
        self._database.execute("COMMIT")


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds")
