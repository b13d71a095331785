"""Contract tests for what a lost deduplication index keeps of erased traces, in the database of a ledger in Postgres."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ratchet.flows.ledger.postgres_store import PostgresDatabase
from ratchet.materializer.datasets import LakeDatasets
from ratchet.materializer.lake.places.place import LakePlace
from tests.contract.stores import rows
from tests.unit.materializer.conftest import make_datasets, signed
from tests.unit.materializer.lake.test_deletion import SHOP, erase
from tests.unit.materializer.records import T0, batch, evaluation, log, logs, span, spans

pytestmark = pytest.mark.slow


def opened(folder: Path, database: PostgresDatabase | None) -> LakeDatasets:
    return make_datasets(folder, place=LakePlace(folder / "lake", database=database))


def fill(folder: Path, database: PostgresDatabase | None) -> LakeDatasets:
    """Datasets with traces of three users: one that the router has signed, and one without consent."""
    datasets = opened(folder, database)
    told = {"gen_ai__response__id": "r-3"}
    bodies = [
        spans(span(1), span(2, metadata__consent=False), span(3, user__id="user-1", **told)),
        signed(folder, span(4, user__id="user-1")),
    ]
    datasets.ingest(batch(*bodies))
    return datasets


def index(datasets: LakeDatasets) -> dict[str, list[Any]]:
    with closing(sqlite3.connect(datasets.lake.root / "seen.sqlite")) as connection:
        return {name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall()) for name in ("traces", "names")}


def lose_index(datasets: LakeDatasets) -> None:
    for file in datasets.lake.root.glob("seen.sqlite*"):
        file.unlink()


def test_a_lost_index_is_built_again_with_what_erased_traces_have_left(postgres_database: PostgresDatabase, tmp_path: Path) -> None:
    datasets = fill(tmp_path, postgres_database)
    assert rows(postgres_database, "SELECT nspname FROM pg_namespace WHERE nspname = 'ratchet_erased_math'") == []
    erase(datasets, "user-1", "user-2")
    before = index(datasets)
    lose_index(datasets)
    datasets = opened(tmp_path, postgres_database)
    datasets._seen.catch_up("traces")
    assert index(datasets) == before


def test_copies_of_erased_traces_and_corrections_by_others_are_refused_after_the_loss_of_the_index(
    postgres_database: PostgresDatabase, tmp_path: Path
) -> None:
    datasets = fill(tmp_path, postgres_database)
    erase(datasets, "user-1")
    lose_index(datasets)
    datasets = opened(tmp_path, postgres_database)
    said = log(3, evaluation("user_correction", text="by another", user__id="user-9", at=T0 + 99))
    report = datasets.ingest(replace(batch(spans(span(3, gen_ai__response__id="r-3")), logs(said)), sender=SHOP))
    assert (report.traces.kept, report.feedback.kept) == (0, 0)
    assert len(datasets.lake.scan("traces").filter(datasets.lake.scan("traces")["id"].str.ends_with("3"))) == 0


def test_an_index_that_was_restored_from_before_an_erasure_refuses_copies_and_corrections(
    postgres_database: PostgresDatabase, tmp_path: Path
) -> None:
    datasets = fill(tmp_path, postgres_database)
    earlier = {path.name: path.read_bytes() for path in datasets.lake.root.glob("seen.sqlite*")}
    datasets.ingest(batch(spans(span(5, user__id="user-1"))))
    erase(datasets, "user-1")
    lose_index(datasets)
    for name, content in earlier.items():
        (datasets.lake.root / name).write_bytes(content)
    datasets = opened(tmp_path, postgres_database)
    said = log(3, evaluation("user_correction", text="by another", user__id="user-9", at=T0 + 99))
    copies = datasets.ingest(batch(spans(span(5))))
    corrections = datasets.ingest(replace(batch(logs(said)), sender=SHOP))
    assert (copies.traces.kept, corrections.feedback.kept) == (0, 0)


def test_a_file_of_its_own_is_all_that_an_installation_without_postgres_has(tmp_path: Path) -> None:
    datasets = fill(tmp_path, None)
    erase(datasets, "user-1")
    assert {path.name for path in (tmp_path / "lake").glob("*.sqlite")} >= {"catalog.sqlite", "seen.sqlite"}
    assert not list((tmp_path / "lake").glob("erased*"))
