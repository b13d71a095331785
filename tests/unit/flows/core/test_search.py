"""Tests which recipe a search tries next, how it keeps to its budget, and which model it chooses."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.ids import digest
from contracts.jobs.search import Chosen, Trial, TrialEnd, trial_plan
from contracts.jobs.training import Method, Search, TrainingPlan, Variant
from flows.core.search import SHORT, Tried, choice, difference, gain_of_search, next_trial, results, spent
from tests.builders import make_plan

TIMEOUT = 1000.0


def plan(recipes: int = 4, budget: float = 1e6) -> TrainingPlan:
    variants = tuple(Variant(name=f"recipe {n}", method=Method.DPO, recipe={"rate_scale": n + 1.0}) for n in range(recipes))
    return make_plan(Method.DPO, variants[0].recipe).model_copy(
        update={"search": Search(variants=variants, budget=budget, first="the recipe of the plan")}
    )


def end(step: int = 300, seconds: float = 30.0, scores: Any = (1.0, 0.0) * 20, succeeded: bool = True) -> TrialEnd:
    return TrialEnd(succeeded=succeeded, reason="" if succeeded else "not finite", seconds=seconds, step=step, scores=scores)


def run(given_plan: TrainingPlan, *ends: TrialEnd) -> tuple[list[Tried], Any]:
    """Play a search whose trials end as given. Return its trials, and what it does next."""
    tried: list[Tried] = []
    for one in ends:
        found = next_trial(given_plan, tried, len(tried) + 1, TIMEOUT)
        assert isinstance(found, Trial), found
        tried.append(Tried(found, one))
    return tried, next_trial(given_plan, tried, len(tried) + 1, TIMEOUT)


def test_the_recipe_of_the_plan_is_trained_first_and_in_full() -> None:
    _, first = run(plan())
    assert (first.number, first.variant, first.most_steps, first.timeout) == (1, 0, None, TIMEOUT)


def test_other_recipes_get_a_third_of_the_steps_and_the_best_third_of_them_all() -> None:
    brief = [end(step=100, scores=(value,) * 40) for value in (0.2, 0.9, 0.5)]
    tried, following = run(plan(), end(step=300), *brief)
    assert [one.trial.most_steps for one in tried] == [None, 100, 100, 100]
    assert (following.variant, following.most_steps) == (2, None)
    tried, ended = run(plan(), end(step=300), *brief, end(scores=(1.0,) * 40))
    assert isinstance(ended, Chosen)
    assert (ended.trial, ended.variant) == (5, "recipe 2")
    assert ended.plan == trial_plan(plan(), tried[4].trial).id


def test_recipe_that_ended_by_itself_before_its_limit_is_not_trained_again() -> None:
    _, ended = run(plan(2), end(step=600), end(step=104, scores=(1.0,) * 40))
    assert isinstance(ended, Chosen)
    assert ended.trial == 2


def test_recipes_are_trained_in_full_at_once_where_a_third_of_the_steps_shows_nothing() -> None:
    _, following = run(plan(2), end(step=3 * SHORT - 3))
    assert following.most_steps is None


def test_a_later_trial_wins_only_by_more_than_the_error_of_the_difference() -> None:
    even = (1.0, 0.0) * 20
    slightly = (1.0, 0.0) * 19 + (1.0, 1.0)
    _, ended = run(plan(2), end(step=50, scores=even), end(scores=slightly))
    assert ended.trial == 1, "one prompt of forty is no difference"
    clearly = (1.0, 0.0) * 10 + (1.0, 1.0) * 10
    tried, ended = run(plan(2), end(step=50, scores=even), end(scores=clearly))
    assert ended.trial == 2
    gain, error = gain_of_search(tried, ended)
    assert (gain, round(error, 3)) == (0.25, 0.069)
    assert "+0.250 against trial 1" in ended.reason


def test_the_budget_ends_the_search_before_a_trial_that_it_does_not_suffice_for() -> None:
    _, ended = run(plan(4, budget=40.0), end(step=60, seconds=30.0), end(step=60, seconds=30.0))
    assert isinstance(ended, Chosen)
    assert "30 s, and 10 s of the budget are left" in ended.reason


def test_the_time_of_a_trial_is_limited_by_what_is_left_of_the_budget() -> None:
    _, second = run(plan(4, budget=100.0), end(step=60, seconds=30.0))
    assert second.timeout == 100.0
    _, third = run(plan(4, budget=100.0), end(step=60, seconds=30.0), end(step=60, seconds=35.0))
    assert third.timeout == 65.0


def test_a_failed_first_trial_does_not_end_the_search() -> None:
    failed = end(step=0, succeeded=False, scores=())
    tried, following = run(plan(2), failed)
    assert (following.variant, following.most_steps) == (1, None)
    _, ended = run(plan(2), failed, end())
    assert ended.trial == 2
    assert run(plan(2), failed, failed)[1] is None
    assert results(plan(2), tried, None)[0][-1] == "failed: not finite"


def test_models_that_were_not_measured_are_not_compared() -> None:
    _, ended = run(plan(), end(scores=()))
    assert ended.trial == 1
    assert "no model was measured" in ended.reason


@given(
    recipes=st.integers(2, 7),
    budget=st.floats(0, 500),
    ends=st.lists(
        st.tuples(st.integers(1, 900), st.floats(0.1, 90), st.lists(st.floats(0, 1), min_size=20, max_size=20), st.booleans()),
        min_size=20,
        max_size=20,
    ),
)
def test_a_search_always_ends_keeps_to_its_budget_and_chooses_a_trained_model(recipes: int, budget: float, ends: list[Any]) -> None:
    given_plan, tried = plan(recipes, budget), list[Tried]()
    while True:
        found = next_trial(given_plan, tried, len(tried) + 1, TIMEOUT)
        if not isinstance(found, Trial):
            break
        assert len(tried) < 2 * recipes
        assert found.number == 1 or found.timeout <= budget - spent(tried)
        step, seconds, scores, succeeded = ends[len(tried)]
        step = min(step, found.most_steps or step)
        tried.append(Tried(found, end(step, min(seconds, found.timeout), tuple(scores), succeeded)))
    assert spent(tried) <= budget + 1e-6
    assert (found is None) == (not any(one.succeeded for one in tried))
    if found is not None:
        assert tried[found.trial - 1].succeeded
        assert found == choice(given_plan, tried, found.reason.rpartition("; ")[2])
        assert [row[-1] for row in results(given_plan, tried, found)].count("chosen") == 1


def test_without_a_search_there_is_nothing_to_try() -> None:
    single = make_plan(Method.DPO, {})
    with pytest.raises(ValueError, match="no search"):
        next_trial(single, [], 1, TIMEOUT)
    with pytest.raises(ValueError, match="no search"):
        trial_plan(single, Trial(number=1, variant=0, attempt=1, timeout=1, reason=""))
    one = Tried(Trial(number=1, variant=0, attempt=1, timeout=1, reason=""), end(scores=(0.5, None)))
    assert difference(one, one) == (0.0, math.inf)
    assert single.id == make_plan(Method.DPO, {}).id != plan().id, "plans without a search keep their ids"
    older = single.model_dump(mode="json", exclude={"development", "answer_tokens", "search", "cross_validation"})
    assert single.id == digest(older), "so do plans without development prompts and a cross-validation"
    assert single.id != single.model_copy(update={"cross_validation": "c" * 64}).id
