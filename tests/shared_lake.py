"""Fixtures for lakes with their files on a local S3 server and their catalog in a real Postgres or behind a real REST catalog."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ratchet.materializer.lake.places.place import LakePlace
from tests.postgres import PostgresServer, postgres_server
from tests.rest_catalog import RestCatalogServer, rest_catalog_server
from tests.s3 import S3, served_by_default


@dataclass(frozen=True)
class SharedPlaces:
    """A catalog and a bucket for the lakes of one installation."""

    server: PostgresServer | RestCatalogServer
    """Server of the catalog."""
    s3: S3
    url: str
    warehouse: str

    def new(self, folder: Path, line: str = "math") -> LakePlace:
        """Return the place of a line's lake, with its locks and caches in a folder."""
        return LakePlace(folder, line, self.url, self.warehouse)

    def objects(self) -> list[str]:
        """Return the keys of all objects in the bucket."""
        pages = self.s3.client.get_paginator("list_objects_v2").paginate(Bucket=self.s3.bucket)
        return [one["Key"] for page in pages for one in page.get("Contents", ())]


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """A running Postgres server of the test file."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def shared_places(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedPlaces]:
    """A new database and a new bucket."""
    database = f"catalog_{secrets.token_hex(4)}"
    postgres.create(database)
    with served_by_default(monkeypatch) as s3:
        yield SharedPlaces(postgres, s3, postgres.url(database), f"s3://{s3.bucket}/lakes")


@pytest.fixture
def rest_places(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedPlaces]:
    """A new REST catalog and a new bucket."""
    with served_by_default(monkeypatch) as s3, rest_catalog_server(tmp_path_factory.mktemp("rest"), s3) as server:
        yield SharedPlaces(server, s3, server.url, f"s3://{s3.bucket}/lakes")
