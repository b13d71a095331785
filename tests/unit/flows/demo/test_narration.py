"""Tests of the sentences about a cycle of the demo."""

from __future__ import annotations

import pytest

from ratchet.contracts.ids import rollout_stream
from ratchet.contracts.jobs.training import Method
from ratchet.flows.core.folds.cycle import CycleView, fold_cycle
from ratchet.flows.core.folds.rollout import RolloutView, fold_rollout
from ratchet.flows.demo.narration import Sentence, narrate, summarize
from tests.simulation.simulated_line import Scenario, SimulatedLine


def lived(scenario: Scenario) -> tuple[CycleView, RolloutView | None]:
    sim = SimulatedLine(scenario)
    sim.live()
    return sim.view(), sim.context.rollout_view(rollout_stream(sim.view().id))


def topics(told: list[Sentence]) -> list[str]:
    return [one.topic for one in told]


def test_a_promotion_is_told_from_the_data_to_the_result() -> None:
    told = narrate(*lived(Scenario(seed=1)))
    assert list(dict.fromkeys(topics(told))) == ["Data", "Method", "Training", "Gate", "Rollout", "Result"]
    assert told[-1].text.startswith("promoted: the candidate now serves all users")


def test_a_rejection_says_that_no_user_saw_the_candidate() -> None:
    cycle, rollout = lived(Scenario(seed=1, difference=-0.2))
    told = narrate(cycle, rollout)
    assert rollout is None
    assert topics(told)[-2:] == ["Gate", "Result"]
    assert "no user saw it" in told[-1].text
    assert "no user saw it" in summarize(cycle).reason


def test_without_training_only_the_choice_and_the_result_are_told() -> None:
    cycle, rollout = lived(Scenario(seed=1, method=Method.NONE))
    assert topics(narrate(cycle, rollout)) == ["Data", "Method", "Result"]
    assert (summarize(cycle).after, summarize(cycle).result) == ("–", "not trained")


@pytest.mark.parametrize("scenario", [Scenario(seed=1), Scenario(seed=1, difference=-0.2), Scenario(seed=2, method=Method.NONE)])
def test_sentences_are_only_added(scenario: Scenario) -> None:
    """The demo prints what is new, so that a sentence must keep its place."""
    sim = SimulatedLine(scenario)
    sim.live()
    cycle, rollout = sim.ledger.read(sim.cycle_stream()), sim.ledger.read(rollout_stream(sim.cycle_stream()))
    rows = sorted([*cycle, *rollout], key=lambda row: (row.at, row.stream.startswith("rollout/"), row.seq))
    all_of_it, before = narrate(sim.view(), fold_rollout(rollout) if rollout else None), 0
    for number in range(1, len(rows) + 1):
        seen = [row for row in rows[:number] if not row.stream.startswith("rollout/")]
        moved = [row for row in rows[:number] if row.stream.startswith("rollout/")]
        if not seen:
            continue
        told = narrate(fold_cycle(seen), fold_rollout(moved) if moved else None)
        assert told == all_of_it[: len(told)]
        assert len(told) >= before
        before = len(told)


def test_no_sentence_needs_statistics() -> None:
    for told in narrate(*lived(Scenario(seed=1))):
        assert "evidence of" not in told.text
        assert "±" not in told.text
        assert len(told.text) < 130
