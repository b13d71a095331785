"""Tests of the statistics: the coverage of the intervals is measured in thousands of seeded simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.gates.statistics import (
    detectable_effect,
    length_adjusted_interval,
    paired_interval,
    paired_share_interval,
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
    assert mirrored.high <= -narrow.low + 1e-9, "only a skewed lower end is further away"


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0.1, 0.05, 0.02, 0.01, 0.005])
@pytest.mark.parametrize(("n", "most"), [(200, 0.01), (600, 0.01)])
def test_many_small_gains_do_not_hide_few_large_losses(lost: float, n: int, most: float) -> None:
    draw, worlds, level = np.random.default_rng(n), 3000, 1 - 2 * 0.0064
    gain = lost / (1 - lost)
    noise = draw.uniform(-gain / 2, gain / 2, (worlds, n))
    values = np.where(draw.random((worlds, n)) < lost, -1.0, gain + noise)  # mean 0
    passed = np.mean([found.low > 0 for row in values if (found := paired_interval(list(row), level))])
    assert passed <= most


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
    values = [0.0, 1.0, -1.0, 1.0, 0.0] * 10
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


def _missed(n: int, lost: float, gained: float, level: float) -> tuple[float, float]:
    """Return the probabilities that the interval for two shares lies above the true difference and below it, over all samples."""
    truth, above, below = gained - lost, 0.0, 0.0
    for up in range(n + 1):
        for down in range(n + 1 - up):
            ways = math.lgamma(n + 1) - math.lgamma(up + 1) - math.lgamma(down + 1) - math.lgamma(n - up - down + 1)
            chance = math.exp(ways + up * math.log(gained) + down * math.log(lost) + (n - up - down) * math.log(1 - gained - lost))
            if chance > 1e-7:
                found = paired_share_interval(up, down, n, level)
                assert found is not None
                above, below = above + chance * (found.low > truth), below + chance * (found.high < truth)
    return above, below


@pytest.mark.parametrize(("lost", "gained"), [(0.2001, 1e-6), (0.25, 0.05), (0.3, 0.1), (0.05, 0.05)])
def test_the_interval_of_two_shares_has_about_its_error_with_few_prompts(lost: float, gained: float) -> None:
    above, below = _missed(60, lost, gained, 0.98722)
    assert above <= 1.05 * 0.00639, "a loss of more than the margin would pass too often"
    assert below <= 2 * 0.00639


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.floats(0.6, 0.999))
def test_the_interval_of_two_shares_contains_its_estimate_and_is_symmetric(gained: int, lost: int, same: int, level: float) -> None:
    n = gained + lost + same
    found, mirrored = paired_share_interval(gained, lost, n, level), paired_share_interval(lost, gained, n, level)
    if n < 2:
        assert found is None
        return
    assert found is not None
    assert mirrored is not None
    assert -1 <= found.low < found.high <= 1
    assert found.low == pytest.approx(-mirrored.high, abs=1e-9)
