"""Tests the flow handlers on a simulated line with fake ports: the next flow and the reported text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contracts.cycle import Answer, Identity, State
from contracts.errors import Rejected
from flows.core.views import fold_approval
from flows.engine.line import answer
from flows.prefect import duties
from tests.simulation.town import Scenario, Town

LOOP = Path("sim.toml")


def _shop(town: Town) -> Any:
    """Return an installation with one simulated line."""
    return SimpleNamespace(house=lambda _path: town.house, house_of=lambda _cycle: town.house)


def _yes(town: Town, kind: str, actor: str = "ada") -> str:
    given = Answer(approve=True, actor=actor, identity=Identity.CLAIMED, via="prefect")
    view = fold_approval(town.ledger.read(f"approval/sim/0001/{kind}"))
    answered = view.expires - timedelta(seconds=400)
    return str(answer(town.ledger, view, given, answered))


def _opened(people: str = "yes") -> tuple[Town, Any]:
    town = Town(Scenario(seed=1, people=people))
    town.house.datasets.traces = 2000
    return town, _shop(town)


def test_nothing_is_due_without_traces() -> None:
    town = Town(Scenario(seed=1))
    standing = duties.work_on(_shop(town), LOOP, scheduled=False, patience=0)
    assert standing.said.startswith("no cycle opened: 0 new traces of 1000")
    assert standing.next is None


def test_scheduled_run_needs_only_one_new_trace() -> None:
    town = Town(Scenario(seed=1))
    town.house.datasets.traces = 1
    assert duties.work_on(_shop(town), LOOP, scheduled=False, patience=0).cycle is None
    assert duties.work_on(_shop(town), LOOP, scheduled=True, patience=0).cycle == "cycle/sim/0001"


def test_work_stops_at_an_approval_and_continues_after_the_answer() -> None:
    town, shop = _opened()
    standing = duties.work_on(shop, LOOP, scheduled=False, patience=100)
    assert "waiting: approval of training" in standing.said
    assert standing.next is None
    assert duties.mend(shop, LOOP)[1].next is None
    _yes(town, "training")
    assert duties.mend(shop, LOOP)[1].next == "retrain"
    standing = duties.work_on(shop, LOOP, scheduled=False, patience=1000)
    assert "waiting: approval of rollout" in standing.said


def test_rolling_cycle_is_continued_by_the_rollout_flow() -> None:
    town, shop = _opened(people="auto")
    standing = duties.work_on(shop, LOOP, scheduled=False, patience=1000)
    assert standing.next == "rollout"
    assert duties.mend(shop, LOOP)[1].next == "rollout"
    standing = duties.roll_on(shop, LOOP, seconds=10_000)
    assert town.view().state is State.PROMOTED
    assert standing.next is None
    assert duties.roll_on(shop, LOOP, seconds=1).said == "no open rollout"


def test_second_answer_is_not_accepted() -> None:
    town, shop = _opened()
    duties.work_on(shop, LOOP, scheduled=False, patience=0)
    _yes(town, "training", "bob")
    late = Answer(approve=False, actor="eve", identity=Identity.CLAIMED, via="prefect")
    assert duties.record_answer(town.ledger, "approval/sim/0001/training", late) == "answer not accepted: bob approved it via prefect"


def test_request_is_closed_when_it_expires() -> None:
    town, shop = _opened()
    duties.work_on(shop, LOOP, scheduled=False, patience=0)
    view = duties.request_view(town.ledger, "approval/sim/0001/training")
    assert duties.settled(view, view.expires - timedelta(seconds=1)) is None
    assert "closed without an answer" in str(duties.settled(view, view.expires))
    with pytest.raises(Rejected, match="no approval/sim/0009/training"):
        duties.request_view(town.ledger, "approval/sim/0009/training")


def test_expiry_uses_the_current_time_by_default() -> None:
    town, shop = _opened()
    duties.work_on(shop, LOOP, scheduled=False, patience=0)
    view = duties.request_view(town.ledger, "approval/sim/0001/training")
    assert (duties.settled(view) is None) == (datetime.now(UTC) < view.expires)
