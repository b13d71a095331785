"""Tests of the boundaries of several looks: together they spend the error of one test, the earlier ones hardly any of it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.gates.boundaries import error_of_look, spent
from ratchet.gates.statistics import normal_quantile

ERROR = 1 - 0.95 ** (1 / 8)
EQUAL = (120, 240, 360, 480, 600)


def errors(sizes: tuple[int, ...], planned: int, error: float = ERROR) -> list[float]:
    """Return the error of each look; the last one ends the evaluation."""
    return [error_of_look(sizes[: place + 1], planned, error, place == len(sizes) - 1) for place in range(len(sizes))]


def crossed(sizes: tuple[int, ...], planned: int, error: float, worlds: int = 400_000) -> float:
    """Return the share of simulated tests without an effect that cross a boundary at any look."""
    steps = np.diff(sizes, prepend=0)
    sums = np.cumsum(np.random.default_rng(1).normal(size=(worlds, len(sizes))) * np.sqrt(steps), axis=1) / np.sqrt(sizes)
    return float((sums > [normal_quantile(1 - one) for one in errors(sizes, planned, error)]).any(axis=1).mean())


@given(st.floats(0, 1), st.floats(0, 1), st.floats(1e-6, 0.4))
def test_the_error_is_spent_from_none_to_all_of_it(one: float, other: float, error: float) -> None:
    first, second = sorted((one, other))
    assert 0 <= spent(first, error) <= spent(second, error) <= error
    assert spent(0, error) == 0
    assert spent(1, error) == error


@given(st.integers(2, 5000), st.floats(1e-6, 0.4))
def test_one_look_has_the_whole_error(size: int, error: float) -> None:
    assert error_of_look((size,), size, error, last=True) == error


def test_boundaries_fall_and_the_last_look_keeps_nearly_all_of_the_error() -> None:
    found = errors(EQUAL, 600)
    assert all(5 * before < after for before, after in pairwise(found)), "the boundaries fall from look to look"
    assert 0.98 * ERROR < found[-1] < ERROR


@pytest.mark.parametrize(
    ("sizes", "planned"), [(EQUAL, 600), ((40, 80, 120, 160, 200), 200), ((300, 310, 590), 600), ((100, 200, 300, 400, 450), 600)]
)
@pytest.mark.parametrize("error", [ERROR, 0.05])
def test_all_looks_together_have_the_error(sizes: tuple[int, ...], planned: int, error: float) -> None:
    found = crossed(sizes, planned, error)
    assert found == pytest.approx(error, abs=4 * (error / 400_000) ** 0.5)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=5), st.integers(0, 100), st.floats(0.002, 0.06))
def test_no_sizes_spend_more_than_the_error(batches: list[int], missing: int, error: float) -> None:
    sizes = tuple(int(one) for one in np.cumsum(batches))
    assert crossed(sizes, sizes[-1] + missing, error, 40_000) < error + 5 * (error / 40_000) ** 0.5
    assert max(errors(sizes, sizes[-1] + missing, error)) <= error * (1 + 1e-9)


def test_a_look_without_new_observations_counts_for_nothing() -> None:
    assert error_of_look((0, 120, 120, 240), 600, ERROR, last=False) == error_of_look((120, 240), 600, ERROR, last=False)
    assert error_of_look((600, 600), 600, ERROR, last=True) == ERROR


def test_no_observation_has_no_boundary() -> None:
    with pytest.raises(ValueError, match="without observations"):
        error_of_look((0, 0), 600, ERROR, last=False)
    assert error_of_look((2,), 100_000, 0.0001, last=False) > 0, "the confidence level of an early look stays below 1"
