"""What the tests of stores do beside the stores: as an administrator of their database, and in processes that are killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import sqlalchemy as sa

from ratchet.flows.ledger.postgres_store import PostgresDatabase


def rows(database: PostgresDatabase, query: str) -> list[tuple[object, ...]]:
    """Return what an administrator of the database sees."""
    engine = sa.create_engine(database.url)
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.exec_driver_sql(query)]
    engine.dispose()
    return found


def change(database: PostgresDatabase, statement: str) -> None:
    """Do what an administrator of the database does."""
    engine = sa.create_engine(database.url)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def run_and_kill(program: str, *arguments: str | Path) -> None:
    """Run a program until it prints a line, then kill it."""
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
