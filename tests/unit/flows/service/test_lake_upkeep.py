"""Tests of the upkeep of a lake by the service: when it runs, that it stops when it is told to, and what it says of a failure."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.flows.service import lake_upkeep
from ratchet.flows.service.keeper import UPKEEP_SECONDS, Keeper
from ratchet.flows.service.keepers import Keepers
from ratchet.flows.service.lake_upkeep import LakeTable, keep_lake
from ratchet.materializer.lake.places.place import LakePlace
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.unit.flows.service.test_carry import installation_of
from tests.unit.materializer.conftest import make_datasets
from tests.unit.materializer.lake.test_upkeep import FIRST, LONG_AFTER, fill
from tests.waiting import until


def always() -> bool:
    return True


@pytest.fixture
def said() -> list[str]:
    """What the keeper says."""
    return []


@pytest.fixture
def keeper(tmp_path: Path, said: list[str]) -> Keeper:
    """The keeper of a simulated line whose lake is below `tmp_path`."""
    sim = SimulatedLine(Scenario(seed=1))
    installation = installation_of(sim)
    installation.home = SimpleNamespace(spool=lambda line: tmp_path / "spool" / line, lake=lambda _line: LakePlace(tmp_path / "lake"))
    return Keeper(installation, tmp_path / "sim.toml", said.append)


@pytest.mark.slow
def test_a_lake_is_kept_step_by_step_and_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    assert keep_lake(tmp_path / "none", LONG_AFTER) == []
    datasets = make_datasets(tmp_path)
    fill(datasets, 1, 9)
    before = datasets.lake.snapshot("traces")
    would = {table.table: table for table in keep_lake(tmp_path / "lake", LONG_AFTER, dry_run=True)}
    assert (would["traces"].merged, would["traces"].files, would["consent"].is_changed) == (8, (8, 8), False)
    assert datasets.lake.snapshot("traces") == before
    first = {table.table: table for table in keep_lake(tmp_path / "lake", LONG_AFTER, goes_on=lambda: False)}
    assert (first["traces"].merged, first["traces"].files, first["feedback"].merged) == (8, (8, 2), 0)
    second = {table.table: table for table in keep_lake(tmp_path / "lake", LONG_AFTER)}
    assert (second["feedback"].files, second["feedback"].bytes[1] < second["feedback"].bytes[0]) == ((8, 1), True)
    assert not any(table.is_changed for table in keep_lake(tmp_path / "lake", LONG_AFTER))


@pytest.mark.slow
def test_the_service_keeps_a_lake_every_five_minutes_if_it_has_changed_or_a_day_has_passed(
    tmp_path: Path, keeper: Keeper, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = make_datasets(tmp_path)
    fill(datasets, 1, 5)
    clock = SimpleNamespace(now=lambda: SimpleNamespace(date=lambda: FIRST + timedelta(days=40)))
    monkeypatch.setattr(keeper, "_valid", SimpleNamespace(clock=clock))
    now = 1000.0
    assert not keeper.keeps_lake(now), "not at the start of the service"
    for _ in range(2):  # the second time finds nothing to do
        now += UPKEEP_SECONDS
        assert keeper.keeps_lake(now)
        keeper.keep_lake(always)
        assert not keeper.keeps_lake(now + 1)
    assert len(list(datasets.lake.table("traces").scan().plan_files())) == 2
    now += UPKEEP_SECONDS
    assert not keeper.keeps_lake(now), "nothing has changed"
    fill(datasets, 5, 6)
    now += UPKEEP_SECONDS
    assert keeper.keeps_lake(now)
    keeper.keep_lake(always)
    clock.now = lambda: SimpleNamespace(date=lambda: FIRST + timedelta(days=41))
    now += UPKEEP_SECONDS
    assert keeper.keeps_lake(now)
    assert said == []


def test_a_failed_upkeep_is_said_once_and_tried_again(keeper: Keeper, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_given: object) -> list[LakeTable]:
        raise Retryable("the disk is full")

    monkeypatch.setattr(lake_upkeep, "keep_lake", fails)
    keeper.keep_lake(always)
    keeper.keep_lake(always)
    assert said == ["upkeep of the lake: the disk is full"]
    keeper.keeps_lake(0.0)
    assert keeper.keeps_lake(2 * UPKEEP_SECONDS)
    monkeypatch.setattr(lake_upkeep, "keep_lake", lambda *_given: [])
    keeper.keep_lake(always)
    monkeypatch.setattr(lake_upkeep, "keep_lake", fails)
    keeper.keep_lake(always)
    assert len(said) == 2


def test_upkeep_runs_beside_the_work_and_ends_when_the_service_stops(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def steps(_folder: object, _today: object, goes_on: object) -> list[LakeTable]:
        assert callable(goes_on)
        while goes_on():
            asked.append(True)
        asked.append(False)
        return []

    monkeypatch.setattr(lake_upkeep, "keep_lake", steps)
    monkeypatch.setattr(keeper, "keeps_lake", lambda _now: not asked)
    monkeypatch.setattr(keeper, "work", lambda *_given: None)
    service = Keepers(keeper._installation, [keeper], lambda _news: None, lambda _text: None, lambda _trouble: None)
    service.start()
    until(lambda: bool(asked), 20)
    assert service.stop(20)
    assert asked[-1] is False
