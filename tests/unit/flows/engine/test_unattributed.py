"""Tests of a rollout whose router does not attribute answers to versions, as a Gateway does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from ratchet.contracts.errors import Incomplete, Permanent, Retryable
from ratchet.contracts.ids import rollout_stream
from ratchet.contracts.rows import Judged, content_of
from ratchet.contracts.serving import SequentialTest, StepJudgement, StepResult
from ratchet.flows.core.rollouts.rollout import Finish, Hold, RolloutDecision, SetWeight
from ratchet.flows.engine.advance import advance
from ratchet.flows.engine.effects import roll_out
from ratchet.flows.engine.line import open_cycle
from ratchet.flows.engine.rollouts.rollout import tick
from tests.simulation.simulated_line import Scenario, SimulatedLine


class AdvancingJudge:
    """A judge that always advances."""

    def judge(self, _largest: bool, _seconds: float, strata: Any, _mirrored: Any = None) -> StepJudgement:
        assert not strata, "there is no evidence of users"
        return StepJudgement(result=StepResult.ADVANCE, reasons=("a test",))


class WaitingJudge:
    """A judge that waits, and says how many pairs there are."""

    pairs = 0

    def judge(self, _largest: bool, _seconds: float, _strata: Any, _mirrored: Any = None) -> StepJudgement:
        limits = {"equal": 1.0, "equal_at": 3.0, "harm": -1.0, "harm_at": 4.0}
        test = SequentialTest(estimate=0.0, error=0.1, margin=0.1, n=self.pairs, people=12, **limits)
        tests = {"mirrored": test} if self.pairs else {}
        return StepJudgement(result=StepResult.WAIT, reasons=(f"{self.pairs} pairs",), tests=tests)


class NoMetrics:
    """Metrics that nobody may ask."""

    def evidence(self, *_: Any) -> Any:
        raise AssertionError("the traces say nothing about versions")


def raising(error: Exception) -> Callable[[], Mapping[str, int]]:
    def raises() -> Mapping[str, int]:
        raise error

    return raises


class Line:
    """A line in the first step of a rollout. `in_force` says whether the router's weights are in force."""

    def __init__(self, mirror: int = 20) -> None:
        self.sim = SimulatedLine(Scenario(seed=1, people="auto", quiet=True))
        context = self.sim.context
        rollout = context.loop.rollout.model_copy(update={"mirror": mirror, "max_seconds": 1e6, "min_seconds": 0.0})
        self.sim.context = replace(
            context, loop=context.loop.model_copy(update={"rollout": rollout}), judge=AdvancingJudge(), metrics=NoMetrics()
        )
        self.sim.router.attribution = False
        self.sim.router.open = raising(Retryable("a Gateway does not tell which requests are in flight"))
        self.cycle = open_cycle(self.sim.context, "a test")

    def begin(self) -> None:
        while self.sim.context.rollout_view(rollout_stream(self.cycle)) is None:
            self.sim.clock.sleep(1)
            advance(self.cycle, self.sim.context)
        assert isinstance(self.tick(), SetWeight)

    def tick(self) -> RolloutDecision:
        self.sim.clock.sleep(5)
        return tick(rollout_stream(self.cycle), self.sim.context)

    def noted(self) -> list[tuple[str, ...]]:
        """Return the reasons of all judgements in the ledger."""
        view = self.sim.context.rollout_view(rollout_stream(self.cycle))
        assert view is not None
        return [content_of(Judged, row).judgement.reasons for row in view.judgements]


def test_a_rollout_advances_without_evidence_of_users() -> None:
    line = Line()
    line.begin()
    assert isinstance(line.tick(), SetWeight)


def test_equal_reasons_of_several_weights_are_told_once() -> None:
    line = Line()
    line.begin()
    while isinstance(decision := line.tick(), SetWeight):
        pass
    weights = ", ".join(f"{weight:g} %" for weight in line.sim.context.loop.rollout.steps)
    assert decision == Finish("promoted", f"at {weights}: a test")


def test_the_ledger_follows_the_mirrored_pairs() -> None:
    line = Line()
    line.begin()
    judge = WaitingJudge()
    line.sim.context = replace(line.sim.context, judge=judge)
    for judge.pairs in (0, 0, 8, 16, 17, 17, 40):
        assert isinstance(line.tick(), Hold)
    wanted = [("0 pairs",), ("8 pairs",), ("16 pairs",), ("40 pairs",)]
    assert line.noted() == wanted, "one row whenever they have grown by a tenth"


def test_a_rollout_holds_with_the_reason_while_the_weights_are_not_in_force() -> None:
    line = Line()
    line.begin()
    line.sim.router.open = raising(Incomplete("argocd-controller owns spec.rules"))
    assert line.tick() == Hold("argocd-controller owns spec.rules")
    line.sim.router.open = raising(Retryable("no counts"))
    assert isinstance(line.tick(), SetWeight)


def test_the_ledger_tells_that_the_weights_are_not_in_force() -> None:
    line = Line()
    line.begin()
    judge = WaitingJudge()
    judge.pairs = 40
    line.sim.context = replace(line.sim.context, judge=judge)
    line.tick()
    line.sim.router.open = raising(Incomplete("argocd-controller owns spec.rules"))
    line.tick()
    line.tick()
    line.sim.router.open = raising(Retryable("no counts"))
    line.tick()
    assert line.noted() == [("40 pairs",), ("argocd-controller owns spec.rules", "40 pairs"), ("40 pairs",)]


def test_a_rollout_that_nothing_could_decide_is_refused() -> None:
    line = Line(mirror=0)
    while line.sim.context.rollout_view(rollout_stream(line.cycle)) is None:
        line.sim.clock.sleep(1)
        view = line.sim.context.cycle_view(line.cycle)
        if view.candidate is not None:
            break
        advance(line.cycle, line.sim.context)
    with pytest.raises(Permanent, match=r"rollout\.mirror is 0"):
        roll_out(line.sim.context, line.sim.context.cycle_view(line.cycle), "key")
