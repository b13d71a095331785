"""Tests that the trials of a search count all their job time, resume after a preemption, and end with a cancelled cycle."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.search import Trial
from ratchet.contracts.jobs.training import Usage
from ratchet.contracts.loop import SearchSettings
from ratchet.contracts.steps import State
from ratchet.flows.core.folds.cycle import Incarnation
from ratchet.flows.core.searches.search import Tried, spent
from ratchet.flows.engine.choice.search import _seconds, trial_end
from ratchet.flows.engine.line import ask_cancel
from tests.simulation.simulated_line import Scenario, SimulatedLine, loop_for
from tests.unit.flows.cycles import NOON, training

DONE, PREEMPTED, FAILED = Outcome.DONE, Outcome.PREEMPTED, Outcome.FAILED


def searched(*outcomes: Outcome, budget: float = 1000.0, sort: type[SimulatedLine] = SimulatedLine) -> SimulatedLine:
    """Return an ended cycle with a search. `outcomes` are those of attempt 1, incarnations 1 and 2, then of attempt 2, and so on."""
    sim = sort(Scenario(seed=1, search=True, people="auto", outcomes=outcomes))
    settings = sim.context.loop.training.model_copy(update={"search": SearchSettings(budget=budget)})
    sim.context = replace(sim.context, loop=sim.context.loop.model_copy(update={"training": settings}))
    sim.live()
    return sim


def durations(sim: SimulatedLine) -> dict[tuple[int, int], float]:
    """Return the seconds between the rows of start and end, by attempt and incarnation."""
    rows = sim.ledger.read(sim.cycle_stream())
    began = {(row.data["attempt"], row.data["incarnation"]): row.at for row in rows if row.kind == "done" and row.key.startswith("train/")}
    ended = {(row.data["attempt"], row.data["incarnation"]): row.at for row in rows if row.kind == "job_ended"}
    return {key: (at - began[key]).total_seconds() for key, at in ended.items()}


def test_a_preempted_trial_resumes_and_its_time_sums_up() -> None:
    sim = searched(DONE, DONE, PREEMPTED)
    view, took = sim.view(), durations(sim)
    assert set(took) == {(1, 1), (2, 1), (2, 2), (3, 1)}
    assert [one.trial.attempt for one in view.trials] == [1, 2, 3], "the restart is no trial of its own"
    resumed = next(sim.executor.pins[one.job] for one in view.incarnations if (one.attempt, one.number) == (2, 2))
    assert (resumed.attempt, resumed.incarnation) == (2, 1)
    assert resumed.step > 0, "the second incarnation starts from a step of the first one"
    second = view.trials[1].end
    assert second is not None
    assert second.succeeded
    assert second.seconds == took[2, 1] + took[2, 2]
    assert min(took[2, 1], took[2, 2]) > 0
    assert spent(view.trials) == took[2, 1] + took[2, 2] + took[3, 1]


def test_a_failed_trial_costs_its_time_and_leaves_less_for_the_next_one() -> None:
    sim = searched(DONE, DONE, FAILED, budget=500.0)
    view, took = sim.view(), durations(sim)
    assert [one.succeeded for one in view.trials] == [True, False, True]
    assert [one.end.seconds for one in view.trials if one.end] == [took[1, 1], took[2, 1], took[3, 1]]
    assert took[2, 1] > 0
    assert view.trials[1].trial.timeout == 500.0
    assert view.trials[2].trial.timeout == 500.0 - took[2, 1]


def test_a_budget_that_a_failed_trial_used_up_ends_the_search() -> None:
    calm = durations(searched(DONE, DONE, FAILED))
    sim = searched(DONE, DONE, FAILED, budget=calm[2, 1] + calm[1, 1] - 1)
    view = sim.view()
    assert len(view.trials) == 2
    assert view.chosen is not None
    assert view.chosen.trial == 1
    assert "of the budget are left" in view.chosen.reason


def test_a_further_attempt_at_the_first_recipe_counts_to_its_trial() -> None:
    sim = searched(FAILED)
    view, took = sim.view(), durations(sim)
    first = view.trials[0].end
    assert first is not None
    assert first.seconds == took[1, 1] + took[2, 1]
    assert view.trials[1].trial.attempt == 3
    assert spent(view.trials) == took[3, 1] + took[4, 1], "trial 1 is no part of the budget"


class CancelledInTrialTwo(SimulatedLine):
    """A line whose operator cancels the cycle while the job of trial 2 runs."""

    def _people(self) -> None:
        super()._people()
        view = self.view()
        if not view.ended and len(view.trials) == 2 and view.incarnations[-1].attempt == 2:
            ask_cancel(self.ledger, "sim", "ada", "no longer needed", self.clock.now())


def test_cancelling_during_trial_two_ends_its_job_and_begins_no_further_trial() -> None:
    sim = searched(sort=CancelledInTrialTwo)
    view = sim.view()
    assert view.state is State.CANCELLED
    assert [one.trial.number for one in view.trials] == [1, 2]
    assert view.chosen is None
    assert view.candidate is None, "the model of trial 1 is not evaluated either"
    jobs = [one.job for one in view.incarnations]
    assert len(jobs) == 2
    assert sim.executor.cancelled == {jobs[1]}, "the running job is told to end"
    assert sim.executor.live() == [], "and ends"
    assert [name for name in sim.world.effects if name.startswith("submit/")] == [f"submit/{job}/1" for job in jobs]
    rows = sim.ledger.read(sim.cycle_stream())
    assert not any(row.kind == "trial_intended" and row.key == "3" for row in rows)


def ran(attempt: int, number: int, outcome: Outcome, begin: float, end: float, nodes: float | None = None) -> Incarnation:
    """Return an incarnation that ran from second `begin` to `end` and whose attempt had used `nodes` machine-seconds at its end."""
    usage = None if nodes is None else Usage(started=0.0, used=0.0, idle=0.0, lost=0.0, nodes=nodes, cost=0.0, preemptions=0)
    span = [NOON + timedelta(seconds=second) for second in (begin, end)]
    return Incarnation(attempt, number, "job", outcome, "because", None, None, 0, usage, *span)


@pytest.mark.parametrize(
    ("runs", "seconds"),
    [
        ([ran(2, 1, PREEMPTED, 0, 100), ran(2, 2, DONE, 150, 180)], 130.0),
        ([ran(2, 1, PREEMPTED, 0, 100), ran(2, 2, FAILED, 100, 140), ran(3, 1, DONE, 140, 150)], 150.0),
        ([ran(2, 1, PREEMPTED, 0, 100, 60.0), ran(2, 2, DONE, 150, 180, 85.0)], 85.0),
        ([ran(2, 1, FAILED, 0, 100, 60.0), ran(3, 1, DONE, 150, 180, 25.0)], 85.0),
        ([ran(2, 1, FAILED, 0, 100, 60.0), ran(3, 1, DONE, 150, 180)], 90.0),
    ],
    ids=["preempted", "preempted-and-failed", "metered-over-all-incarnations", "metered-by-attempt", "one-attempt-metered"],
)
def test_job_time_is_that_of_all_incarnations_metered_where_machines_are(runs: list[Incarnation], seconds: float) -> None:
    cycle = training(*runs)
    assert sum(_seconds(cycle, runs)) == seconds
    trials = tuple(Tried(Trial(number=n, variant=n - 1, attempt=n, timeout=1.0, reason="")) for n in (1, 2))
    context: Any = None  # a failed trial published nothing that could be read
    ended = trial_end(context, replace(cycle, trials=trials, incarnations=(ran(1, 1, DONE, -50, 0), *runs)), "it failed at last")
    assert (ended.succeeded, ended.seconds) == (False, seconds), "the attempt of trial 1 is not counted, and a failed trial is"


def test_job_time_of_a_gang_is_its_machine_time_by_node() -> None:
    loop = loop_for("yes")
    loop = loop.model_copy(update={"training": loop.training.model_copy(update={"nodes": 4})})
    assert _seconds(training(run := ran(1, 1, DONE, 0, 100, 320.0), loop=loop), [run]) == [80.0]
