"""Tests of erasures on a cluster whose service loses its volume: ledger and catalog are in Postgres, lake and artifacts in a bucket."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from ratchet.flows.cli.main import cli
from ratchet.flows.composition.installation import Installation
from ratchet.flows.config import variables
from ratchet.flows.config.home import Home
from ratchet.flows.engine.ingest import ingest
from ratchet.flows.service.erase import erase_people, pseudonyms_of
from ratchet.flows.service.garbage import collect_line
from ratchet.runtime.bucket_artifacts import ARTIFACTS_URL
from tests.markers import LINE, fill, install, marks_in, opened, promoted, user
from tests.shared_lake import SharedPlaces, postgres, shared_places  # noqa: F401  fixtures
from tests.unit.flows.service.test_erase import Killed, erase, traces

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def places(shared_places: SharedPlaces, monkeypatch: pytest.MonkeyPatch) -> SharedPlaces:  # noqa: F811
    shared_places.server.create(ledger := f"ledger_{shared_places.url.rpartition('catalog_')[2].partition('?')[0]}")  # type: ignore[union-attr]
    monkeypatch.setenv(variables.LEDGER_URL, shared_places.server.url(ledger))  # type: ignore[union-attr,operator]
    monkeypatch.setenv(variables.WAREHOUSE, shared_places.warehouse)
    monkeypatch.setenv(variables.CATALOG_URL, shared_places.url)
    monkeypatch.setenv(ARTIFACTS_URL, f"s3://{shared_places.s3.bucket}/artifacts")
    return shared_places


def lose(home: Home) -> Installation:
    """Lose the volume. The keys of pseudonyms come back from their Secret."""
    keys = home.user_keys.read_bytes()
    shutil.rmtree(home.root)
    home.root.mkdir(mode=0o700)
    home.user_keys.write_bytes(keys)
    return Installation(home)


def stored(places: SharedPlaces, folder: Path) -> set[int]:
    """Return the people whose marker is in an object of the bucket."""
    for name in places.objects():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        places.s3.client.download_file(places.s3.bucket, name, str(folder / name))
    return set(marks_in(folder))


def shown(*arguments: str) -> str:
    return CliRunner().invoke(cli, ["erase", *arguments], catch_exceptions=False).stdout


def test_after_a_lost_volume_an_erased_person_is_refused_and_the_receipt_is_shown(
    places: SharedPlaces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation, context = install(tmp_path, 6)
    promoted(context, installation.home)
    monkeypatch.setenv(variables.HOME, str(installation.home.root))
    receipt = erase(installation, 0, 1)
    assert stored(places, tmp_path / "before") == set(range(2, 6))

    installation = lose(installation.home)
    assert erase(installation, 0, 1) == receipt, "a repetition finds nothing, and the receipt of the first run"
    installation = lose(installation.home)
    fill(installation.home, range(2))  # the application sends everything again
    report = ingest(opened(installation, tmp_path))
    assert (report.traces.kept, report.traces.reasons["erased"]) == (0, 4)
    assert len(traces(installation)) == 8
    assert stored(places, tmp_path / "after") == set(range(2, 6))
    assert marks_in(installation.home.root) == {}
    fill(installation.home, range(2), name=lambda n: f"another {n}")  # copies that do not name the person
    report = ingest(opened(installation, tmp_path))
    assert (report.traces.kept, report.traces.duplicate, len(traces(installation))) == (0, 4, 8)

    before = sorted(installation.home.root.rglob("*"))
    assert json.loads(shown("--receipts", "--json")) == {"receipts": [receipt.model_dump(mode="json")]}
    assert f"Receipt {receipt.id[:16]}" in shown("--receipts")
    assert sorted(installation.home.root.rglob("*")) == before
    again = json.loads(shown("--user", user(0), "--user", user(1), "--json"))  # removes the unreadable records that were sent again
    assert (again["id"], again["lines"][0]["rows"]["traces"]) == (receipt.id, 4)


@pytest.mark.parametrize(
    "step", ["artifact", *(pytest.param(step, marks=pytest.mark.soak) for step in ("evidence", "recall", "forget the marks"))]
)
def test_an_erasure_that_lost_its_volume_is_completed_from_the_marks(places: SharedPlaces, tmp_path: Path, step: str) -> None:
    """Without the marks, nothing would find the rows of artifacts whose texts the lake does not have any more."""
    installation, context = install(tmp_path, 6)
    version = promoted(context, installation.home)
    people = pseudonyms_of(installation, [user(0)], ())

    def die(name: str) -> None:
        if name == step:
            raise Killed

    with pytest.raises(Killed):
        erase_people(installation, people, die)
    installation = lose(installation.home)
    context = opened(installation, tmp_path)
    assert collect_line(installation, context).rows == {}, "the garbage collection leaves it to its repetition"
    receipt = erase_people(installation, people)
    assert receipt.finished is not None
    [line] = receipt.lines
    assert (line.rows["traces"], [one.tag for one in line.recalled]) == (2, [version.tag])
    assert line.rows["artifacts"] > 0
    assert stored(places, tmp_path / "after") == set(marks_in(installation.home.root)) == set(range(1, 6))
    assert erase_people(installation, people) == receipt
    assert collect_line(installation, opened(installation, tmp_path)).line == LINE
