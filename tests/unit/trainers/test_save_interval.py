"""The checkpoint interval that loses least: against the closed form, against a simulation of interruptions, and in its bounds."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.save_interval import FIRST, MOST_SECONDS, Cadence, best_seconds, time_between


def test_it_is_youngs_where_saving_is_cheap() -> None:
    assert best_seconds(1.0, 1e6) == pytest.approx(math.sqrt(2e6), rel=0.01)


@given(st.floats(0.01, 1e4), st.floats(0.01, 1e6))
def test_it_is_shorter_than_the_time_between_interruptions_and_never_nothing(cost: float, between: float) -> None:
    assert 0 < best_seconds(cost, between) <= between * 1.001


@pytest.mark.parametrize("cost", [0.6, 1.0, 1.5])
def test_a_save_that_costs_most_of_a_life_is_still_weighed(cost: float) -> None:
    """Daly's estimate holds up to a cost of twice the time between interruptions: just there it comes to about that time."""
    root = math.sqrt(cost / 2)
    assert best_seconds(cost, 1.0) == pytest.approx(2 * root * (1 + root / 3 + root**2 / 9) - cost)
    assert best_seconds(2.5, 1.0) == 1.0


def test_a_cold_first_save_is_not_what_saves_cost() -> None:
    cadence = Cadence(between=3600)
    cadence.due(1.0)
    cadence.saved(90.0)
    cadence.saved(4.0)
    assert cadence.steps == round(best_seconds(4.0, 3600))
    for cost in (5.0, 6.0):
        cadence.saved(cost)
    assert cadence.steps == round(best_seconds(5.5, 3600))


def useful(interval: float, cost: float, between: float, seed: int = 3) -> float:
    """Share of time that became kept work, in a simulated life of many interruptions."""
    draw = random.Random(seed)
    kept = spent = 0.0
    for _ in range(4000):
        life = draw.expovariate(1 / between)
        kept += interval * (life // (interval + cost))
        spent += life
    return kept / spent


@pytest.mark.parametrize(("cost", "between"), [(1.0, 200.0), (5.0, 600.0), (30.0, 7200.0)])
def test_no_other_interval_keeps_notably_more(cost: float, between: float) -> None:
    best = useful(best_seconds(cost, between), cost, between)
    others = [useful(best_seconds(cost, between) * factor, cost, between) for factor in (0.2, 0.5, 0.8, 1.25, 2, 5)]
    assert best >= max(others) - 0.005
    assert best > others[0] + 0.02, "or the interval hardly mattered"
    assert best > others[-1] + 0.02


def test_what_was_observed_outweighs_what_was_declared() -> None:
    day = 86_400.0
    assert time_between(day, 0, 0) == day
    assert time_between(day, 3600, 9) < day / 9


def test_the_first_save_measures_and_the_next_follow_it() -> None:
    cadence = Cadence(between=3600)
    assert [cadence.due(2.0) for _ in range(FIRST)] == [False] * (FIRST - 1) + [True]
    cadence.saved(10.0)
    assert cadence.steps == round(best_seconds(10.0, 3600) / 2.0)
    said = [cadence.due(2.0) for _ in range(cadence.steps)]
    assert said == [False] * (len(said) - 1) + [True]
    slow = Cadence(between=10.0)
    slow.due(60.0)
    slow.saved(1.0)
    assert slow.steps == 1
    rare = Cadence(between=1e12)
    rare.due(1.0)
    rare.saved(10.0)
    assert rare.steps == MOST_SECONDS
