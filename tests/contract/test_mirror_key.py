"""Contract tests for the key of a rollout's mirrored prompts, in the home folder and on a real Postgres server."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from ratchet.flows.ledger.postgres_store import PostgresDatabase
from ratchet.materializer.lake.places.place import LakePlace
from ratchet.materializer.lake.tables import Lake
from ratchet.materializer.mirror import MirrorReader, copy_key, forget_key
from tests.contract.stores import rows


def lake(folder: Path, database: PostgresDatabase | None) -> Lake:
    return Lake(LakePlace(folder, database=database))


def key(lake: Lake, rollout: str) -> bytes:
    return MirrorReader(lake, cast(Any, _Loop()), cast(Any, None), lambda: 0.8)._key(rollout)


class _Loop:
    privacy = type("", (), {"mask": (), "detector": None})()


@pytest.fixture(autouse=True)
def no_placeholders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.materializer.mirror.placeholder_pattern", lambda _: None)


def test_a_rollout_keeps_its_key_until_it_ends(tmp_path: Path, database: PostgresDatabase | None) -> None:
    first = key(lake(tmp_path, database), "rollout/math/1")
    assert key(lake(tmp_path, database), "rollout/math/1") == first
    second = key(lake(tmp_path, database), "rollout/math/2")
    assert second != first
    forget_key(lake(tmp_path, database))
    forget_key(lake(tmp_path, database))
    assert key(lake(tmp_path, database), "rollout/math/2") not in (first, second)


def test_another_pod_has_the_key_and_an_end_reaches_both(tmp_path: Path, postgres_database: PostgresDatabase) -> None:
    one, two = (lake(tmp_path / name, postgres_database) for name in ("one", "two"))
    first = key(one, "rollout/math/1")
    assert key(two, "rollout/math/1") == first
    forget_key(two)
    assert rows(postgres_database, "SELECT * FROM ratchet_mirror_math.documents") == []
    assert key(one, "rollout/math/1") != first


def test_the_key_of_an_earlier_release_moves_to_the_database_once(tmp_path: Path, postgres_database: PostgresDatabase) -> None:
    first = key(lake(tmp_path, None), "rollout/math/1")
    for _ in range(2):
        copy_key(tmp_path, postgres_database)
    assert key(lake(tmp_path, postgres_database), "rollout/math/1") == first
    forget_key(lake(tmp_path, postgres_database))
    copy_key(tmp_path, postgres_database)
    assert key(lake(tmp_path, postgres_database), "rollout/math/1") != first
