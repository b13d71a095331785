"""Tests of the statistics: the coverage of the intervals is measured in thousands of seeded simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gates.statistics import (
    clustered_mean,
    detectable_effect,
    difference_sequence,
    length_adjusted_interval,
    paired_interval,
    sequence_factor,
    share_difference_sequence,
)


def _slack(share: float, trials: int) -> float:
    """Three standard errors of an observed share, to allow for sampling error in the simulation."""
    return 3 * math.sqrt(share * (1 - share) / trials)


@pytest.mark.slow
@pytest.mark.parametrize("n", [20, 100, 400])
@pytest.mark.parametrize("losses", [0.1, 0.3])
def test_paired_interval_has_at_least_its_nominal_coverage(n: int, losses: float) -> None:
    draw, worlds, level = np.random.default_rng(n), 4000, 0.95
    truth = 0.3 - losses
    values = draw.choice([-1.0, 0.0, 1.0], p=[losses, 0.7 - losses, 0.3], size=(worlds, n))
    intervals = [paired_interval(list(row), level) for row in values]
    missed = np.mean([not (i.low <= truth <= i.high) for i in intervals if i])
    assert missed <= 0.05 + _slack(0.05, worlds) + 0.5 / n  # Student's t is exact only in the limit for three-valued data


def test_width_of_the_interval_for_equal_differences_depends_on_n() -> None:
    ten, thousand = paired_interval([0.0] * 10, 0.95), paired_interval([0.0] * 1000, 0.95)
    assert ten is not None
    assert thousand is not None
    assert ten.high == pytest.approx(1 - 0.025**0.1)
    assert thousand.high == pytest.approx(0.0037, abs=1e-4)
    assert paired_interval([0.5], 0.95) is None
    assert paired_interval([], 0.95) is None


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=50), st.floats(0.6, 0.99))
def test_interval_contains_its_estimate_and_widens_with_its_level(values: list[float], level: float) -> None:
    narrow, wide = paired_interval(values, level), paired_interval(values, (1 + level) / 2)
    assert narrow is not None
    assert wide is not None
    assert wide.low - 1e-9 <= narrow.low <= narrow.estimate <= narrow.high <= wide.high + 1e-9
    mirrored = paired_interval([-value for value in values], level)
    assert mirrored is not None
    assert mirrored.high == pytest.approx(-narrow.low)


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "tightest"), [(0.05, 20.0), (0.05, 100.0), (0.0125, 100.0)])
@pytest.mark.parametrize("share", [0.5, 0.9, 0.02])
def test_confidence_sequence_error_over_all_looks_is_at_most_alpha(alpha: float, tightest: float, share: float) -> None:
    """Both versions are equal, with a look after every 10 requests up to 2000.

    The share of simulations in which any look excludes zero is at most alpha.
    """
    draw, worlds, horizon = np.random.default_rng(7), 600, 2000
    looks = np.arange(10, horizon + 1, 10)
    missed = 0
    for _ in range(worlds):
        old, new = (np.cumsum(draw.random(horizon) < share)[looks - 1] for _ in range(2))
        for n, a, b in zip(looks, old, new, strict=True):
            interval = share_difference_sequence((int(a), int(n)), (int(b), int(n)), alpha, tightest)
            assert interval is not None
            if not interval.low <= 0 <= interval.high:
                missed += 1
                break
    assert missed / worlds <= alpha + _slack(alpha, worlds)


def _misses_zero_at_some_look(people: list[list[tuple[int, float]]], alpha: float) -> bool:
    """Whether the interval excludes zero at any of 75 looks, for two sides without a true difference."""
    looks = (difference_sequence(people[0][:n], people[1][:n], alpha, 40.0) for n in range(4, 301, 4))
    return any(interval is not None and not interval.low <= 0 <= interval.high for interval in looks)


@pytest.mark.slow
@pytest.mark.parametrize("repeat", [1, 5])
def test_repeated_ratings_of_the_same_users_keep_the_error_below_alpha(repeat: int) -> None:
    """All ratings of one user agree, so each user is one source of noise."""
    draw, worlds, alpha, missed = np.random.default_rng(3), 400, 0.05, 0
    for _ in range(worlds):
        people = [[(repeat, float(repeat * (draw.random() < 0.6))) for _ in range(300)] for _ in range(2)]
        missed += _misses_zero_at_some_look(people, alpha)
    assert missed / worlds <= alpha + _slack(alpha, worlds)


def test_user_with_many_ratings_does_not_dominate() -> None:
    """Each user counts once: 5000 ratings of one user move the interval hardly more than one rating does."""
    like = [(1, 1.0)] * 80 + [(1, 0.0)] * 20
    worse = [(1, 0.0)] * 95 + [(1, 1.0)] * 5
    for heavy in (0.0, 1.0):
        for others in (like, worse):
            often = difference_sequence(like, [*others, (5000, 5000 * heavy)], 0.05, 100.0)
            once = difference_sequence(like, [*others, (1, heavy)], 0.05, 100.0)
            assert often is not None
            assert once is not None
            assert often.estimate == once.estimate
            assert abs(often.low - once.low) < 0.01
    promoted = difference_sequence(like, [*worse, (5000, 5000.0)], 0.1, 100.0)
    assert promoted is not None
    assert promoted.high < 0


def test_interval_narrows_with_more_ratings_per_user() -> None:
    """The number of users stays 80; only the number of ratings per user grows."""
    widths = []
    for ratings in (1, 4, 16):
        draw = np.random.default_rng(5)
        sides = [[(ratings, float(draw.binomial(ratings, 0.6))) for _ in range(80)] for _ in range(2)]
        interval = difference_sequence(sides[0], sides[1], 0.1, 20.0)
        assert interval is not None
        widths.append(interval.high - interval.low)
    assert widths[1] < 0.6 * widths[0]
    assert widths[2] < 0.6 * widths[1]


@pytest.mark.slow
def test_users_with_unequal_numbers_of_ratings_keep_the_error_below_alpha() -> None:
    """About 5 % of the users give 200 equal ratings each. The error over all looks stays below alpha."""
    draw, worlds, alpha, missed = np.random.default_rng(4), 400, 0.05, 0
    for _ in range(worlds):
        often = np.where(draw.random((2, 300)) < 0.05, 200, 1)
        likes = draw.random((2, 300)) < 0.6
        people = [[(int(n), float(n * like)) for n, like in zip(often[side], likes[side], strict=True)] for side in range(2)]
        missed += _misses_zero_at_some_look(people, alpha)
    assert missed / worlds <= alpha + _slack(alpha, worlds)


def test_confidence_sequence_narrows_and_is_wider_than_a_fixed_interval() -> None:
    factors = [sequence_factor(t, 0.05, 100.0) / math.sqrt(t) for t in (10, 100, 1000, 10_000)]
    assert factors == sorted(factors, reverse=True)
    assert all(sequence_factor(t, 0.05, 100.0) > 1.96 for t in (1, 10, 100, 1e4, 1e6))


def test_no_estimate_with_fewer_than_two_clusters_per_side() -> None:
    assert clustered_mean([]) is None
    assert clustered_mean([(5, 5.0)]) is None
    assert clustered_mean([(5, 5.0), (0, 0.0)]) is None
    assert difference_sequence([(1, 1.0)], [(1, 1.0), (1, 0.0)], 0.05, 20.0) is None
    assert share_difference_sequence((0, 0), (1, 5), 0.05, 20.0) is None


def test_unanimous_ratings_keep_a_positive_variance() -> None:
    known = clustered_mean([(1, 1.0)] * 5)
    assert known is not None
    assert known[0] == 1.0
    assert known[1] > 0.005


def test_detectable_effect_is_detected_with_its_nominal_power() -> None:
    draw, n, worlds = np.random.default_rng(5), 200, 1500
    effect = detectable_effect(n, 0.95, power=0.8, deviation=0.5)
    found = [paired_interval(list(draw.normal(effect, 0.5, n)), 0.95) for _ in range(worlds)]
    power = np.mean([interval.low > 0 for interval in found if interval])
    assert abs(power - 0.8) < 0.04


def _judged(draw: np.random.Generator, quality: float, longer: float, n: int = 400) -> tuple[list[float], list[float | None]]:
    """Preferences of a judge that likes quality and length, and the differences in length."""
    lengths = draw.normal(longer, 1.0, n)
    chance = 1 / (1 + np.exp(-(quality + 0.8 * np.tanh(lengths))))
    return list((draw.random(n) < chance) * 2.0 - 1.0), list(lengths)


@pytest.mark.parametrize(("quality", "longer", "shown"), [(0.0, 1.0, (0.0, 0.1)), (0.6, 0.0, (0.9, 1.0)), (0.6, 0.5, (0.9, 1.0))])
def test_a_gain_at_equal_length_is_told_from_a_preference_for_length(quality: float, longer: float, shown: tuple[float, float]) -> None:
    draw = np.random.default_rng(1)
    intervals = [length_adjusted_interval(*_judged(draw, quality, longer), 0.95) for _ in range(200)]
    above = [interval.low > 0 for interval in intervals if interval]
    assert shown[0] <= np.mean(above) <= shown[1]


def test_adjustment_without_differences_in_length_is_the_paired_interval() -> None:
    values = [0.0, 1.0, -1.0, 1.0, 1.0] * 10
    plain, constant = paired_interval(values, 0.95), length_adjusted_interval(values, [7.0] * 50, 0.95)
    assert plain is not None
    assert constant is not None
    assert constant.low < 0, "the gain may come from the length, which is the same everywhere"
    assert length_adjusted_interval(values, [None] * 50, 0.95) is None
    unchanged = length_adjusted_interval(values, [0.0] * 50, 0.95)
    assert unchanged is not None
    assert (unchanged.estimate, unchanged.low) == (pytest.approx(plain.estimate), pytest.approx(plain.low, abs=1e-6))


def test_only_answers_with_a_length_are_adjusted() -> None:
    """Half of the gain is shown without a judge, and the judge's half comes from length alone."""
    draw = np.random.default_rng(3)
    judged, lengths = _judged(draw, 0.0, 1.0, 200)
    shown = [0.5] * 100 + [0.3] * 100
    interval = length_adjusted_interval([*judged, *shown], [*lengths, *[None] * 200], 0.95)
    assert interval is not None
    assert interval.estimate == pytest.approx(0.2, abs=0.1)


@pytest.mark.parametrize("lengths", [[5.0] * 30, [0.0] * 29 + [1e9], [-3.0, 4.0] * 15])
def test_adjusted_interval_is_finite_and_contains_its_estimate(lengths: list[float | None]) -> None:
    for values in ([1.0] * 30, [0.0] * 30, [1.0, -1.0] * 15):
        interval = length_adjusted_interval(values, lengths, 0.95)
        assert interval is None or math.isfinite(interval.low + interval.high)
