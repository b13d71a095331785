"""Tests of the copy of SQLite files to the database when the service starts."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.contracts.ids import digest
from ratchet.flows.composition.stores import copy_files
from ratchet.flows.config import variables
from ratchet.flows.config.home import Home
from ratchet.materializer.quarantine.kept import FILE, KeptRecords
from ratchet.materializer.training_sets.prompt_sides import PromptSides
from ratchet.rewards.judge.records import JudgeRecords
from tests.postgres import PostgresServer
from tests.shared_lake import postgres  # noqa: F401  fixture

TEXTS = {digest(text.encode()): text for text in ("one", "two", "three")}


def state(home: Home, line: str) -> tuple[object, ...]:
    place = home.lake(line)
    return PromptSides(place).clusters(), JudgeRecords(home.judgements, line, home.database(line)).grades(), KeptRecords(place).get("a")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """An installation that has worked with SQLite."""
    found = Home(tmp_path / "home")
    PromptSides(found.lake("math").folder).assign(TEXTS, lambda root: root < "8")
    JudgeRecords(found.judgements, "math").grade(dict.fromkeys(TEXTS, 0.5), "Ada", datetime.now(UTC))
    return found


def test_nothing_is_copied_with_a_ledger_in_sqlite(home: Home) -> None:
    before = sorted(home.root.rglob("*"))
    copy_files(home, "math")
    assert sorted(home.root.rglob("*")) == before


def test_after_the_start_with_postgres_the_volume_can_be_lost(
    home: Home,
    postgres: PostgresServer,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = state(home, "math")
    postgres.create("upgraded")
    monkeypatch.setenv(variables.LEDGER_URL, postgres.url("upgraded"))
    copy_files(home, "math")
    copy_files(home, "other")
    assert not (home.lake("math").folder / FILE).exists(), "it has texts"
    shutil.rmtree(home.root)
    copy_files(home, "math")
    assert state(home, "math") == before
    assert state(home, "other") == ({}, {}, None)


def test_a_database_that_is_away_is_tried_again(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variables.LEDGER_URL, f"postgresql+psycopg://ratchet@/db?host={home.root}")
    with pytest.raises(Retryable, match="RATCHET_LEDGER_URL"):
        copy_files(home, "math")
