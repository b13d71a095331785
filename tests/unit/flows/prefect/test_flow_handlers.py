"""Tests the flow handlers on a simulated line with fake ports: the next flow and the reported text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contracts.cycle import Answer, Identity, State
from contracts.errors import Rejected
from flows.core.folds import fold_approval
from flows.engine.line import answer
from flows.prefect import flow_handlers
from tests.simulation.simulated_line import Scenario, SimulatedLine

LOOP = Path("sim.toml")


def _shop(sim: SimulatedLine) -> Any:
    """Return an installation with one simulated line."""
    return SimpleNamespace(context=lambda _path: sim.context, house_of=lambda _cycle: sim.context)


def _yes(sim: SimulatedLine, kind: str, actor: str = "ada") -> str:
    given = Answer(approve=True, actor=actor, identity=Identity.CLAIMED, via="prefect")
    view = fold_approval(sim.ledger.read(f"approval/sim/0001/{kind}"))
    answered = view.expires - timedelta(seconds=400)
    return str(answer(sim.ledger, view, given, answered))


def _opened(people: str = "yes") -> tuple[SimulatedLine, Any]:
    sim = SimulatedLine(Scenario(seed=1, people=people))
    sim.context.datasets.traces = 2000
    return sim, _shop(sim)


def test_nothing_is_due_without_traces() -> None:
    sim = SimulatedLine(Scenario(seed=1))
    standing = flow_handlers.work_on(_shop(sim), LOOP, scheduled=False, patience=0)
    assert standing.said.startswith("no cycle opened: 0 new traces of 1000")
    assert standing.next is None


def test_scheduled_run_needs_only_one_new_trace() -> None:
    sim = SimulatedLine(Scenario(seed=1))
    sim.context.datasets.traces = 1
    assert flow_handlers.work_on(_shop(sim), LOOP, scheduled=False, patience=0).cycle is None
    assert flow_handlers.work_on(_shop(sim), LOOP, scheduled=True, patience=0).cycle == "cycle/sim/0001"


def test_work_stops_at_an_approval_and_continues_after_the_answer() -> None:
    sim, shop = _opened()
    standing = flow_handlers.work_on(shop, LOOP, scheduled=False, patience=100)
    assert "waiting: approval of training" in standing.said
    assert standing.next is None
    assert flow_handlers.mend(shop, LOOP)[1].next is None
    _yes(sim, "training")
    assert flow_handlers.mend(shop, LOOP)[1].next == "retrain"
    standing = flow_handlers.work_on(shop, LOOP, scheduled=False, patience=1000)
    assert "waiting: approval of rollout" in standing.said


def test_rolling_cycle_is_continued_by_the_rollout_flow() -> None:
    sim, shop = _opened(people="auto")
    standing = flow_handlers.work_on(shop, LOOP, scheduled=False, patience=1000)
    assert standing.next == "rollout"
    assert flow_handlers.mend(shop, LOOP)[1].next == "rollout"
    standing = flow_handlers.roll_on(shop, LOOP, seconds=10_000)
    assert sim.view().state is State.PROMOTED
    assert standing.next is None
    assert flow_handlers.roll_on(shop, LOOP, seconds=1).said == "no open rollout"


def test_second_answer_is_not_accepted() -> None:
    sim, shop = _opened()
    flow_handlers.work_on(shop, LOOP, scheduled=False, patience=0)
    _yes(sim, "training", "bob")
    late = Answer(approve=False, actor="eve", identity=Identity.CLAIMED, via="prefect")
    assert flow_handlers.record_answer(sim.ledger, "approval/sim/0001/training", late) == "answer not accepted: bob approved it via prefect"


def test_request_is_closed_when_it_expires() -> None:
    sim, shop = _opened()
    flow_handlers.work_on(shop, LOOP, scheduled=False, patience=0)
    view = flow_handlers.request_view(sim.ledger, "approval/sim/0001/training")
    assert flow_handlers.settled(view, view.expires - timedelta(seconds=1)) is None
    assert "closed without an answer" in str(flow_handlers.settled(view, view.expires))
    with pytest.raises(Rejected, match="no approval/sim/0009/training"):
        flow_handlers.request_view(sim.ledger, "approval/sim/0009/training")


def test_expiry_uses_the_current_time_by_default() -> None:
    sim, shop = _opened()
    flow_handlers.work_on(shop, LOOP, scheduled=False, patience=0)
    view = flow_handlers.request_view(sim.ledger, "approval/sim/0001/training")
    assert (flow_handlers.settled(view) is None) == (datetime.now(UTC) < view.expires)
