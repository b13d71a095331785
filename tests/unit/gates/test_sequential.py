"""Tests of the statistics of a rollout: the difference of ratings by people and steps, and the likelihood ratios of shares."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.serving import Arm
from ratchet.gates.sequential import (
    MOST_RATINGS,
    Difference,
    harm_evidence,
    mean_evidence,
    mirrored_difference,
    rating_difference,
    share_below,
    share_difference,
    share_evidence,
)

Rated = dict[str, tuple[int, float]]


def arm(tag: str, rated: Rated, linked: bool = True) -> Arm:
    n = sum(count for count, _ in rated.values())
    figures = {"errors": 0, "refused": 0, "sessions": n, "latency_p50_ms": 1.0, "latency_p95_ms": 2.0}
    return Arm(tag=tag, requests=n, rated=tuple(rated.values()), raters=tuple(rated) if linked else (), **figures)


def difference(*strata: tuple[Rated, Rated], linked: bool = True) -> Difference:
    found = rating_difference([(arm("old", old, linked), arm("new", new, linked)) for old, new in strata])
    assert found is not None
    return found


def crowd(draw: np.random.Generator, share: float, loss: float = 0.0, correlated: bool = True, people: int = 200) -> tuple[Rated, Rated]:
    """Return the ratings of both versions. Busy people are more satisfied, and each rating is assigned to the candidate by chance."""
    sides: tuple[Rated, Rated] = ({}, {})
    for number in range(people):
        n = int(min(400, 1000 / (number + 1))) + 1
        level = 0.9 - 0.4 * number / people if correlated else 0.7
        new = draw.binomial(n, share)
        for rated, count, chance in zip(sides, (n - new, new), (level, level - loss), strict=True):
            if count:
                rated[f"p{number}"] = (int(count), float(draw.binomial(count, chance)))
    return sides


def test_no_difference_without_two_raters_of_each_version() -> None:
    assert rating_difference([]) is None
    for old, new in (({}, {}), ({"a": (1, 1.0)}, {"a": (1, 1.0), "b": (1, 1.0)}), ({"a": (2, 1.0), "b": (1, 1.0)}, {})):
        assert rating_difference([(arm("old", old), arm("new", new))]) is None


def test_busy_people_who_are_more_satisfied_do_not_bias_a_small_share() -> None:
    draw = np.random.default_rng(1)
    found = [difference(crowd(draw, 0.05)) for _ in range(150)]
    mean, error = np.mean([one.estimate for one in found]), np.std([one.estimate for one in found]) / math.sqrt(150)
    assert abs(mean) < 3 * error + 0.002


def test_a_change_of_the_share_and_of_the_level_is_no_difference() -> None:
    """Satisfaction falls with time for both versions, while the candidate's share grows."""
    draw = np.random.default_rng(2)
    people = [f"p{number}" for number in range(100)]

    def step(share: int, level: float) -> tuple[Rated, Rated]:
        return tuple({one: (n, float(draw.binomial(n, level))) for one in people} for n in (20 - share, share))  # type: ignore[return-value]

    found = difference(step(1, 0.9), step(10, 0.5))
    assert abs(found.estimate) < 4 * math.sqrt(found.variance)
    assert math.sqrt(found.variance) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("share", "linked"), [(0.5, True), (0.2, True), (0.5, False)])
def test_the_variance_is_that_of_repeated_rollouts(share: float, linked: bool) -> None:
    """Without names of the raters, the variance is too large and never too small, because people are compared with themselves."""
    draw = np.random.default_rng(3)
    found = [difference(crowd(draw, share, loss=0.05), linked=linked) for _ in range(150)]
    true, told = np.var([one.estimate for one in found]), np.mean([one.variance for one in found])
    assert 0.75 * true < told
    assert not linked or told < 1.4 * true


def test_a_person_with_many_ratings_does_not_dominate() -> None:
    others = {f"p{number}": (1, float(number % 10 < 7)) for number in range(200)}
    for name in ("loud", None):
        many, few = (
            difference((others, {**others, "loud": (n, 0.0)}), linked=name is not None) for n in (5000, MOST_RATINGS if name else 10)
        )
        assert abs(many.estimate - few.estimate) < 0.15
        assert many.people < 60


def test_ratings_of_one_person_in_two_steps_are_one_source_of_noise() -> None:
    """Each person likes or dislikes the candidate in all steps, so a second step with the same people adds nothing."""
    draw = np.random.default_rng(4)
    new = {f"p{number}": (1, float(draw.random() < 0.6)) for number in range(100)}
    old = {f"p{number}": (1, float(draw.random() < 0.6)) for number in range(100)}
    once, twice = difference((old, new)), difference((old, new), (old, new))
    assert twice.estimate == pytest.approx(once.estimate)
    assert twice.variance == pytest.approx(once.variance, rel=0.1)
    apart = difference((old, new), (old, new), linked=False)
    assert apart.variance < 0.7 * twice.variance


def test_unanimous_ratings_keep_a_positive_variance() -> None:
    like = {f"p{number}": (1, 1.0) for number in range(5)}
    assert difference((like, like)).variance > 0.01


@pytest.mark.parametrize(
    ("old", "new"), [((0, 50), (0, 40)), ((3, 400), (9, 100)), ((20, 20), (5, 5)), ((1, 1), (0, 1)), ((7, 90), (50, 90))]
)
@pytest.mark.parametrize("margin", [0.02, 0.2])
def test_the_most_likely_share_under_a_margin_is_found(old: tuple[int, int], new: tuple[int, int], margin: float) -> None:
    grid = np.linspace(1e-9, 1 - margin - 1e-9, 40_001)
    parts = ((old[0], grid), (old[1] - old[0], 1 - grid), (new[0], grid + margin), (new[1] - new[0], 1 - grid - margin))
    best = sum(count * np.log(chance) for count, chance in parts)
    assert share_below(old, new, margin) == pytest.approx(float(grid[np.argmax(best)]), abs=1e-4)


def test_evidence_of_shares_has_the_sign_of_the_likelier_hypothesis() -> None:
    assert share_evidence((10, 1000), (10, 1000), 0.02) > 3
    assert share_evidence((10, 1000), (60, 1000), 0.02) < -10
    assert share_evidence((0, 0), (60, 1000), 0.02) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "base"), [(0.05, 0.01), *(pytest.param(*one, marks=pytest.mark.soak) for one in ((0.5, 0.01), (0.5, 0.0), (0.5, 0.2)))]
)
def test_equal_shares_look_harmful_at_some_look_no_more_often_than_alpha(share: float, base: float) -> None:
    draw, worlds, alpha, missed = np.random.default_rng(7), 600, 0.05, 0
    for _ in range(worlds):
        candidate, failed = draw.random(3000) < share, draw.random(3000) < base
        for n in range(50, 3001, 50):
            old, new = ((int(failed[:n][side].sum()), int(side.sum())) for side in (~candidate[:n], candidate[:n]))
            if harm_evidence([(old, new)], 0.02) >= math.log(1 / alpha):
                missed += 1
                break
    assert missed / worlds <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / worlds)


def test_a_version_that_always_fails_is_recognised_within_few_requests() -> None:
    assert harm_evidence([((0, 20), (10, 10))], 0.02) > 6
    assert harm_evidence([((0, 20), (0, 10))], 0.02) < 1
    assert harm_evidence([((0, 20), (10, 10))], 0.6) > 6


def test_difference_of_shares_is_averaged_over_strata() -> None:
    estimate, error = share_difference([((0, 5000), (0, 50)), ((50, 500), (50, 500))])
    assert estimate == 0
    assert 0 < error < 0.05
    assert share_difference([((0, 0), (1, 1))]) == (0.0, 0.0)


def test_mean_evidence_is_the_ratio_of_two_normal_likelihoods() -> None:
    def likelihood(mean: float) -> float:
        return -((0.01 - mean) ** 2) / (2 * 0.0004)

    assert mean_evidence(0.01, 0.0004, 0.05) == pytest.approx(likelihood(0.0) - likelihood(-0.05))


def test_mirrored_pairs_of_one_person_are_no_evidence() -> None:
    assert mirrored_difference([], 0.05) is None
    assert mirrored_difference([("p", 0.0)] * 500, 0.05) is None


def test_people_with_equal_numbers_of_pairs_count_fully_and_a_busy_one_does_not() -> None:
    even = mirrored_difference([(f"p{n % 10}", 0.0) for n in range(100)], 0.05)
    busy = mirrored_difference([("p", 0.0)] * 91 + [(f"p{n}", 0.0) for n in range(9)], 0.05)
    assert even is not None
    assert busy is not None
    assert (even.people, even.ratings) == (pytest.approx(10), 100)
    assert busy.people < 1.3


@pytest.mark.parametrize("margin", [0.02, 0.05, 0.2])
def test_pairs_without_any_difference_are_not_certain(margin: float) -> None:
    """A loss of the margin in prompts that are not asked yet looks the same in the first pairs."""
    found = mirrored_difference([(f"p{n % 10}", 0.0) for n in range(30)], margin)
    assert found is not None
    assert mean_evidence(found.estimate, found.variance, margin) == pytest.approx(margin * 30 / 2)


def test_a_loss_of_some_people_alone_makes_the_estimate_less_precise() -> None:
    spread = mirrored_difference([(f"p{n % 10}", -1.0 if n % 7 == 0 else 0.0) for n in range(200)], 0.05)
    of_one = mirrored_difference([(f"p{n % 10}", -1.0 if n % 10 == 0 else 0.0) for n in range(200)], 0.05)
    assert spread is not None
    assert of_one is not None
    assert of_one.variance > 3 * spread.variance


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(-1, 1)), min_size=2, max_size=60))
def test_the_order_of_pairs_changes_nothing_and_a_swap_of_the_versions_the_sign(pairs: list[tuple[str, float]]) -> None:
    found, turned = mirrored_difference(pairs, 0.1), mirrored_difference(pairs[::-1], 0.1)
    swapped = mirrored_difference([(person, -difference) for person, difference in pairs], 0.1)
    if found is None or turned is None or swapped is None:
        assert found is turned is swapped is None
        return
    assert turned.estimate == pytest.approx(found.estimate)
    assert (turned.variance, turned.people) == (pytest.approx(found.variance), pytest.approx(found.people))
    assert swapped.estimate == pytest.approx(-found.estimate)
    assert swapped.variance == pytest.approx(found.variance)
    assert found.variance >= 0.1 / len(pairs) * (1 - 1e-9)
