"""Tests that the table of steps, the effects, and what the effects read agree."""

from __future__ import annotations

import typing
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest

from ratchet.contracts.cycle import ApprovalKind
from ratchet.contracts.errors import Permanent
from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.training import Adjustment, Proposal
from ratchet.contracts.steps import ENDS, STEPS, EvaluateResult, FreezeResult, State, Step
from ratchet.flows.core.folds.cycle import CycleView, Done, fold_cycle
from ratchet.flows.engine import advance
from ratchet.flows.engine.effects import EFFECTS
from tests.simulation.simulated_line import Scenario, SimulatedLine
from tests.unit.flows.cycles import done_row

ADJUSTED = Scenario(seed=1, outcomes=(Outcome.FAILED,), asks=(Proposal(rule="kl", adjustment=Adjustment(kl=2.0), good=1),))


def lived(scenario: Scenario) -> SimulatedLine:
    sim = SimulatedLine(scenario)
    sim.live()
    return sim


def test_every_step_is_declared_once_in_the_order_of_the_cycle() -> None:
    assert list(STEPS) == list(Step)
    assert [one.approval for one in STEPS.values() if one.approval] == list(ApprovalKind)
    assert all((one.result is None) != (one.approval is None) for one in STEPS.values())
    assert len({one.result for one in STEPS.values() if one.result}) == len(EFFECTS), "two steps with results of one type"
    open_states = [state for state in State if state not in ENDS and state is not State.OPENED]
    assert [one.after for one in STEPS.values()] == [*open_states, State.ROLLING], "each step has a state of its own, except the last two"
    for step, one in STEPS.items():
        assert all(list(Step).index(need) < list(Step).index(step) for need in one.needs)
        assert one.purpose.endswith(".")
        assert one.title[0].isupper()


def test_the_effects_are_those_of_the_table_and_return_its_types() -> None:
    assert list(EFFECTS) == [step for step, one in STEPS.items() if one.result is not None]
    for step, effect in EFFECTS.items():
        assert typing.get_type_hints(effect)["return"] is STEPS[step].result
        assert effect.__name__ == step


class Reads(dict[str, Done]):
    """The `done` rows of a cycle, which record the steps whose results are read."""

    def __init__(self, rows: Any, seen: set[Step]) -> None:
        super().__init__(rows)
        self._seen = seen

    def get(self, key: str, default: Any = None) -> Any:
        """Record the step and return its row."""
        self._seen.add(Step(key.split("/")[0]))
        return super().get(key, default)


def test_each_effect_reads_the_results_that_it_declares_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    read: dict[Step, set[Step]] = defaultdict(set)

    def watched(step: Step) -> Any:
        def effect(context: Any, cycle: CycleView, key: str) -> Any:
            return EFFECTS[step](context, replace(cycle, done=Reads(cycle.done, read[step])), key)

        return effect

    monkeypatch.setattr(advance, "EFFECTS", {step: watched(step) for step in EFFECTS})
    for scenario in (Scenario(seed=1), ADJUSTED, Scenario(seed=1, search=True)):
        assert lived(scenario).view().state is State.PROMOTED
    assert {step: read[step] for step in EFFECTS} == {step: set(STEPS[step].needs) for step in EFFECTS}


def test_every_result_is_read_back_as_it_was_written_and_has_a_sentence() -> None:
    cycle = lived(ADJUSTED).view()
    assert {done.step for done in cycle.done.values()} == set(EFFECTS)
    for done in cycle.done.values():
        assert done.result.model_dump(mode="json") == done.row.data
        assert done.result.sentence
        assert not done.result.sentence.endswith(".")


def test_a_result_that_does_not_fit_its_type_is_named_by_row_and_field() -> None:
    sim = lived(Scenario(seed=1))
    rows = sim.ledger.read(sim.cycle_stream())
    at = next(n for n, row in enumerate(rows) if (row.kind, row.key) == ("done", "evaluate"))
    data = {**rows[at].data, "report": {**rows[at].data["report"], "asked": "many"}}
    changed = [*rows[:at], rows[at].model_copy(update={"data": data}), *rows[at + 1 :]]
    cycle = fold_cycle(changed)
    assert cycle.result(FreezeResult).edition.size > 0, "the other rows are readable"
    with pytest.raises(Permanent, match=rf"row {at + 1} of cycle/sim/0001 \(done evaluate\) is not a valid EvaluateResult: report.asked"):
        cycle.result(EvaluateResult)


def test_a_step_that_is_not_done_has_no_result() -> None:
    cycle = fold_cycle(lived(Scenario(seed=1)).ledger.read("cycle/sim/0001")[:1])
    assert cycle.get(FreezeResult) is None
    with pytest.raises(Permanent, match="cycle/sim/0001 has no result of the step freeze"):
        cycle.result(FreezeResult)


def test_a_row_of_an_unknown_step_is_refused() -> None:
    with pytest.raises(Permanent, match=r"row 2 of cycle/sim/0001 \(done polish\) is about a step that this release does not know"):
        _ = done_row("polish", {}).step
