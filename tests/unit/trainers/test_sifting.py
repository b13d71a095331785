"""Tests of the selection among the answers of teachers."""

from __future__ import annotations

import numpy as np
import pytest

from ratchet.trainers.sifting import DOUBTED_LEAST, KNOWN_LEAST, Doubted, Sifted, is_worth, sift


def drawn(seed: int, gap: float, answers: int = 300, wrong: float = 0.2, bound: float = 0.3) -> tuple[Sifted, set[int], set[int]]:
    """Sift answers of a teacher that is wrong in a share `wrong`. `gap` is the difference of the likelihoods in standard deviations.

    Returns the result, and the rows with right and with wrong answers.
    """
    draw = np.random.default_rng(seed)
    known = draw.normal(-1, 0.5, 120).tolist()
    bad = set(range(round(answers * wrong)))
    doubted = [Doubted(n, bound, float(draw.normal(-1 - 0.5 * gap * (n in bad), 0.5))) for n in draw.permutation(answers).tolist()]
    return sift(known, doubted), {one.row for one in doubted} - bad, bad


def left_out(found: Sifted) -> set[int]:
    return {row for row, weight in found.weights.items() if weight is None}


def kept(found: Sifted) -> dict[int, float]:
    return {row: weight for row, weight in found.weights.items() if weight is not None}


@pytest.mark.parametrize("seed", range(5))
def test_wrong_answers_that_the_model_finds_unlikely_are_left_out(seed: int) -> None:
    found, right, wrong = drawn(seed, gap=5)
    out = left_out(found)
    assert len(out & wrong) > 0.9 * len(wrong)
    assert len(out & right) < 0.12 * len(right)
    assert found.left_out == len(out)
    assert min(kept(found).values()) > 1 - 2 * 0.3, "the others weigh more than before"


def test_a_model_that_cannot_tell_right_from_wrong_leaves_out_little() -> None:
    shares = [len(left_out(drawn(seed, gap=0)[0])) / 300 for seed in range(40)]
    assert np.mean(shares) < 0.07
    assert all(0.4 <= weight < 0.6 for weight in kept(drawn(0, gap=0)[0]).values())


def test_no_more_answers_are_left_out_than_are_expected_to_be_wrong() -> None:
    doubted = [Doubted(n, 0.1, -9.0 - n if n >= 85 else -0.5) for n in range(100)]
    found = sift([-1.0] * 60, doubted)
    assert left_out(found) == set(range(90, 100)), "the least likely ones"


def test_each_agreement_has_its_own_limit_and_weight() -> None:
    good = [Doubted(n, 0.02, -0.5) for n in range(100)]
    bad = [Doubted(100 + n, 0.3, -9.0 if n < 25 else -0.5) for n in range(100)]
    found = sift([-1.0] * 60, [*good, *bad])
    assert left_out(found) == set(range(100, 125))
    assert {kept(found)[n] for n in range(100)} == {1 - 2 * 0.02}, "nothing of the better one was left out"
    assert 1 - 2 * 0.3 < kept(found)[150] < 0.9


def test_nothing_is_left_out_if_more_is_unlikely_than_the_agreement_explains() -> None:
    found = sift([-1.0] * 60, [Doubted(n, 0.1, -3.0) for n in range(100)])
    assert (dict(found.weights), found.left_out) == ({}, 0)
    assert "100 of 100 are less likely" in found.why
    assert "another style" in found.why


def test_answers_without_a_likelihood_keep_their_place() -> None:
    found = sift([-1.0] * 60, [Doubted(n, 0.2, None) for n in range(30)])
    assert left_out(found) == set()
    assert list(kept(found).values()) == pytest.approx([0.6] * 30)


def test_too_few_known_right_answers_decide_nothing() -> None:
    found = sift([-1.0] * (KNOWN_LEAST - 1) + [None], [Doubted(n, 0.2, -9.0) for n in range(30)])
    assert (dict(found.weights), found.left_out) == ({}, 0)
    assert "39 known right answers can be compared with, and 40 are needed" in found.why


def test_the_order_changes_nothing() -> None:
    doubted = [Doubted(n, 0.25, -float(n % 7)) for n in range(60)]
    known = [-0.1 * n for n in range(50)]
    assert sift(known, doubted) == sift(known[::-1], doubted)
    again = sift(known, doubted[::-1])
    assert dict(again.weights) == dict(sift(known, doubted).weights)


def test_a_weight_is_never_below_that_of_the_agreement() -> None:
    doubted = [Doubted(n, 0.05 + 0.4 * (n % 2), -1.0) for n in range(60)]
    found = sift([-1.0] * 60, doubted)
    assert all(kept(found)[one.row] >= 1 - 2 * one.wrong for one in doubted)


def test_few_answers_are_not_worth_a_training() -> None:
    assert not is_worth(DOUBTED_LEAST - 1)
    assert is_worth(DOUBTED_LEAST)
