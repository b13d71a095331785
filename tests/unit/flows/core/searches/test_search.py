"""Tests which recipe a search tries next, how it keeps to its budget, and which model it chooses."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.jobs.search import Chosen, Trial, TrialEnd, trial_plan
from ratchet.contracts.jobs.training import Method, Search, TrainingPlan, Variant
from ratchet.flows.core.searches.search import CHANCE, SHORT, Tried, choice, demanded, difference, next_trial, spent
from ratchet.flows.core.searches.search_results import gain_of_search, results
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


def trials(*scores: Any) -> list[Tried]:
    """Return full trials with these scores, of the recipes in order."""
    return [
        Tried(Trial(number=n, variant=n - 1, attempt=n, timeout=TIMEOUT, reason="in full"), end(scores=tuple(one)))
        for n, one in enumerate(scores, 1)
    ]


def drawn(draw: random.Random, quality: float, prompts: int) -> list[float]:
    """Return the scores of a model that answers each prompt right with probability `quality`."""
    return [float(draw.random() < quality) for _ in range(prompts)]


@pytest.mark.parametrize("recipes", [2, 3, 6])
def test_equal_recipes_replace_trial_1_as_rarely_as_a_single_one_does(recipes: int) -> None:
    searches, prompts, draw = 1500, 40, random.Random(f"equal {recipes}")
    given_plan, left, above = plan(recipes), 0, 0
    for _ in range(searches):
        tried = trials(*(drawn(draw, 0.6, prompts) for _ in range(recipes)))
        found = choice(given_plan, tried, "every recipe was tried")
        left += found is not None and found.trial != 1
        above += any(gain > error for gain, error in (difference(one, tried[0]) for one in tried[1:]))
    spread = math.sqrt(CHANCE * (1 - CHANCE) / searches)
    assert left / searches <= CHANCE + 3 * spread
    assert recipes < 6 or above / searches > 0.35, "one standard error from each of five others is no protection"


def test_a_clearly_better_recipe_wins_among_equal_ones() -> None:
    draw, won = random.Random("better"), 0
    for _ in range(200):
        tried = trials(*(drawn(draw, 0.85 if n == 3 else 0.5, 60) for n in range(6)))
        found = choice(plan(6), tried, "every recipe was tried")
        won += found is not None and found.variant == "recipe 3"
    assert won >= 190


def test_the_demanded_gain_grows_with_the_number_of_trials() -> None:
    assert [round(demanded(compared), 2) for compared in (2, 3, 6, 8)] == [1.0, 1.41, 1.86, 2.0]
    assert round(CHANCE, 3) == 0.159
    with pytest.raises(ValueError, match="1 trials cannot be compared; at least two"):
        demanded(1)


def test_only_trials_with_scores_count_as_compared() -> None:
    even, better = (1.0, 0.0) * 20, (1.0, 0.0) * 15 + (1.0, 1.0) * 4 + (0.0, 0.0)
    gain, error = difference(*reversed(trials(even, better)))
    assert 1.0 < gain / error < demanded(3)
    failed = Tried(Trial(number=3, variant=2, attempt=3, timeout=TIMEOUT, reason="in full"), end(scores=(), succeeded=False))
    two = choice(plan(3), [*trials(even, better), failed], "every recipe was tried")
    three = choice(plan(3), trials(even, better, even), "every recipe was tried")
    assert two is not None
    assert three is not None
    assert (two.trial, three.trial) == (2, 1)
    assert "2 trials were compared, so a gain had to exceed 1.00 standard errors" in two.reason
    assert "trial 2, differs by +0.075 (standard error 0.055); 3 trials were compared" in three.reason


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
    assert results(plan(2), tried, None)[0][-2:] == ("30", "failed: not finite")


def test_models_that_were_not_measured_are_not_compared() -> None:
    _, ended = run(plan(), end(scores=()))
    assert ended.trial == 1
    assert "no model was measured" in ended.reason


@pytest.mark.slow
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
        assert sum(row[-1].startswith("chosen") for row in results(given_plan, tried, found)) == 1


def test_without_a_search_there_is_nothing_to_try() -> None:
    single = make_plan(Method.DPO, {})
    with pytest.raises(ValueError, match="no search"):
        next_trial(single, [], 1, TIMEOUT)
    with pytest.raises(ValueError, match="no search"):
        trial_plan(single, Trial(number=1, variant=0, attempt=1, timeout=1, reason=""))
    one = Tried(Trial(number=1, variant=0, attempt=1, timeout=1, reason=""), end(scores=(0.5, None)))
    assert difference(one, one) == (0.0, math.inf)
    assert single.id == make_plan(Method.DPO, {}).id != plan().id
    assert single.id != single.model_copy(update={"cross_validation": "c" * 64}).id
