"""Tests which installations are found near a folder."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from ratchet.contracts.cycle import Append, Row
from ratchet.flows.config.home import Home
from ratchet.flows.config.nearby import Installed, installations_near
from ratchet.flows.ledger.sql import SqlLedger


def install(root: Path, *lines: str) -> Path:
    ledger = SqlLedger(Home(root).ledger_url)
    for line in lines:
        ledger.append([Append(stream=f"line/{line}", after=0, rows=(Row(kind="adopted"),))], None, datetime.now(UTC))
    return root


def test_installations_above_beside_and_below_are_found_nearest_first(tmp_path: Path) -> None:
    here = tmp_path / "a" / "b"
    here.mkdir(parents=True)
    above = install(tmp_path / ".ratchet", "one", "two")
    beside = install(tmp_path / "a" / "home", "three")
    below = install(here / "shop" / ".ratchet", "four")
    found = installations_near(here, Home(here / ".ratchet"))
    assert found == [Installed(above, ("one", "two")), Installed(below, ("four",)), Installed(beside, ("three",))]


def test_the_home_itself_and_homes_without_lines_are_left_out(tmp_path: Path) -> None:
    here = tmp_path / "company" / "shop"
    install(here / "empty" / ".ratchet")
    (here / "other").mkdir()
    (here / "other" / "ledger.db").write_text("another program's file")
    mine = install(here / ".ratchet", "one")
    assert installations_near(here, Home(mine)) == []


def test_looking_writes_nothing(tmp_path: Path) -> None:
    root = install(tmp_path / ".ratchet", "one")
    before = sorted(path.name for path in root.iterdir())
    assert installations_near(tmp_path / "x", Home(tmp_path / "x"))
    assert sorted(path.name for path in root.iterdir()) == before
