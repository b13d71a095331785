"""Tests of the agreement between a judge and people, and of its interval."""

from __future__ import annotations

import random

import pytest
from scipy.stats import beta

from ratchet.rewards.judge.agreement import agreement, upper_bound


def test_the_agreement_is_the_probability_of_the_right_order() -> None:
    assert agreement([1.0, 1.0], [0.0, 0.0]).estimate == 1.0
    assert agreement([1.0, 0.0], [1.0, 0.0]).estimate == 0.5
    assert agreement([1.0, 0.5], [0.5, 0.0]).estimate == 0.875


def test_few_perfect_verdicts_prove_less_than_many() -> None:
    few, many = agreement([1.0] * 5, [0.0] * 5), agreement([1.0] * 100, [0.0] * 100)
    assert few.high == many.high == 1.0
    assert few.low < 0.75 < 0.97 < many.low


@pytest.mark.slow
@pytest.mark.parametrize("truth", [0.6, 0.8, 0.95])
def test_the_interval_contains_the_truth(truth: float) -> None:
    draw, inside = random.Random(1), 0
    share = 2 * truth - 1  # a verdict is right with certainty, or it is a coin toss
    for _ in range(300):
        right = [1.0 if draw.random() < share**0.5 else draw.random() for _ in range(40)]
        wrong = [0.0 if draw.random() < share**0.5 else draw.random() for _ in range(40)]
        expected = _truth(share**0.5)
        found = agreement(right, wrong)
        inside += found.low <= expected <= found.high
    assert inside >= 0.92 * 300


def _truth(sure: float) -> float:
    """Agreement of scores that are sure with this probability and else uniform."""
    return sure + (1 - sure) * sure * 1.0 + (1 - sure) ** 2 * 0.5 if sure < 1 else 1.0


@pytest.mark.parametrize(("hits", "n"), [(0, 300), (3, 300), (10, 50), (49, 50)])
def test_the_upper_bound_is_that_of_clopper_and_pearson(hits: int, n: int) -> None:
    assert upper_bound(hits, n) == pytest.approx(beta.ppf(0.95, hits + 1, n - hits), abs=1e-9)


def test_if_all_are_hits_the_bound_is_one() -> None:
    assert upper_bound(5, 5) == 1.0
