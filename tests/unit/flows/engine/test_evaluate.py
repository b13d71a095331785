"""Tests of the step `evaluate`: the level of an evaluation, and the stored answers of earlier champions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.contracts.data.datasets import HoldoutEdition
from ratchet.contracts.evaluation import EarlierAnswers, EvalReport, PromptCount, SafetyReport
from ratchet.contracts.ids import cycle_stream, digest
from ratchet.contracts.serving import Route
from ratchet.contracts.steps import FreezeResult, State
from ratchet.flows.core.triggers import evaluation_level
from ratchet.flows.engine.effects import _earlier_champions
from ratchet.flows.engine.line import ask_rollback
from ratchet.flows.engine.reconcile import reconcile
from tests.simulation.simulated_line import Scenario, SimulatedLine, nth_fault
from tests.unit.flows.cycles import knowing


class SeveralCycles(SimulatedLine):
    """A simulated line whose newest cycle is the one that lives."""

    def cycle_stream(self) -> str:
        return cycle_stream("sim", max(1, self.context.line_view().cycles))

    def check_route(self, route: Route) -> None:
        """The rules of routes hold for the first cycle only: later champions were approved in earlier cycles."""


def line(**how: Any) -> SeveralCycles:
    return SeveralCycles(Scenario(seed=1, people="auto", **how))


def test_a_promotion_passes_its_error_on_to_the_next_evaluation() -> None:
    sim = line()
    for _ in range(3):
        sim.live()
    assert sim.context.line_view().evaluated == (True, True, True)
    levels = [evaluation_level(sim.context.loop, (True,) * n) for n in range(3)]
    assert sim.context.evaluator.levels == levels
    assert levels == sorted(levels, reverse=True)


@pytest.mark.parametrize("how", [{"difference": 0.0}, {"bad_canary": True}])
def test_a_candidate_that_is_held_or_rolled_back_passes_nothing_on(how: dict[str, Any]) -> None:
    sim = line(**how)
    for _ in range(2):
        sim.live()
    assert sim.context.line_view().evaluated == (False, False)
    assert sim.context.evaluator.levels == [evaluation_level(sim.context.loop)] * 2


def test_a_promotion_that_is_rolled_back_later_passes_nothing_on() -> None:
    sim = line()
    sim.live()
    assert sim.context.line_view().evaluated == (True,)
    ask_rollback(sim.ledger, "sim", "ada", "", sim.clock.now())
    reconcile(sim.context)
    assert sim.context.line_view().evaluated == (False,)


@pytest.mark.parametrize("dies", range(0, 60, 3))
def test_a_repeat_after_a_crash_has_the_same_level(dies: int) -> None:
    sim = line()
    sim.live()
    sim.world.faults = sim.ledger.faults = nth_fault(dies)
    sim.live()
    assert sim.view().state is State.PROMOTED
    assert set(sim.context.evaluator.levels[1:]) == {evaluation_level(sim.context.loop, (True,))}


def past(asked: int, golden: str, tag: str = "v-old", answers: str = "", safety: str = "") -> Any:
    """Return a cycle that evaluated a candidate against the champion `tag`, and asked so many golden prompts."""
    counts = [PromptCount.model_construct(name="holdout", asked=500)]
    counts += [PromptCount.model_construct(name="golden", asked=asked)] if asked else []
    edition = HoldoutEdition.model_construct(golden=digest(golden))
    harmful = SafetyReport.model_construct(answers=digest(safety)) if safety else None
    report = EvalReport.model_construct(counts=tuple(counts), answers=digest(answers or f"{golden} {asked}"), safety=harmful)
    frozen = FreezeResult.model_construct(edition=edition)
    return knowing(frozen, report=report, baseline=SimpleNamespace(tag=tag), line="sim")


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ([past(100, "now"), past(60, "now")], "now 100"),  # the newest one stopped early
        ([past(100, "now", answers="first"), past(100, "now", answers="second")], "second"),
        ([past(100, "before"), past(60, "now")], "now 60"),  # the golden set has changed
        ([past(60, "now"), past(100, "before")], "now 60"),
        ([past(100, "before"), past(60, "older")], "older 60"),
        ([past(0, "now")], "now 0"),  # no golden prompt was asked
    ],
)
def test_stored_answers_are_those_of_the_fullest_evaluation_of_the_golden_set(found: Any, chosen: str) -> None:
    (one,) = stored(found)
    assert (one.version, one.answers, one.safety) == ("v-old", digest(chosen), None)


def stored(found: list[Any]) -> list[EarlierAnswers]:
    """Return the stored answers of the champions of these cycles, for the cycle after them."""
    cycles = [*found, past(100, "now", tag="v-now")]

    for number, one in enumerate(cycles, 1):
        one.number = number

    class Context:
        def line_view(self) -> Any:
            return type("Line", (), {"recalled": {}})

        def cycle_view(self, name: str) -> Any:
            return cycles[int(name.rsplit("/", 1)[1]) - 1]

    return _earlier_champions(Context(), cycles[-1])  # type: ignore[arg-type]


def test_stored_answers_to_harmful_prompts_are_those_of_the_newest_evaluation_that_asked_them() -> None:
    cycles = [past(100, "now", safety="first"), past(100, "now", safety="second"), past(40, "now"), past(9, "now", tag="v-other")]
    assert [(one.version, one.answers, one.safety) for one in stored(cycles)] == [
        ("v-old", digest("now 100"), digest("second")),
        ("v-other", digest("now 9"), None),
    ]
