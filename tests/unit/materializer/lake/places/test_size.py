"""Tests that the size of a lake is read without the libraries that read its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.contracts.data.datasets import Cursor
from ratchet.contracts.errors import Retryable
from ratchet.materializer.lake.places.place import CATALOG
from ratchet.materializer.lake.places.size import lake_cursor, table_size
from ratchet.materializer.lake.tables import Lake


def test_a_lake_that_does_not_exist_is_empty_and_stays_away(tmp_path: Path) -> None:
    assert lake_cursor(tmp_path / "lake") == Cursor(traces=0, feedback=0, newest=None, consent=0)
    assert list(tmp_path.iterdir()) == []


def test_a_table_without_a_commit_is_empty(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    assert lake.snapshot("traces") is None, "this creates the table"
    assert table_size(lake.root, "traces") == (0, None)


def test_a_damaged_catalog_is_an_error_to_retry(tmp_path: Path) -> None:
    (tmp_path / CATALOG).write_bytes(b"no database, " * 100)
    with pytest.raises(Retryable, match="cannot be read"):
        lake_cursor(tmp_path)
