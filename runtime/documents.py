"""Small documents that must survive the loss of a volume: files in a folder, or rows in the database of the ledger.

On one machine they are files, which its processes share. Where several pods may continue each other's work, they are rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from ratchet.runtime.file_errors import unwritable
from ratchet.runtime.secrets.files import locked, replace_secret
from ratchet.runtime.sql_store import SqlStore, Statements, StoreDatabase, StoreLayout

LAYOUT = StoreLayout(
    "documents",
    ("documents",),
    create=("CREATE TABLE IF NOT EXISTS documents (place TEXT, name TEXT, content BLOB NOT NULL, PRIMARY KEY (place, name))",),
    postgres=(
        # a key that was deleted must not stay in the free space for long
        "ALTER TABLE documents SET (autovacuum_vacuum_threshold = 0, autovacuum_vacuum_scale_factor = 0)",
    ),
)
"""In Postgres, the schema of the line NAME is `ratchet_documents_NAME`."""
_PUT = "INSERT INTO documents VALUES (?, ?, ?) ON CONFLICT (place, name) DO UPDATE SET content = excluded.content"
_LAST = "\U0010ffff"
"""The highest character, which no name has."""
_WITHIN = "FROM documents WHERE place = ? AND name > ? AND name < ? ORDER BY name"


class Documents(Protocol):
    """Documents by name. A name is a relative path, as `jobs/a.json`.

    Methods raise Retryable if the disk or the database cannot be used.
    """

    def read(self, name: str) -> bytes | None:
        """Return a document; None if there is none. Changes nothing."""
        ...

    def within(self, folder: str, ending: str) -> dict[str, bytes]:
        """Return the documents directly in a folder whose names have an ending, by name. The folder is part of the name; "" is the top."""
        ...

    def names(self, folder: str, ending: str) -> list[str]:
        """Return the sorted names of the documents that `within` returns, without reading them."""
        ...

    def change(self, name: str, changed: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Replace a document by `changed` of its content, in one step for all processes, and return the new content.

        None stands for no document.
        """
        ...


class FolderDocuments:
    """Documents as files in a folder, which only its owner can read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str) -> bytes | None:
        """Return the content of the file; None if there is none."""
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unwritable(f"read {self._folder / name}", error) from error

    def within(self, folder: str, ending: str) -> dict[str, bytes]:
        """Return the files in a folder whose names have an ending."""
        return {name: content for name in self.names(folder, ending) if (content := self.read(name)) is not None}

    def names(self, folder: str, ending: str) -> list[str]:
        """Return the names of these files."""
        found = (path for path in (self._folder / folder).glob(f"*{ending}") if not path.name.startswith(".") and path.is_file())
        return sorted(path.relative_to(self._folder).as_posix() for path in found)

    def change(self, name: str, changed: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Replace a file atomically, under its lock, which ends with the process."""
        path = self._folder / name
        with locked(path):
            former = self.read(name)
            content = changed(former)
            if content is None:
                path.unlink(missing_ok=True)
            elif content != former:
                replace_secret(path, content)
        return content


class StoredDocuments:
    """Documents as rows of a store. `place` separates their names from those of other documents of the line."""

    def __init__(self, store: SqlStore, place: str) -> None:
        self._store = store
        self._place = place

    def read(self, name: str) -> bytes | None:
        """Return the content of the row; None if there is none."""
        with self._store.reading() as connection:
            return None if connection is None else self._get(connection, name)

    def within(self, folder: str, ending: str) -> dict[str, bytes]:
        """Return the rows in a folder whose names have an ending."""
        return {name: bytes(content) for name, content in self._select("name, content", folder, ending)}

    def names(self, folder: str, ending: str) -> list[str]:
        """Return the names of these rows."""
        return [row[0] for row in self._select("name", folder, ending)]

    def _select(self, columns: str, folder: str, ending: str) -> list[Any]:
        base = f"{folder}/" if folder else ""
        with self._store.reading() as connection:
            query = f"SELECT {columns} {_WITHIN}"
            found = () if connection is None else connection.execute(query, (self._place, base, base + _LAST)).fetchall()
        return [row for row in found if row[0].endswith(ending) and "/" not in row[0].removeprefix(base)]

    def change(self, name: str, changed: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Replace a row in a transaction, while no other process is in one."""
        with self._store.changing() as connection:
            former = self._get(connection, name)
            content = changed(former)
            if content is None:
                connection.execute("DELETE FROM documents WHERE place = ? AND name = ?", (self._place, name))
            elif content != former:
                connection.execute(_PUT, (self._place, name, content))
        return content

    def _get(self, connection: Statements, name: str) -> bytes | None:
        found = connection.execute("SELECT content FROM documents WHERE place = ? AND name = ?", (self._place, name)).fetchone()
        return bytes(found[0]) if found else None


class MovedDocuments:
    """Documents of `target` that were in `former` before. What `target` does not have is read from `former`; each change moves one."""

    def __init__(self, target: Documents, former: Documents) -> None:
        self._target = target
        self._former = former

    def read(self, name: str) -> bytes | None:
        """Return a document, wherever it is."""
        content = self._target.read(name)
        return self._former.read(name) if content is None else content

    def within(self, folder: str, ending: str) -> dict[str, bytes]:
        """Return the documents of both in a folder whose names have an ending."""
        found = self._former.within(folder, ending) | self._target.within(folder, ending)
        return {name: found[name] for name in sorted(found)}

    def names(self, folder: str, ending: str) -> list[str]:
        """Return the names of these documents."""
        return sorted({*self._former.names(folder, ending), *self._target.names(folder, ending)})

    def change(self, name: str, changed: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Replace a document in `target`. One that is deleted is deleted from both."""
        former = self._former.read(name)
        content = self._target.change(name, lambda known: changed(former if known is None else known))
        if content is None and former is not None:
            self._former.change(name, lambda _: None)
        return content


def open_documents(folder: Path, database: StoreDatabase | None, place: str, layout: StoreLayout = LAYOUT) -> Documents:
    """Return documents of a line: rows of its database, or without one the files in a folder. `place` names the folder in the database."""
    return FolderDocuments(folder) if database is None else StoredDocuments(database.store(layout, None), place)


def copy_documents(source: Documents, target: Documents, names: Iterable[str]) -> None:
    """Copy documents that `target` does not have. Those of `source` stay, and so does what `target` has."""
    for name in names:
        content = source.read(name)
        if content is not None and target.read(name) is None:
            target.change(name, lambda known, content=content: content if known is None else known)  # type: ignore[misc]
