"""The state of an erasure in a line that has begun and is not complete. It is stored before each step and deleted at the end.

It is a file in the home folder, or in the database of the ledger if that is Postgres. There it survives the loss of the volume: rows of the
lake may be deleted already, and only the marks find what stems from them in the artifacts.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from ratchet.contracts.ids import Digest
from ratchet.contracts.model import Frozen
from ratchet.contracts.schema import parse, stamped
from ratchet.materializer.erasure.marks import Marks
from ratchet.runtime.artifacts import write_atomic
from ratchet.runtime.sql_store import SqlStore, Statements, StoreDatabase, StoreLayout

LAYOUT = StoreLayout(
    "erasing",
    ("parts",),
    create=("CREATE TABLE IF NOT EXISTS parts (number INTEGER PRIMARY KEY, content BLOB NOT NULL)",),
    postgres=(
        # marks of short texts can be guessed: what was deleted must not stay in the free space for long
        "ALTER TABLE parts SET (autovacuum_vacuum_threshold = 0, autovacuum_vacuum_scale_factor = 0, "
        "toast.autovacuum_vacuum_threshold = 0, toast.autovacuum_vacuum_scale_factor = 0)",
    ),
)
"""In Postgres, the schema of the line NAME is `ratchet_erasing_NAME`. The state is one JSON document, in parts."""
_PART = 4 << 20
"""Bytes of a part. Postgres limits the size of a value, and millions of texts have hundreds of megabytes of marks."""


class Pending(Frozen):
    """An erasure that has begun in a line and is not complete."""

    run: str = ""
    """Identity of the run. It stays the same when the run is continued after an interruption."""
    of_people: bool = False
    """Whether it erases people, whose versions are to be recalled. A garbage collection must not complete it."""
    marks: Marks = Marks()
    rows: dict[str, int] = Field(default_factory=dict)
    """Table -> number of rows to remove."""
    artifacts: dict[Digest, int] = Field(default_factory=dict)
    """Artifact -> number of rows to remove from it."""
    plans: tuple[Digest, ...] = ()
    """Plans whose run folders contain such rows."""
    cycle: str | None = None

    def __or__(self, other: Pending) -> Pending:
        """Return what both have to remove. Joining the same state twice changes nothing."""
        return Pending(
            run=self.run or other.run,
            of_people=self.of_people or other.of_people,
            marks=self.marks | other.marks,
            rows={name: max(self.rows.get(name, 0), other.rows.get(name, 0)) for name in sorted(self.rows.keys() | other.rows.keys())},
            artifacts={**other.artifacts, **self.artifacts},
            plans=tuple(sorted({*self.plans, *other.plans})),
            cycle=self.cycle or other.cycle,
        )


class PendingErasure:
    """Where a line stores the state of its erasure: in a file, or in a database.

    With a database, a file is of a time before it. It is read until its content is in the database, and is deleted then. Methods raise
    Retryable if the database cannot be reached.
    """

    def __init__(self, file: Path, database: StoreDatabase | None) -> None:
        self._file = file
        self._store: SqlStore | None = None if database is None else database.store(LAYOUT, None)

    def read(self) -> Pending:
        """Return the stored state; an empty one if no erasure has begun. Changes nothing."""
        if self._store is None:
            return self._of_file()
        former = self._of_file()  # first: it may be moved meanwhile, and is then found in the database
        with self._store.reading() as connection:
            return former if connection is None else _stored(connection) | former

    def write(self, pending: Pending) -> None:
        """Store the state in place of the former one, which the caller has read."""
        if self._store is None:
            write_atomic(self._file, stamped(pending))
            return
        data = stamped(pending)
        with self._store.changing() as connection:
            _replace(connection, data)
        self._file.unlink(missing_ok=True)

    def forget(self, completed: Pending) -> None:
        """Delete the state if it is still `completed`. Otherwise another erasure has begun since, which deletes it at its own end."""
        if self._store is None:
            if self._of_file() == completed:
                self._file.unlink(missing_ok=True)
            return
        if completed == Pending() or self.read() != completed:
            return
        with self._store.changing() as connection:
            if _stored(connection) | self._of_file() == completed:
                self._file.unlink(missing_ok=True)  # in the transaction, so that `move_file` does not store it afterwards
                connection.execute("DELETE FROM parts")

    def move_file(self) -> None:
        """Move the content of a file to the database, if there are both. An interruption at any point loses nothing."""
        if self._store is None or not self._file.exists():
            return
        former = self._of_file()
        with self._store.changing() as connection:
            if not self._file.exists():  # the erasure was completed meanwhile
                return
            _replace(connection, stamped(_stored(connection) | former))
        self._file.unlink(missing_ok=True)

    def _of_file(self) -> Pending:
        try:
            return parse(Pending, self._file.read_bytes())
        except FileNotFoundError:
            return Pending()


def _stored(connection: Statements) -> Pending:
    parts = [bytes(content) for (content,) in connection.execute("SELECT content FROM parts ORDER BY number").fetchall()]
    return parse(Pending, b"".join(parts)) if parts else Pending()


def _replace(connection: Statements, data: bytes) -> None:
    connection.execute("DELETE FROM parts")
    for number, begin in enumerate(range(0, len(data), _PART)):
        connection.execute("INSERT INTO parts VALUES (?, ?)", (number, data[begin : begin + _PART]))
