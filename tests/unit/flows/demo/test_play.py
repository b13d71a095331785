"""Tests of the messages of the demo."""

from __future__ import annotations

from pathlib import Path

from ratchet.flows.config.home import Home
from ratchet.flows.demo.play import Demo
from tests.simulation.simulated_line import Scenario, SimulatedLine


def demo_in(folder: Path) -> tuple[Demo, list[str]]:
    said: list[str] = []
    return Demo(Home(folder), said.append, lambda _context, _cycle: None), said


def test_only_troubles_are_reported_and_each_once(tmp_path: Path) -> None:
    demo, said = demo_in(tmp_path)
    for status in (
        "cycle/kubectl/0001 waits: training, attempt 1, incarnation 1, step 20 of 250",
        "cycle/kubectl/0001 waits: the rollout: 11 of 15 requests seen",
        "cycle/kubectl/0001 waits: line/kubectl is leased by host/8004; retry after the lease expires",
        "cycle/kubectl/0001 waits: approval of rollout until 2026-11-22 22:44 UTC",
        "cycle/kubectl/0001 waits: the model server does not answer",
        "cycle/kubectl/0001 waits: the model server does not answer",
    ):
        demo._progress(status, 0, 0)
    demo._progress("querying v-1", 2, 2)
    assert [line.split(" s  ")[1] for line in said] == ["Waiting   the model server does not answer"]


def test_each_sentence_about_a_cycle_is_reported_once(tmp_path: Path) -> None:
    demo, said = demo_in(tmp_path)
    sim = SimulatedLine(Scenario(seed=1))
    sim.live()
    demo.tell(sim.context, sim.view().id)
    first = len(said)
    demo.tell(sim.context, sim.view().id)
    assert first == len(said) > 5
    assert "Result    promoted" in said[-1]
