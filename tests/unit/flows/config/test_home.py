"""Tests of the place of a lake, which the environment names."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.contracts.errors import ConfigError
from ratchet.flows.config import variables
from ratchet.flows.config.home import Home
from ratchet.flows.ledger.postgres_store import PostgresDatabase
from ratchet.materializer.lake.places.place import LakePlace

CATALOG = "postgresql+psycopg://ada:a-secret-word@db/catalog"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_lake_is_in_the_home_folder_by_default(home: Home) -> None:
    assert home.lake("shop") == LakePlace(home.root / "lines" / "shop" / "lake")
    assert not home.lake("shop").is_shared


def test_each_line_has_a_namespace_in_the_catalog_of_the_environment(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variables.WAREHOUSE, "s3://bucket/lakes")
    monkeypatch.setenv(variables.CATALOG_URL, CATALOG)
    place = home.lake("shop")
    assert place == LakePlace(home.root / "lines" / "shop" / "lake", "shop", CATALOG, "s3://bucket/lakes")
    assert place.is_shared
    assert str(place) == "s3://bucket/lakes/shop"
    assert "a-secret-word" not in f"{place!r} {place} {place.remedy}"


def test_stores_are_in_the_database_of_a_ledger_in_postgres(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    assert home.lake("shop").database is None
    monkeypatch.setenv(variables.LEDGER_URL, f"sqlite:///{home.root}/elsewhere.db")
    assert home.lake("shop").database is None
    monkeypatch.setenv(variables.LEDGER_URL, CATALOG)
    assert home.lake("shop").database == PostgresDatabase(CATALOG, "shop")
    assert "a-secret-word" not in repr(home.lake("shop"))


@pytest.mark.parametrize(
    ("warehouse", "catalog", "said"),
    [
        ("s3://bucket/lakes", None, "RATCHET_WAREHOUSE is set, but RATCHET_CATALOG_URL is not; set both"),
        (None, CATALOG, "RATCHET_CATALOG_URL is set, but RATCHET_WAREHOUSE is not; set both"),
        ("/mnt/lakes", CATALOG, r"RATCHET_WAREHOUSE='/mnt/lakes' is not a URL of the form s3://BUCKET/PREFIX"),
        ("s3://bucket/lakes", "mysql://ada:a-secret-word@db/catalog", "RATCHET_CATALOG_URL is neither the SQLAlchemy URL of a Postgres"),
        ("s3://bucket/lakes", "https://catalog.example?token=a-secret-word", "RATCHET_CATALOG_URL has an unknown option"),
    ],
)
def test_a_wrong_place_is_refused(
    home: Home, monkeypatch: pytest.MonkeyPatch, warehouse: str | None, catalog: str | None, said: str
) -> None:
    for name, value in ((variables.WAREHOUSE, warehouse), (variables.CATALOG_URL, catalog)):
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=said) as refused:
        home.lake("shop")
    assert "a-secret-word" not in str(refused.value)


def test_a_local_lake_is_not_left_behind_without_a_word(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home.lake("shop").folder
    folder.mkdir(parents=True)
    (folder / "catalog.sqlite").touch()
    monkeypatch.setenv(variables.WAREHOUSE, "s3://bucket/lakes")
    monkeypatch.setenv(variables.CATALOG_URL, CATALOG)
    with pytest.raises(ConfigError, match="has a local lake, whose records would not be read any more"):
        home.lake("shop")
    monkeypatch.delenv(variables.WAREHOUSE)
    monkeypatch.delenv(variables.CATALOG_URL)
    assert home.lake("shop").folder == folder
