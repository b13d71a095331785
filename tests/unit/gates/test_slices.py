"""Tests of the comparison of slices: noise in many slices is not a loss, a large loss in one is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.evaluation import Comparison
from ratchet.gates.slices import losing
from ratchet.gates.statistics import paired_interval
from tests.unit.gates.reports import comparison

MARGIN = 0.1


def compared(draw: np.random.Generator, gains: list[float], n: int) -> list[Comparison]:
    """Return one comparison per gain, over `n` differences of which 0.3, or in a slice with a large loss 0.45, are not 0."""
    found = []
    for number, gain in enumerate(gains):
        discordance = max(0.3, abs(gain) + 0.05)
        up, down = (discordance + gain) / 2, (discordance - gain) / 2
        interval = paired_interval(draw.choice([-1.0, 0.0, 1.0], p=[down, 1 - up - down, up], size=n), 0.99)
        assert interval is not None
        found.append(Comparison(name=f"slice:{number}", n=n, champion=0.5, candidate=0.5 + interval.estimate, difference=interval))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, 40])
@pytest.mark.parametrize("gain", [0.0, 0.05])
def test_noise_rarely_looks_like_a_loss(count: int, gain: float) -> None:
    draw = np.random.default_rng(count)
    held = sum(bool(losing(compared(draw, [gain] * count, 25), MARGIN)) for _ in range(150))
    assert held / 150 <= 0.05 + 3 * (0.05 * 0.95 / 150) ** 0.5


@pytest.mark.parametrize("count", [1, 2, 10, 40])
def test_large_loss_in_one_slice_is_found(count: int) -> None:
    draw, found = np.random.default_rng(count), 0
    for _ in range(60):
        slices = compared(draw, [-0.4, *[0.05] * (count - 1)], 25)
        found += slices[0] in losing(slices, MARGIN)
    assert found / 60 >= 0.75


@given(st.lists(st.tuples(st.floats(-0.5, 0.5), st.floats(0.001, 0.5), st.integers(2, 500)), min_size=1, max_size=20))
def test_only_losses_beyond_the_margin_are_found_largest_first(given_slices: list[tuple[float, float, int]]) -> None:
    slices = [comparison(f"slice:{at}", middle - half, middle + half, n=n) for at, (middle, half, n) in enumerate(given_slices)]
    estimates = [one.difference.estimate for one in losing(slices, MARGIN)]
    assert all(estimate < -MARGIN for estimate in estimates)
    assert estimates == sorted(estimates)
