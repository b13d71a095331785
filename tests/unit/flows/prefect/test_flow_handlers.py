"""Tests the flow handlers on a simulated line with fake ports: the next flow and the reported text."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from contracts.cycle import Answer, Identity, State
from contracts.errors import Rejected
from contracts.ids import digest, line_stream
from flows.core.folds import fold_approval
from flows.engine.line import answer
from flows.prefect import flow_handlers
from tests.simulation.simulated_line import Scenario, SimulatedLine

LOOP = Path("sim.toml")


def _installation(sim: SimulatedLine) -> Any:
    """Return an installation with one simulated line."""
    return SimpleNamespace(context=lambda _path: sim.context, cycle_context=lambda _cycle: sim.context)


def _yes(sim: SimulatedLine, kind: str, actor: str = "ada") -> str:
    given = Answer(approve=True, actor=actor, identity=Identity.CLAIMED, via="prefect")
    view = fold_approval(sim.ledger.read(f"approval/sim/0001/{kind}"))
    answered = view.expires - timedelta(seconds=400)
    return str(answer(sim.ledger, view, given, answered))


def _opened(people: str = "yes") -> tuple[SimulatedLine, Any]:
    sim = SimulatedLine(Scenario(seed=1, people=people))
    sim.context.datasets.traces = 2000
    return sim, _installation(sim)


def test_nothing_is_due_without_traces() -> None:
    sim = SimulatedLine(Scenario(seed=1))
    status = flow_handlers.run_retrain(_installation(sim), LOOP, scheduled=False, timeout=0)
    assert status.summary.startswith("no cycle opened: 0 new traces of 1000")
    assert status.next is None


def test_scheduled_run_needs_only_one_new_trace() -> None:
    sim = SimulatedLine(Scenario(seed=1))
    sim.context.datasets.traces = 1
    assert flow_handlers.run_retrain(_installation(sim), LOOP, scheduled=False, timeout=0).cycle is None
    assert flow_handlers.run_retrain(_installation(sim), LOOP, scheduled=True, timeout=0).cycle == "cycle/sim/0001"


def test_work_stops_at_an_approval_and_continues_after_the_answer() -> None:
    sim, installation = _opened()
    status = flow_handlers.run_retrain(installation, LOOP, scheduled=False, timeout=100)
    assert "waiting: approval of training" in status.summary
    assert status.next is None
    assert flow_handlers.run_reconcile(installation, LOOP)[1].next is None
    _yes(sim, "training")
    assert flow_handlers.run_reconcile(installation, LOOP)[1].next == "retrain"
    status = flow_handlers.run_retrain(installation, LOOP, scheduled=False, timeout=1000)
    assert "waiting: approval of rollout" in status.summary


def test_while_another_process_holds_the_lease_the_job_is_only_observed() -> None:
    sim, installation = _opened("auto")
    while not sim.executor.started:
        flow_handlers.run_retrain(installation, LOOP, scheduled=False, timeout=-1)
    sim.ledger.acquire(line_stream("sim"), "another process", 60, sim.clock.now())
    before = dict(sim.executor.step), sim.executor.results, len(sim.ledger.read("cycle/sim/0001"))
    repairs, status = flow_handlers.run_reconcile(installation, LOOP)
    assert any("is leased by another process" in text for text in repairs)
    assert "waiting: training, attempt 1" in status.summary
    assert (dict(sim.executor.step), sim.executor.results, len(sim.ledger.read("cycle/sim/0001"))) == before


def test_rolling_cycle_is_continued_by_the_rollout_flow() -> None:
    sim, installation = _opened(people="auto")
    status = flow_handlers.run_retrain(installation, LOOP, scheduled=False, timeout=1000)
    assert status.next == "rollout"
    assert flow_handlers.run_reconcile(installation, LOOP)[1].next == "rollout"
    status = flow_handlers.run_rollout(installation, LOOP, seconds=10_000)
    assert sim.view().state is State.PROMOTED
    assert status.next is None
    assert flow_handlers.run_rollout(installation, LOOP, seconds=1).summary == "no open rollout"


def test_second_answer_is_not_accepted() -> None:
    sim, installation = _opened()
    flow_handlers.run_retrain(installation, LOOP, scheduled=False, timeout=0)
    _yes(sim, "training", "bob")
    late = Answer(approve=False, actor="eve", identity=Identity.CLAIMED, via="prefect")
    assert flow_handlers.record_answer(sim.ledger, "approval/sim/0001/training", late) == "answer not accepted: bob approved it via prefect"


def test_request_is_closed_when_it_expires() -> None:
    sim, installation = _opened()
    flow_handlers.run_retrain(installation, LOOP, scheduled=False, timeout=0)
    view = flow_handlers.request_view(sim.ledger, "approval/sim/0001/training")
    assert flow_handlers.closed_reason(view, view.expires - timedelta(seconds=1)) is None
    assert "closed without an answer" in str(flow_handlers.closed_reason(view, view.expires))
    with pytest.raises(Rejected, match="no approval/sim/0009/training"):
        flow_handlers.request_view(sim.ledger, "approval/sim/0009/training")


def test_expiry_uses_the_current_time_by_default() -> None:
    sim, installation = _opened()
    flow_handlers.run_retrain(installation, LOOP, scheduled=False, timeout=0)
    view = flow_handlers.request_view(sim.ledger, "approval/sim/0001/training")
    assert (flow_handlers.closed_reason(view) is None) == (datetime.now(UTC) < view.expires)


def test_reconcile_starts_retrain_at_once_after_a_plan_of_another_release() -> None:
    sim, installation = _opened()
    first = flow_handlers.run_retrain(installation, LOOP, scheduled=False, timeout=0)
    assert first.cycle == "cycle/sim/0001"
    assert sim.view().state is State.PLANNED
    sim.context = replace(sim.context, code=digest("code of another release"))
    assert flow_handlers.run_reconcile(installation, LOOP)[1].next == "retrain"
    ended = flow_handlers.run_retrain(installation, LOOP, scheduled=False, timeout=0)
    assert ended.summary.startswith("cycle/sim/0001 ended superseded: plan again")
    status = flow_handlers.run_reconcile(installation, LOOP)[1]
    assert (status.next, status.cycle) == ("retrain", "cycle/sim/0001")
    assert flow_handlers.run_retrain(installation, LOOP, scheduled=False, timeout=0).cycle == "cycle/sim/0002"
