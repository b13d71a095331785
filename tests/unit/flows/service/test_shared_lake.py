"""Tests of an installation whose lakes are in Postgres and a bucket: ingest, erasure, upkeep and garbage collection."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.flows.cli.setup.doctor import _lake
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config import variables
from ratchet.flows.config.home import Home
from ratchet.flows.engine.ingest import ingest
from ratchet.flows.service import garbage
from ratchet.flows.service.erase import lines_of
from ratchet.flows.service.garbage import collect_line
from ratchet.materializer.lake.tables import Lake
from tests.markers import LINE, fill, install, marks_in, opened
from tests.shared_lake import SharedPlaces, postgres, shared_places  # noqa: F401  fixtures
from tests.unit.flows.service.test_erase import erase, traces

pytestmark = pytest.mark.slow


@pytest.fixture
def places(shared_places: SharedPlaces, monkeypatch: pytest.MonkeyPatch) -> SharedPlaces:  # noqa: F811
    monkeypatch.setenv(variables.WAREHOUSE, shared_places.warehouse)
    monkeypatch.setenv(variables.CATALOG_URL, shared_places.url)
    return shared_places


def stored(places: SharedPlaces, folder: Path) -> set[int]:
    """Return the people whose marker is in an object of the bucket."""
    for name in places.objects():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        places.s3.client.download_file(places.s3.bucket, name, str(folder / name))
    return set(marks_in(folder))


def test_erased_people_are_in_no_object_and_the_line_goes_on(places: SharedPlaces, tmp_path: Path) -> None:
    installation, context = install(tmp_path, 6)
    home = installation.home
    assert context.datasets.cursor().traces == 12
    assert _lake(home, context) == [("ok", "lake", "12 traces")]
    assert stored(places, tmp_path / "before") == set(range(6))
    receipt = erase(installation, 0, 1)
    assert receipt.lines[0].rows["traces"] == 4
    assert receipt.lines[0].files["lake"] > 0
    assert stored(places, tmp_path / "after") == set(marks_in(home.root)) == set(range(2, 6))
    fill(home, range(2))
    assert ingest(context).traces.reasons["erased"] == 4
    assert len(traces(installation)) == 8


def test_a_new_volume_finds_the_lake_and_its_garbage(places: SharedPlaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installation, context = install(tmp_path, 4)
    moved = Installation(Home(tmp_path / "another"))
    assert lines_of(moved) == []
    assert opened(moved, tmp_path).datasets.cursor() == context.datasets.cursor()
    stray = f"lakes/{LINE}/feedback/data/half.parquet"
    places.s3.client.put_object(Bucket=places.s3.bucket, Key=stray, Body=b"half")
    monkeypatch.setattr(garbage, "READER_SECONDS", 0.0)
    context = opened(installation, tmp_path)
    assert collect_line(installation, context, dry_run=True).files["lake"] >= 1
    assert stray in places.objects()
    assert collect_line(installation, context).files["lake"] >= 1
    assert stray not in places.objects()
    assert len(Lake(installation.home.lake(LINE)).scan("traces")) == 8
