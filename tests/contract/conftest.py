"""Fixtures that several contract suites use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ratchet.flows.ledger.postgres_store import PostgresDatabase
from tests.contract.stores import change, rows
from tests.postgres import PostgresServer, postgres_server
from tests.serving_site import Site


@pytest.fixture
def site() -> Iterator[Site]:
    """HTTP servers for a router: its backends, and the receiver of its traces."""
    site = Site()
    yield site
    site.close()


@pytest.fixture(scope="session")
def store_server() -> Iterator[PostgresServer]:
    """A running Postgres server. Skips the test if Postgres is not installed."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def postgres_database(store_server: PostgresServer) -> Iterator[PostgresDatabase]:
    """An empty database, for the stores of a line."""
    found = PostgresDatabase(store_server.url(), "math")
    yield found
    for (schema,) in rows(found, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'ratchet%%'"):
        change(found, f'DROP SCHEMA "{schema}" CASCADE')


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> PostgresDatabase | None:
    """None for SQLite files, and an empty database of Postgres."""
    return request.getfixturevalue("postgres_database") if request.param == "postgres" else None
