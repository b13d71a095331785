"""Tests of the checkpoint interval with the least expected loss.

It is compared with the closed form and with a simulation of interruptions, and its limits are checked.
"""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.trainers.save_interval import (
    FIRST,
    FIXED_FIRST,
    MOST_SECONDS,
    Cadence,
    best_seconds,
    fixed_interval,
    grace_shortfall,
    time_between,
)


def test_the_interval_follows_youngs_formula_if_saves_are_cheap() -> None:
    assert best_seconds(1.0, 1e6) == pytest.approx(math.sqrt(2e6), rel=0.01)


@given(st.floats(0.01, 1e4), st.floats(0.01, 1e6))
def test_the_interval_is_positive_and_at_most_the_time_between_interruptions(cost: float, between: float) -> None:
    assert 0 < best_seconds(cost, between) <= between * 1.001


@pytest.mark.parametrize("cost", [0.6, 1.0, 1.5])
def test_the_interval_for_very_expensive_saves(cost: float) -> None:
    """Daly's estimate holds up to a cost of twice the time between interruptions, where it is close to that time."""
    root = math.sqrt(cost / 2)
    assert best_seconds(cost, 1.0) == pytest.approx(2 * root * (1 + root / 3 + root**2 / 9) - cost)
    assert best_seconds(2.5, 1.0) == 1.0


def test_a_slow_first_save_does_not_count_as_the_cost_of_a_save() -> None:
    cadence = Cadence(between=3600)
    cadence.due(1.0)
    cadence.saved(90.0)
    cadence.saved(4.0)
    assert cadence.steps == round(best_seconds(4.0, 3600))
    for cost in (5.0, 6.0):
        cadence.saved(cost)
    assert cadence.steps == round(best_seconds(5.5, 3600))


def useful(interval: float, cost: float, between: float, seed: int = 3) -> float:
    """Return the fraction of time that became saved work, in a simulation with 4000 interruptions."""
    draw = random.Random(seed)
    kept = spent = 0.0
    for _ in range(4000):
        life = draw.expovariate(1 / between)
        kept += interval * (life // (interval + cost))
        spent += life
    return kept / spent


@pytest.mark.parametrize(("cost", "between"), [(1.0, 200.0), (5.0, 600.0), (30.0, 7200.0)])
def test_no_other_interval_saves_much_more_work(cost: float, between: float) -> None:
    best = useful(best_seconds(cost, between), cost, between)
    others = [useful(best_seconds(cost, between) * factor, cost, between) for factor in (0.2, 0.5, 0.8, 1.25, 2, 5)]
    assert best >= max(others) - 0.005
    assert best > others[0] + 0.02, "the interval must make a difference"
    assert best > others[-1] + 0.02


def test_observed_interruptions_outweigh_the_declared_mean() -> None:
    day = 86_400.0
    assert time_between(day, 0, 0) == day
    assert time_between(day, 3600, 9) < day / 9


def test_the_first_save_measures_the_cost_for_later_saves() -> None:
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


@pytest.mark.parametrize(("step", "save", "warned"), [(80.0, 30.0, False), (80.1, 30.0, True), (122.87, 21.5, True)])
def test_a_step_and_a_save_that_exceed_the_grace_period_are_reported(step: float, save: float, warned: bool) -> None:
    said = grace_shortfall(step, save, 110.0)
    assert bool(said) == warned
    if said:
        assert "grace period of 110 s" in said
        assert "lower save_every" in said


def test_an_interval_that_is_fixed_for_an_incarnation_uses_the_measurements_of_the_earlier_ones() -> None:
    assert fixed_interval([], [], 3600.0) == FIXED_FIRST
    assert fixed_interval([10.0], [], 3600.0, multiple=4) == 12
    assert fixed_interval([], [20.0], 3600.0) == FIXED_FIRST
    expected = best_seconds(21.5, 4 * 3600.0) / 122.87
    assert fixed_interval([900.0, 122.87, 122.87], [60.0, 21.5, 21.5], 4 * 3600.0) == round(expected), "the first step includes compilation"
    assert fixed_interval([122.87], [21.5], 4 * 3600.0, multiple=5) == 10
    assert fixed_interval([1e4], [1.0], 3600.0) == 1
