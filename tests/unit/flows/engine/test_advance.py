"""Tests of `advance` where another process writes at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import pytest

from contracts.cycle import Append, Entry, Lease, Row, State
from contracts.ids import line_stream
from contracts.training import Method
from flows.core.decide import End
from flows.engine.advance import advance
from flows.engine.line import open_cycle
from tests.simulation.simulated_line import Scenario, SimulatedLine


def test_an_end_that_meets_a_new_row_of_the_line_is_not_reported_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = SimulatedLine(Scenario(seed=1, method=Method.NONE))
    cycle = open_cycle(sim.context, "a test")
    append, met = sim.ledger.append, []

    def beside(appends: Sequence[Append], lease: Lease | None, at: datetime) -> list[Entry]:
        """Another process cancels the cycle just before its end is written."""
        if not met and any(row.kind == "ended" for one in appends for row in one.rows):
            met.append(1)
            asked = Row(kind="cancel_asked", key=cycle, data={"actor": "bob", "reason": ""})
            append([Append(stream=line_stream("sim"), after=len(sim.ledger.read(line_stream("sim"))), rows=(asked,))], None, at)
        return append(appends, lease, at)

    monkeypatch.setattr(sim.ledger, "append", beside)
    while not isinstance(decision := advance(cycle, sim.context), End):
        pass
    assert met
    view = sim.context.cycle_view(cycle)
    assert (view.ended, view.state) == (True, decision.state)
    assert decision.state is State.CANCELLED
