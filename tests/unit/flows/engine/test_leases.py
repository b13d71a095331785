"""Tests of what a user sees of a lease: for what it is held and for how long, and how it is taken over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ratchet.contracts.errors import Retryable
from ratchet.flows.engine.context import busy_text, leased, process_holder, take
from tests.simulation.simulated_line import Scenario, SimulatedLine


def test_a_held_lease_names_its_purpose_and_its_age() -> None:
    sim = SimulatedLine(Scenario(seed=1))
    service = replace(sim.context, holder=process_holder())
    with leased(service, "the reconciler"):
        sim.clock.sleep(12)
        lease = sim.ledger.holder("line/sim")
        assert lease is not None
        assert busy_text(lease, sim.clock.now()) == "the reconciler (12 s)"
        with pytest.raises(Retryable, match=r"is leased by the reconciler \(12 s\) of process .*; retry after the lease expires"):
            take(sim.context, "line/sim")


@pytest.mark.parametrize("holder", ["another process", "host/12/abcdef01-2345-6789-abcd-ef0123456789-77/140213"])
def test_a_holder_without_a_purpose_is_shown_as_it_is(holder: str) -> None:
    sim = SimulatedLine(Scenario(seed=1))
    lease = take(replace(sim.context, holder=holder), "line/sim")
    assert busy_text(lease, sim.clock.now()) == holder


def test_the_lease_of_a_dead_process_is_taken_over_whatever_its_purpose() -> None:
    sim = SimulatedLine(Scenario(seed=1))
    host, _, rest = process_holder().split("/", 2)
    identity, thread = rest.split("/")
    gone = f"{host}/{2**22 + 1}/{identity}/{thread}"
    take(replace(sim.context, holder=gone), "line/sim", purpose="the reconciler")
    assert take(sim.context, "line/sim", purpose="an ingest").epoch == 2


def test_a_process_takes_a_lease_again_that_it_could_not_release() -> None:
    sim = SimulatedLine(Scenario(seed=1))
    take(sim.context, "line/sim", purpose="the reconciler")
    sim.clock.sleep(5)
    assert take(sim.context, "line/sim", purpose="the open cycle").epoch == 2
