"""The stores of a line, which are in the home folder, or in the database of the ledger if that is Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ratchet.flows.config.home import Home
from ratchet.runtime.sql_store import StoreLayout


def copy_files(home: Home, line: str) -> None:
    """Copy the content of the line's files to the database, if there is one and it does not have it. Raises Retryable.

    A store does this itself at its first change. It may be long until then, and the home folder may be lost before.
    """
    from ratchet.materializer.erasure.pending import PendingErasure

    database = home.database(line)
    if database is None:
        return
    PendingErasure(home.erasing(line), database).move_file()
    for layout, file in _stores(home, line):
        if file.exists():
            with database.store(layout, file).changing():
                pass


def _stores(home: Home, line: str) -> Iterator[tuple[StoreLayout, Path]]:
    """Yield each store of a line that has a SQLite file without a database, with that file."""
    from ratchet.materializer.quarantine import kept
    from ratchet.materializer.training_sets import prompt_sides
    from ratchet.rewards.judge import records

    folder = home.lake(line).folder
    yield prompt_sides.LAYOUT, folder / prompt_sides.FILE
    yield records.LAYOUT, home.judgements
    yield kept.LAYOUT, folder / kept.FILE
