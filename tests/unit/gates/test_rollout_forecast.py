"""Tests of the forecast of a rollout: it counts people, and names a margin that rollouts then decide."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ratchet.contracts.loop import RolloutSettings
from ratchet.contracts.mirror import MIRROR_PAIRS
from ratchet.gates.rollout_forecast import deciding_share, forecast, information, pairs_needed, ratings_needed, time_needed
from ratchet.gates.sequential import mean_evidence, mirrored_difference

SETTINGS = RolloutSettings()


def crowd(people: int, each: int, spread: float = 0.0) -> list[tuple[int, float]]:
    """Return the ratings of users of whom `each` rated equally often, seven of ten times well on average."""
    draw = np.random.default_rng(1)
    return [(each, float(draw.binomial(each, min(1, max(0, draw.normal(0.7, spread)))))) for _ in range(people)]


def test_many_ratings_of_few_people_decide_nothing() -> None:
    few, many = forecast(SETTINGS, crowd(10, 400)), forecast(SETTINGS, crowd(400, 10))
    assert few is not None
    assert many is not None
    assert (few.ratings, many.ratings) == (4000, 4000)
    assert (few.enough_people, many.enough_people) == (False, True)
    assert few.effective == pytest.approx(10)


def test_users_as_the_unit_need_more_people() -> None:
    by_session = forecast(SETTINGS, crowd(200, 30, spread=0.2))
    by_user = forecast(SETTINGS.model_copy(update={"unit": "user"}), crowd(200, 30, spread=0.2))
    assert by_session is not None
    assert by_user is not None
    assert by_user.margin > 1.5 * by_session.margin
    assert by_user.effective == pytest.approx(by_session.effective / 2)
    assert not forecast(SETTINGS.model_copy(update={"unit": "user"}), crowd(30, 30)).enough_people  # type: ignore[union-attr]


def test_more_time_decides_a_smaller_margin_until_each_person_counts_in_full() -> None:
    rated = crowd(100, 20)
    once, twice, later = (forecast(SETTINGS, rated, times) for times in (1, 2, 16))
    assert once is not None
    assert twice is not None
    assert later is not None
    assert twice.margin == pytest.approx(once.margin / math.sqrt(2), rel=0.05)
    assert later.margin < twice.margin
    assert time_needed(SETTINGS.model_copy(update={"margin": 0.2}), rated) is not None
    assert time_needed(SETTINGS.model_copy(update={"margin": 0.001}), rated) is None


def test_no_forecast_without_raters() -> None:
    assert forecast(SETTINGS, []) is None
    assert forecast(SETTINGS, [(10, 5.0)]) is None
    assert ratings_needed(SETTINGS) > ratings_needed(SETTINGS.model_copy(update={"margin": 0.2})) > 0


def test_deciding_share_is_the_largest_below_100() -> None:
    assert deciding_share(SETTINGS) == 0.5
    assert deciding_share(SETTINGS.model_copy(update={"steps": (100.0,)})) == 0.95
    assert deciding_share(SETTINGS.model_copy(update={"steps": (100.0,), "holdback": 0.0})) == pytest.approx(0.999)


def test_information_decides_with_the_stated_probability() -> None:
    """A random walk with the drift of equal versions reaches the limit within that information in 80 percent of the cases."""
    draw, size, looks = np.random.default_rng(2), information(SETTINGS), 400
    paths = np.cumsum(draw.normal(size / looks / 2, math.sqrt(size / looks), (4000, looks)), axis=1)
    reached = float((paths.max(axis=1) >= math.log(1 / SETTINGS.beta)).mean())
    assert reached == pytest.approx(0.8, abs=0.04)


@pytest.mark.slow
@pytest.mark.parametrize("deviation", [0.0, 0.3, 0.6])
def test_the_forecast_of_mirrored_pairs_is_decided_by_four_of_five_equal_candidates(deviation: float) -> None:
    settings = RolloutSettings(margin=0.1)
    n, draw = pairs_needed(settings, deviation, 20), np.random.default_rng(5)
    decided = 0
    for _ in range(400):
        differences = np.round(np.clip(draw.normal(0, deviation, n), -1, 1), 6)
        pairs = [(f"p{number % 20}", float(one)) for number, one in enumerate(differences)]
        for looked in range(24, n + 1, 8):
            found = mirrored_difference(pairs[:looked], settings.margin)
            assert found is not None
            if looked >= MIRROR_PAIRS and mean_evidence(found.estimate, found.variance, settings.margin) >= math.log(1 / settings.beta):
                decided += 1
                break
    assert decided / 400 > 0.74
