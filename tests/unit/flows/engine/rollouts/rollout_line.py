"""A line in the first step of a rollout, for tests of what its server does meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from ratchet.contracts.fakes import FakeWorld
from ratchet.contracts.fakes.serving import FakeServer
from ratchet.contracts.ids import rollout_stream
from ratchet.flows.core.folds.rollout import RolloutView
from ratchet.flows.engine.advance import advance
from ratchet.flows.engine.line import open_cycle
from ratchet.flows.engine.rollouts.rollout import tick
from tests.simulation.simulated_line import Scenario, SimulatedLine

S = TypeVar("S", bound=FakeServer)


class RolloutLine(Generic[S]):
    """A simulated line whose versions are served by a fake server. The first weight is set."""

    def __init__(self, server: Callable[[FakeWorld], S]) -> None:
        self.sim = SimulatedLine(Scenario(seed=1, people="auto"))
        self.server = server(self.sim.world)
        self.sim.context = replace(self.sim.context, server=self.server)
        self.sim.executor.context = self.sim.context
        self.cycle = open_cycle(self.sim.context, "a test")
        self.id = rollout_stream(self.cycle)
        while self.sim.context.rollout_view(self.id) is None:
            self.sim.clock.sleep(1)
            advance(self.cycle, self.sim.context)
        self.tick()  # sets the first weight

    def tick(self, seconds: float = 5.0) -> object:
        """Let time pass, perform a tick and return its decision."""
        self.sim.clock.sleep(seconds)
        return tick(self.id, self.sim.context)

    @property
    def view(self) -> RolloutView:
        """The state of the rollout."""
        view = self.sim.context.rollout_view(self.id)
        assert view is not None
        return view
