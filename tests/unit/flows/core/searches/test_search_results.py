"""Tests how a search is shown: its space, the table and the bars of its trials, its gain and its cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.jobs.exit_codes import Outcome
from ratchet.contracts.jobs.search import Chosen, Trial, TrialEnd
from ratchet.contracts.jobs.training import Method, Search, TrainingPlan, Usage, Variant
from ratchet.flows.core.folds.cycle import Incarnation
from ratchet.flows.core.searches.search import OWN, Tried
from ratchet.flows.core.searches.search_results import BAR, COLUMNS, FORM_COLUMNS, gain_text, order_text, picture, results, sentences, space
from tests.builders import make_plan
from tests.unit.flows.cycles import done, plan_result, training

WON = "it won the last search of the line"
NAMES = ("SFT", "DPO, rate × 3", "SFT, rate × 0.33")


def search(first: str = OWN) -> Search:
    variants = tuple(Variant(name=name, method=Method.SFT, recipe={"learning_rate": "auto", "most_steps": 250}) for name in NAMES)
    return Search(variants=variants, budget=300.0, first=first)


def plan(first: str = OWN) -> TrainingPlan:
    return make_plan(Method.SFT, {}).model_copy(update={"search": search(first)})


def tried(number: int, *scores: float, seconds: float = 30.0, **fields: Any) -> Tried:
    """Return an ended trial with these scores."""
    ended = TrialEnd(**{"succeeded": True, "reason": "", "seconds": seconds, "step": 100, "scores": scores} | fields)
    return Tried(Trial(number=number, variant=number - 1, attempt=number, timeout=60.0, reason="in full"), ended)


def chosen(number: int) -> Chosen:
    return Chosen(trial=number, variant=NAMES[number - 1], plan="0" * 64, reason="because")


FIRST, BETTER = tried(1, *(1.0, 0.0) * 20), tried(2, *(1.0, 1.0, 1.0, 0.0) * 10)
FAILED = tried(3, seconds=12.0, succeeded=False, reason="not finite", step=0)
RUNNING = Tried(Trial(number=3, variant=2, attempt=3, timeout=60.0, most_steps=100, reason="a third"))


def test_space_shows_rates_and_steps() -> None:
    fixed = Variant(name="SFT, rate × 3", method=Method.SFT, recipe={"learning_rate": 2e-5, "rate_scale": 3.0, "most_steps": 90})
    rows = space(search().model_copy(update={"variants": (search().variants[0], fixed)}))
    assert rows == [("SFT", "auto", "250"), ("SFT, rate × 3", "2e-05 × 3", "90")]
    assert space(search().model_copy(update={"variants": (Variant(name="a", method=Method.SFT, recipe={}),)})) == [("a", "–", "–")]
    assert order_text(search()) == "The first one is the recipe of the plan."
    assert order_text(search(WON)) == "The first one is first because it won the last search of the line."


def test_table_has_a_row_per_trial_with_its_score_its_difference_and_its_end() -> None:
    assert results(plan(), [FIRST, BETTER, FAILED], chosen(2)) == [
        ("1: SFT", "100", "0.500", "–", "30", "trained"),
        ("2: DPO, rate × 3", "100", "0.750", "+0.250 ± 0.069", "30", "chosen"),
        ("3: SFT, rate × 0.33", "–", "–", "–", "12", "failed: not finite"),
    ]
    assert results(plan(), [FIRST, BETTER, RUNNING], None)[2] == ("3: SFT, rate × 0.33", "–", "–", "–", "–", "running")
    short = replace(RUNNING, end=FIRST.end)
    assert results(plan(), [FIRST, short], None)[1][1] == "100 of 100"
    assert COLUMNS[:FORM_COLUMNS] == ("trial", "steps", "score", "against trial 1"), "the approval form is narrow"
    with pytest.raises(ValueError, match="the plan has no search"):
        results(make_plan(Method.SFT, {}), [FIRST], None)


def test_picture_has_a_bar_per_trial_on_the_scale_of_the_scores() -> None:
    assert picture(plan(), [FIRST, BETTER, FAILED], chosen(2)) == (
        "1: SFT               #                  0.500",
        "2: DPO, rate × 3     ################   0.750  chosen",
        "3: SFT, rate × 0.33  failed",
        "One # is a score of 0.500, 16 # are 0.750; the bars do not begin at 0.",
    )


def test_picture_shows_log_probabilities() -> None:
    drawn = picture(plan(), [tried(1, -2.0, -2.0), tried(2, -1.0, -1.0), tried(3, -1.5, -1.5)], None)
    assert [line.count("#") for line in drawn[:3]] == [1, BAR, 9]
    assert drawn[0].endswith("-2.000")
    assert drawn[3] == "One # is a score of -2.000, 16 # are -1.000; the bars do not begin at 0."


def test_picture_needs_two_scores_and_may_have_equal_ones() -> None:
    assert picture(plan(), [], None) == picture(plan(), [FIRST, FAILED], None) == ()
    drawn = picture(plan(), [FIRST, replace(FIRST, trial=BETTER.trial), RUNNING], None)
    assert [line.count("#") for line in drawn] == [BAR, BAR, 0, 0]
    assert drawn[2].endswith("  running")
    assert drawn[3] == "All scores are equal."


@given(st.lists(st.floats(-1e4, 1.0), min_size=2, max_size=3))
def test_a_longer_bar_is_never_a_lower_score(scores: list[float]) -> None:
    drawn = picture(plan(), [tried(n, score, score) for n, score in enumerate(scores, 1)], None)
    lengths = [line.count("#") for line in drawn[: len(scores)]]
    assert all(1 <= length <= BAR for length in lengths)
    assert all((a <= b) or (x > y) or x == y for a, x in zip(lengths, scores, strict=True) for b, y in zip(lengths, scores, strict=True))


def test_gain_is_told_with_its_error_and_how_it_was_measured() -> None:
    told = gain_text(search(), [FIRST, BETTER], chosen(2))
    assert told == (
        "Gain over a cycle without a search: +0.250 with a standard error of 0.069. It was measured on the development prompts that chose "
        "the trial, so it is an optimistic estimate; the gate compares the candidate on other prompts."
    )
    assert gain_text(search(WON), [FIRST, BETTER], chosen(2)).startswith(f"Gain over trial 1 alone ({WON}): +0.250")
    assert gain_text(search(), [FIRST, BETTER], chosen(1)) == "The search kept trial 1, so it gained nothing over a cycle without a search."
    lost = replace(FAILED, trial=FIRST.trial)
    assert gain_text(search(), [lost, BETTER], chosen(2)) == "Trial 1 has no score, so the gain of the search is not known."


def ran(attempt: int, gpu_seconds: float, cost: float) -> Incarnation:
    usage = Usage(started=0.0, used=gpu_seconds, idle=0.0, lost=0.0, nodes=100.0, cost=cost, preemptions=0)
    return Incarnation(attempt, 1, "job", Outcome.DONE, usage=usage)


def test_cost_is_told_in_seconds_of_the_budget_and_in_money_where_machines_are_metered() -> None:
    searched = done(plan_result(plan=plan()))
    cycle = training(ran(1, 1800.0, 2.5), ran(2, 3600.0, 5.0), trials=(FIRST, BETTER, FAILED), chosen=chosen(2), done=searched)
    assert sentences(cycle)[1] == (
        "Trial 1 took 30 s; the trials after it took 42 s of the budget of 300 s. "
        "All trials together used 1.50 GPU hours and cost 7.50 by the price table."
    )
    unmetered = training(trials=(RUNNING,), done=searched)
    assert sentences(unmetered) == ["Trial 1 is running; the trials after it took 0 s of the budget of 300 s."]
    assert sentences(training()) == []
