"""Finds and removes the rows of people in the lake of one line.

Rows of erased people are deleted. Traces for which consent was withdrawn keep their metadata, as traces without consent do, and lose their
content. Feedback on such traces that contains a text goes with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import polars as pl

from ratchet.contracts.data.records import CONSENT, ConsentSubject
from ratchet.contracts.ids import digest
from ratchet.materializer.consent import ERASURE, refusing_users, settle
from ratchet.materializer.erasure.marks import Marks, text_mark, text_marks
from ratchet.materializer.labels.scores import pseudonym as sample_person
from ratchet.materializer.lake.deletion import Change
from ratchet.materializer.lake.schemas import arrow_table
from ratchet.materializer.lake.storing.dedup_index import DedupIndex
from ratchet.materializer.lake.tables import TABLES, Lake, Read, TableName, joined
from ratchet.materializer.mirror import forget_key
from ratchet.materializer.quarantine.kept import KeptRecords

_TRACE_KEY = ["source", "id"]
_CONTENT = ("messages", "answer", "reference", "tools")
_READ = ("source", "id", "response_id", "user", "session", "sender", "time", "consent", "consent_time", *_CONTENT)


@dataclass(frozen=True)
class Target:
    """Whose rows are removed. Users and sessions are pseudonyms."""

    users: frozenset[str] = frozenset()
    sessions: frozenset[str] = frozenset()
    withdrawn: bool = False
    """Whether content is removed whose use is refused."""
    before: Mapping[TableName, datetime] = field(default_factory=dict)
    """Table -> time before which its rows are deleted."""

    @property
    def names_people(self) -> bool:
        """Whether the rows of certain people are removed."""
        return bool(self.users or self.sessions)


class LineRows:
    """The rows in a line's lake that a target concerns."""

    def __init__(self, lake: Lake, target: Target) -> None:
        self._lake = lake
        self._target = target

    @cached_property
    def _traces(self) -> pl.DataFrame:
        """All traces with the columns `delete` and `strip`."""
        rows = joined(self._lake.scan("traces", _READ))
        target = self._target
        delete = pl.col("user").is_in(target.users).fill_null(False) | pl.col("session").is_in(target.sessions).fill_null(False)
        if "traces" in target.before:
            delete = delete | (pl.col("time") < target.before["traces"])
        strip = pl.lit(False)
        if target.withdrawn:
            rows = settle(rows, self._lake.scan("consent"))
            strip = pl.col("refused") & pl.any_horizontal(pl.col(name).is_not_null() for name in _CONTENT)
        return rows.with_columns(delete.alias("delete")).with_columns((strip & ~pl.col("delete")).alias("strip"))

    @cached_property
    def _feedback(self) -> pl.DataFrame:
        """All feedback with the column `delete`."""
        rows, target = self._lake.scan("feedback"), self._target
        users = set(target.users)
        if target.withdrawn:
            users |= set(refusing_users(self._lake.scan("consent")))
        linked = _linked(rows, self._traces.filter("delete"))
        quoting = _linked(rows, self._traces.filter("strip")) & rows["text"].is_not_null()
        own = rows["rater"].is_in(sorted(users)).fill_null(False)
        old = rows["time"] < target.before["feedback"] if "feedback" in target.before else pl.repeat(False, len(rows), eager=True)
        return rows.with_columns((linked | quoting | own | old).alias("delete"))

    def _gone(self) -> pl.DataFrame:
        return self._traces.filter(pl.col("delete") | pl.col("strip"))

    def counts(self) -> dict[str, int]:
        """Return what a removal would remove: kind of rows -> number."""
        found = {
            "traces": int(self._traces["delete"].sum()),
            "contents": int(self._traces["strip"].sum()),
            "feedback": int(self._feedback["delete"].sum()),
            "quarantine": int(self._quarantine().concerns(self._lake.scan("quarantine")).sum()),
        }
        return {name: count for name, count in found.items() if count}

    def by_person(self) -> Counter[str]:
        """Return how many rows name each person of the target: pseudonym -> number. People without a row are missing."""
        found = Counter[str]()
        named = {"user": self._target.users, "session": self._target.sessions}
        for rows, columns in (
            (self._traces, {"user": "user", "session": "session"}),
            (self._feedback, {"rater": "user"}),
            (self._lake.scan("quarantine"), {"user": "user"}),
        ):
            for column, subject in columns.items():
                found.update(name for name in rows[column].drop_nulls().to_list() if name in named[subject])
        return found

    def marks(self, salt: str) -> Marks:
        """Return the marks of these rows. `salt` is that of the line, with which samples name people."""
        gone, left = self._gone(), self._traces.filter(~pl.col("delete") & ~pl.col("strip"))
        lost, kept = self._feedback.filter("delete"), self._feedback.filter(~pl.col("delete"))
        texts = {text for name in ("messages", "answer", "reference") for text in gone[name].drop_nulls().to_list()}
        texts |= set(lost["text"].drop_nulls().to_list())
        texts -= {text for name in ("messages", "answer", "reference") for text in left[name].drop_nulls().to_list()}
        texts -= set(kept["text"].drop_nulls().to_list())
        people = {sample_person(user, salt) for user in self._target.users}
        return Marks(
            texts=tuple(sorted({mark for text in texts if text for mark in text_marks(text)})),
            traces=tuple(sorted(text_mark(f"{source}/{identity}") for source, identity in gone.select(_TRACE_KEY).unique().iter_rows())),
            people=tuple(sorted(text_mark(person) for person in people if person)),
        )

    def remove(self, seen: DedupIndex) -> None:
        """Remove the rows. The caller holds the write lock. Feedback goes first, because it is found by its traces."""
        gone, stripped = self._gone(), self._traces.filter("strip")
        lost = self._feedback.filter("delete")
        keys = ["source", "trace_id", "response_id", "rater", "kind", "time", "sender"]
        if not lost.is_empty():
            self._lake.rewrite("feedback", Change(keys, lambda rows: _among(rows, lost.select(keys))))
        if not gone.is_empty():
            seen.catch_up("traces")
            seen.withhold(gone.select("source", "id", "response_id").to_dicts(), self._target.names_people)
            delete = self._traces.filter("delete").select(*_TRACE_KEY, "sender")
            self._lake.rewrite("traces", Change([*_TRACE_KEY, "sender"], lambda rows: _among(rows, delete)))
        if not stripped.is_empty():
            some = stripped.select(*_TRACE_KEY, "sender")
            self._lake.rewrite("traces", Change([*_TRACE_KEY, "sender"], lambda rows: _among(rows, some), _without_content))
            seen.forget("traces")
        self._lake.rewrite("quarantine", self._quarantine())
        if self._target.names_people:
            KeptRecords(self._lake.place).forget_people(self._target.users | self._target.sessions)
            forget_key(self._lake)  # rows of an open rollout name people by hashes with this key

    def _quarantine(self) -> Change:
        """Return the deletion of quarantined records that are old or name one of the users."""
        old, users = self._target.before.get("quarantine"), self._target.users

        def concerns(rows: pl.DataFrame) -> pl.Series:
            hit = rows["ingested"] < old if old is not None else pl.repeat(False, len(rows), eager=True)
            return hit | rows["user"].is_in(sorted(users)).fill_null(False)

        return Change(["user", "ingested", "batch"], concerns)


def _linked(feedback: pl.DataFrame, traces: pl.DataFrame) -> pl.Series:
    """Return for each row of feedback whether it refers to one of the traces."""
    ids = set(traces.select("source", "id").iter_rows())
    responses = set(traces.select("source", "response_id").drop_nulls().iter_rows())
    rows = feedback.select("source", "trace_id", "response_id").iter_rows()
    return pl.Series([(s, t) in ids or (t is None and (s, r) in responses) for s, t, r in rows], dtype=pl.Boolean)


def _among(rows: pl.DataFrame, some: pl.DataFrame) -> pl.Series:
    wanted = set(some.iter_rows())
    return pl.Series([row in wanted for row in rows.select(some.columns).iter_rows()], dtype=pl.Boolean)


def _without_content(rows: pl.DataFrame) -> pl.DataFrame:
    empty = [pl.lit(None, rows.schema[name]).alias(name) for name in (*_CONTENT, "consent_time") if name in rows.columns]
    return rows.with_columns(*empty, pl.lit(False).alias("consent"))


def tombstone(lake: Lake, users: Iterable[str], sessions: Iterable[str], now: datetime) -> int:
    """Store an operator's refusal for each of these pseudonyms that has none, and return their number. The caller holds the write lock.

    From now on, ingest stores nothing of these people, and what is stored is not used.
    """
    read = Read(lake.snapshot("consent"))
    known = lake.erased_people()
    new = [(ConsentSubject.USER, user) for user in sorted(set(users) - known.users)]
    new += [(ConsentSubject.SESSION, session) for session in sorted(set(sessions) - known.sessions)]
    at = int(now.astimezone(UTC).timestamp() * 1_000_000)
    batch = digest([ERASURE, at, *(identity for _, identity in new)])
    common: dict[str, Any] = {
        "source": ERASURE,
        "given": False,
        "time": at,
        "ingested": at,
        "batch": batch,
        "sender": None,
        "operator": True,
    }
    rows = [common | {"subject": subject.value, "id": identity} for subject, identity in new]
    if rows:
        lake.append("consent", arrow_table(rows, CONSENT), batch, read)
    return len(rows)


def purge(lake: Lake) -> tuple[int, int]:
    """Delete the history of all tables, and every file that no snapshot reaches. Return the numbers of files and of bytes.

    The caller is `alone` in the lake. No reader may be at work, because it would miss the files of an older snapshot.
    """
    files = size = 0
    for name in TABLES:
        lake.forget_history(name)
        for file in lake.unreachable(name):
            lake.delete(file)
            files, size = files + 1, size + file.size
    return files, size
