"""Tests of the batches of mirrored prompts: each is paid for once, a crash loses nothing, and what cannot be asked decides nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError, Retryable
from ratchet.contracts.fakes import FakeClient, FakeDatasets, FakeEvaluator
from ratchet.contracts.ids import rollout_stream
from ratchet.contracts.mirror import MirrorOutcome, MirrorPrompt
from ratchet.contracts.serving import SequentialTest, StepJudgement, StepResult
from ratchet.flows.core.folds.rollout import RolloutView
from ratchet.flows.core.rollouts.mirror import BATCH, batches, mirrored
from ratchet.flows.engine.advance import advance
from ratchet.flows.engine.line import ask_cancel, open_cycle
from ratchet.flows.engine.rollouts.rollout import tick
from tests.simulation.simulated_line import Crash, Scenario, SimulatedLine

MOST = 20


class WaitingJudge:
    """A judge that waits until a test says otherwise, and remembers the mirrored evidence."""

    def __init__(self) -> None:
        self.result = StepResult.WAIT
        self.decided = False
        self.seen: list[int | None] = []

    def judge(self, _largest: bool, _seconds: float, _strata: Any, found: Any = None) -> StepJudgement:
        self.seen.append(None if found is None else found.asked)
        limits = {"equal": 4.0, "equal_at": 3.0, "harm": -4.0, "harm_at": 4.0}
        test = SequentialTest(estimate=0.0, error=0.1, margin=0.05, n=60, people=12, **limits)
        return StepJudgement(result=self.result, reasons=("a test",), tests={"mirrored": test} if self.decided else {})


class Line:
    """A line in the first step of a rollout, with prompts that may be asked."""

    def __init__(self, most: int = MOST, prompts: int = 50) -> None:
        self.sim = SimulatedLine(Scenario(seed=1, people="auto", quiet=True))
        context = self.sim.context
        rollout = context.loop.rollout.model_copy(update={"mirror": most, "max_seconds": 1e6})
        self.judge = WaitingJudge()
        self.sim.context = replace(context, loop=context.loop.model_copy(update={"rollout": rollout}), judge=self.judge)
        self.datasets: FakeDatasets = context.datasets  # type: ignore[assignment]
        self.evaluator: FakeEvaluator = context.evaluator  # type: ignore[assignment]
        self.datasets.mirrored = [
            MirrorPrompt(key=f"k{n}", person=f"p{n % 9}", messages=({"role": "user", "content": f"secret text {n}"},))
            for n in range(prompts)
        ]
        cycle = open_cycle(self.sim.context, "a test")
        self.id = rollout_stream(cycle)
        while self.sim.context.rollout_view(self.id) is None:
            self.sim.clock.sleep(1)
            advance(cycle, self.sim.context)
        self.tick()  # sets the first weight

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.sim.clock.sleep(5)
            tick(self.id, self.sim.context)

    @property
    def view(self) -> RolloutView:
        view = self.sim.context.rollout_view(self.id)
        assert view is not None
        return view

    @property
    def asked(self) -> dict[str, int]:
        """Prompt -> how often it was asked."""
        return {name.removeprefix("mirror/"): n for name, n in self.sim.world.effects.items() if name.startswith("mirror/")}

    @property
    def evidence(self) -> int:
        return mirrored(batches(self.view.mirrored)).asked


def crash_at(place: str, times: int = 1) -> Callable[[str], None]:
    left = [times]

    def faults(where: str) -> None:
        if where == place and left[0]:
            left[0] -= 1
            raise Crash(place)

    return faults


def test_each_tick_asks_one_batch_until_the_limit_and_no_prompt_twice() -> None:
    line = Line()
    line.tick()
    assert (len(line.asked), line.evidence) == (BATCH, BATCH)
    line.tick(10)
    assert set(line.asked.values()) == {1}
    assert (len(line.asked), line.evidence) == (MOST, MOST)
    assert line.judge.seen[-1] == MOST, "the judge gets the pairs of all batches"


def test_without_the_setting_nothing_is_asked_or_written() -> None:
    line = Line(most=0)
    line.tick(5)
    assert line.asked == {}
    assert line.view.mirrored == ()
    assert set(line.judge.seen) == {None}


def test_the_ledger_has_neither_ids_nor_texts() -> None:
    line = Line()
    line.tick(5)
    rows = json.dumps([row.data for row in line.view.mirrored])
    assert "secret text" not in rows
    assert set(line.view.mirrored[0].data) == {"secret", "prompts"}
    assert set(line.view.mirrored[1].data) == {"mirrored"}


@pytest.mark.parametrize(("place", "asked"), [("before mirror", 1), ("after mirror", 2)])
def test_a_crash_during_a_batch_repeats_this_batch_alone_and_counts_it_once(place: str, asked: int) -> None:
    line = Line()
    line.sim.world.faults = crash_at(place)
    with pytest.raises(Crash):
        line.tick()
    line.sim.context.ledger.leases.clear()  # type: ignore[attr-defined]
    first = batches(line.view.mirrored)[0]
    assert first.result is None
    line.tick()
    assert {line.asked[key] for key, _ in first.prompts} == {asked}
    assert line.evidence == BATCH
    line.tick(5)
    assert {n for key, n in line.asked.items() if key not in dict(first.prompts)} == {1}
    assert line.evidence == MOST


def test_a_crash_between_the_answers_and_their_row_counts_them_once() -> None:
    line = Line()
    seen = []

    def faults(where: str) -> None:
        seen.append(where)
        if where == "before append" and "after mirror" in seen and "crashed" not in seen:
            seen.append("crashed")
            raise Crash

    line.sim.world.faults = line.sim.ledger.faults = faults
    with pytest.raises(Crash):
        line.tick()
    line.sim.ledger.leases.clear()
    line.tick()
    assert line.evidence == BATCH
    assert len(line.asked) == BATCH


def test_what_was_withdrawn_after_a_batch_began_is_not_asked() -> None:
    line = Line()
    line.sim.world.faults = crash_at("before mirror")
    with pytest.raises(Crash):
        line.tick()
    line.sim.ledger.leases.clear()
    (gone, _), *_ = batches(line.view.mirrored)[0].prompts
    line.datasets.mirrored = [one for one in line.datasets.mirrored if one.key != gone]
    line.tick(10)
    assert gone not in line.asked
    assert line.evidence == MOST - 1, "a prompt that was chosen counts towards the limit"


def test_pairs_of_a_lost_key_do_not_count_and_their_batch_ends() -> None:
    line = Line()
    line.tick()
    line.sim.world.faults = crash_at("before mirror")
    with pytest.raises(Crash):
        line.tick()
    line.sim.ledger.leases.clear()
    line.datasets.secret = "another"
    line.tick(2)
    known = batches(line.view.mirrored)
    assert [batch.result.asked for batch in known if batch.result] == [BATCH, 0, MOST - 2 * BATCH]
    assert line.evidence == MOST - 2 * BATCH


@pytest.mark.parametrize("error", [Retryable("the server is down"), ZeroDivisionError("a scorer")])
def test_a_server_or_a_scorer_that_fails_makes_the_batch_wait(error: Exception) -> None:
    line = Line()

    def failing(where: str) -> None:
        if where == "before mirror":
            raise error

    line.sim.world.faults = failing
    line.tick(3)
    assert line.evidence == 0
    assert len(batches(line.view.mirrored)) == 1, "no new batch begins"
    assert line.view.end is None
    line.sim.world.faults = lambda _where: None
    line.tick()
    assert line.evidence == BATCH


def test_a_line_that_must_be_corrected_says_so() -> None:
    line = Line()

    def broken(*_: Any) -> Any:
        raise ConfigError("the key file is missing")

    line.datasets.mirror_prompts = broken  # type: ignore[method-assign]
    with pytest.raises(ConfigError):
        line.tick()


def test_outcomes_are_counted_by_kind() -> None:
    line = Line(most=4)
    given = iter([MirrorOutcome(difference=0.5), MirrorOutcome(difference=None, failed=True), MirrorOutcome(difference=None)])
    line.evaluator.outcome = lambda _: next(given, MirrorOutcome(difference=-1.0))
    line.tick()
    found = mirrored(batches(line.view.mirrored))
    assert (found.asked, found.failed, found.unscored, [pair[1] for pair in found.pairs]) == (4, 1, 1, [0.5, -1.0])


def test_nothing_is_asked_once_the_pairs_have_decided() -> None:
    line = Line()
    line.judge.decided = True
    line.tick(5)
    assert line.asked == {}


def test_a_cancelled_rollout_asks_nothing_and_forgets_its_key() -> None:
    line = Line()
    line.tick()
    assert line.datasets.secret
    ask_cancel(line.sim.ledger, "sim", "ada", "enough", line.sim.clock.now())
    line.tick()
    assert (line.view.end, len(line.asked), line.datasets.secret) == ("rolled_back", BATCH, "")


def test_requests_go_to_the_servers_of_both_versions_with_the_client_for_mirrored_prompts() -> None:
    line = Line()
    asked: list[str] = []
    client = FakeClient()

    def sparing(endpoint: Any) -> FakeClient:
        asked.append(endpoint.url)
        return client

    line.sim.context = replace(line.sim.context, mirror_client=sparing)
    line.tick()
    assert asked == [f"http://{line.view.champion.tag}", f"http://{line.view.candidate.tag}"]


def test_the_prompts_are_those_of_both_versions_since_the_first_step() -> None:
    line = Line()
    given: list[Any] = []
    real = line.datasets.mirror_prompts
    line.datasets.mirror_prompts = lambda *args: (given.append(args), real(*args))[1]  # type: ignore[method-assign]
    line.tick()
    rollout, versions, (since, until), asks = given[0]
    assert (rollout, versions) == (line.id, (line.view.champion.tag, line.view.candidate.tag))
    assert since == line.view.steps[0].since
    assert (line.sim.clock.now() - until).total_seconds() == line.sim.context.loop.rollout.maturity
    assert asks.limit == BATCH


@pytest.mark.slow
def test_a_crash_at_any_point_loses_no_pair_and_repeats_at_most_one_batch() -> None:
    points = 0

    def run(crash_at: int) -> Line:
        nonlocal points
        line, points = Line(), 0

        def faults(_where: str) -> None:
            nonlocal points
            points += 1
            if points == crash_at:
                raise Crash

        line.sim.world.faults = line.sim.ledger.faults = faults
        for _ in range(7):
            try:
                line.tick()
            except Crash:
                line.sim.ledger.leases.clear()
        return line

    run(0)
    every = points
    assert every > 10
    for point in range(1, every + 1):
        line = run(point)
        assert (line.evidence, len(line.asked)) == (MOST, MOST), f"crash at point {point}"
        assert sum(n - 1 for n in line.asked.values()) <= BATCH, f"crash at point {point}"
