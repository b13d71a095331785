"""Tests of the decision how long a run trains."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.trainers.length import (
    Measurement,
    accepts_many,
    cooldown_steps,
    cooling,
    decide,
    difference,
    is_as_good,
    mean,
    most_steps,
    points,
    share_of_rate,
    unmeasured_steps,
    worse_slices,
)

MOST = 1000
N = 60


def binary(step: int, share: float, cooled: bool = False, n: int = N) -> Measurement:
    """A measurement in which the first prompts are right. The right answers of a better model include those of a worse one."""
    return Measurement(step, tuple(float(i < round(share * n)) for i in range(n)), cooled)


def curve(*shares: float) -> list[Measurement]:
    return [binary(0, shares[0]), *(binary(step, share) for step, share in zip(points(MOST), shares[1:], strict=False))]


@given(st.integers(1, 100_000))
def test_the_points_double_and_leave_room_for_the_cooldown(most: int) -> None:
    found = points(most)
    assert found[0] >= 1
    assert list(found) == sorted(set(found))
    assert found[-1] + cooldown_steps(found[-1]) <= most + 1
    assert all(later <= 2 * earlier + 1 for earlier, later in itertools.pairwise(found))
    if most >= 100:
        assert found[-1] + cooldown_steps(found[-1]) >= 0.98 * most


def test_training_goes_on_while_the_scores_rise() -> None:
    rising = curve(0.2, 0.25, 0.3, 0.4, 0.5)
    assert decide(rising, [None] * N, MOST).action == "train"
    assert cooling(rising, [None] * N, MOST) is None


def test_training_ends_when_two_measurements_are_not_above_the_best() -> None:
    flat = curve(0.2, 0.4, 0.6, 0.6, 0.6)
    assert flat[-1].step == 104
    length = decide(flat, [None] * N, MOST)
    assert (length.action, length.kept) == ("cool", 104), "among equals, the shorter training is not preferred"
    assert decide(flat[:-1], [None] * N, MOST).action == "train", "one measurement may be unlucky"
    assert decide(curve(0.2, 0.6, 0.5, 0.5), [None] * N, MOST).action == "train", "a run does not end before a hundred steps"
    start, steps = cooling(flat, [None] * N, MOST) or (0, 0)
    assert start == flat[-1].step
    end = [*flat, binary(start + steps, 0.6, cooled=True)]
    assert decide(end, [None] * N, MOST).action == "end"
    assert cooling(end, [None] * N, MOST) == (start, steps), "a resumed run knows the same cooldown"


def test_answers_that_become_less_wrong_keep_a_run_going_and_decide_between_equal_scores() -> None:
    def less_wrong(one: Measurement, share: float) -> Measurement:
        return one._replace(agreement=tuple(share + 0.01 * (i % 3) for i in range(N)))

    flat = [binary(0, 0.4), *(binary(step, 0.4) for step in points(MOST)[:4])]
    assert decide(flat, [None] * N, MOST).action == "cool"
    rising = [less_wrong(one, 0.2 + 0.1 * i) for i, one in enumerate(flat)]
    assert decide(rising, [None] * N, MOST).action == "train"
    assert decide(rising, [None] * N, MOST).kept == flat[-1].step
    falling = [less_wrong(one, 0.9 - 0.1 * i) for i, one in enumerate(flat)]
    length = decide(falling, [None] * N, MOST)
    assert (length.action, length.kept) == ("cool", flat[1].step)
    worse = less_wrong(binary(52, 0.1), 0.9)
    assert not is_as_good(worse, less_wrong(flat[1], 0.2)), "agreement does not excuse wrong answers"
    assert is_as_good(less_wrong(binary(52, 0.4), 0.5), less_wrong(flat[1], 0.4))


def test_a_model_that_becomes_worse_is_not_cooled() -> None:
    length = decide(curve(0.2, 0.4, 0.7, 0.5, 0.3), [None] * N, MOST)
    assert (length.action, length.kept) == ("end", points(MOST)[1])
    assert "longer training became worse" in length.reason


def test_the_last_point_ends_a_run_that_still_rises() -> None:
    assert decide(curve(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8), [None] * N, MOST).action == "cool"


def test_the_better_model_is_kept_however_long_its_training() -> None:
    assert decide(curve(0.2, 0.5, 0.5, 0.5), [None] * N, MOST).kept == points(MOST)[2]
    assert decide(curve(0.2, 0.5, 0.48, 0.48), [None] * N, MOST).kept == points(MOST)[0]
    assert decide(curve(0.2, 0.5, 0.52), [None] * N, MOST).kept == points(MOST)[1]
    noisy = Measurement(points(MOST)[1], tuple(float(i % 2) for i in range(N)), agreement=(0.6, 0.4) * (N // 2))
    clearer = Measurement(points(MOST)[2], (0.0, *(float(i % 2 == 0) for i in range(1, N))), agreement=(0.7, 0.5) * (N // 2))
    gain, error = difference(clearer, noisy)
    assert -error < gain < 0
    assert is_as_good(clearer, noisy), "where scores hardly differ, the agreement counts"


def test_the_agreement_never_outweighs_a_shown_difference_of_the_scores() -> None:
    """One token may decide whether an answer is right, and the many others may become surer at the same time."""
    right, fewer = (1.0,) * 42 + (0.0,) * 18, (1.0,) * 30 + (0.0,) * 30
    one = Measurement(26, fewer, agreement=tuple(0.9 + 0.001 * (i % 2) for i in range(N)))
    other = Measurement(13, right, agreement=tuple(0.5 + 0.002 * (i % 3) for i in range(N)))
    assert not is_as_good(one, other)
    assert is_as_good(other, one)
    all_alike = Measurement(26, (1.0,) * N, agreement=(0.5,) * N)
    assert is_as_good(all_alike, Measurement(13, (0.0,) * N, agreement=(0.9,) * N))


def test_the_cooled_model_replaces_the_last_one_unless_it_is_worse() -> None:
    rising = curve(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    end = rising[-1].step + cooldown_steps(rising[-1].step)
    assert decide([*rising, binary(end, 0.8, cooled=True)], [None] * N, MOST).kept == end
    assert decide([*rising, binary(end, 0.7, cooled=True)], [None] * N, MOST).kept == rising[-1].step


def test_a_model_with_a_worse_slice_is_not_published() -> None:
    slices = ["a"] * 30 + ["b"] * 30
    start = Measurement(0, (0.0,) * 30 + (1.0,) * 30)
    good = Measurement(13, (1.0,) * 10 + (0.0,) * 20 + (1.0,) * 30)
    forgets = Measurement(26, (1.0,) * 30 + (1.0,) * 15 + (0.0,) * 15)
    assert worse_slices(forgets, start, slices) == ["b"]
    assert worse_slices(good, start, slices) == []
    assert decide([start, good, forgets], slices, MOST).kept == 13
    only = decide([start, forgets], slices, MOST)
    assert only.kept == 26
    assert "worse in a slice (b)" in only.reason


def test_one_of_several_slices_needs_a_larger_loss_than_a_single_one() -> None:
    start = (1.0,) * 24 + (0.0,) * 6
    after = (0.0,) * 4 + (1.0,) * 20 + (0.0,) * 6
    lost, error = difference(Measurement(0, start), Measurement(26, after))
    assert 2.0 < lost / error < 2.2
    assert worse_slices(Measurement(26, after), Measurement(0, start), ["a"] * 30) == ["a"]
    slices, others = [name for name in "abcd" for _ in range(30)], (1.0,) * 90
    assert worse_slices(Measurement(26, after + others), Measurement(0, start + others), slices) == [], "one of four slices, by chance"
    forgets = (0.0,) * 8 + (1.0,) * 16 + (0.0,) * 6
    assert worse_slices(Measurement(26, forgets + others), Measurement(0, start + others), slices) == ["a"]


def test_equal_models_rarely_have_a_worse_slice() -> None:
    draw, slices = random.Random(7), [str(i // 25) for i in range(200)]

    def answered() -> Measurement:
        return Measurement(26, tuple(float(draw.random() < 0.5) for _ in slices))

    found = sum(bool(worse_slices(answered(), answered(), slices)) for _ in range(2000))
    assert found <= 140, "6 %, as few prompts give it; without the allowance for eight slices, 23 %"


def test_small_slices_are_compared_by_their_losses_and_gains() -> None:
    slices = ["a"] * 51 + ["b"] * 9
    start = Measurement(0, (1.0,) * 51 + (1.0,) * 8 + (0.0,))
    assert worse_slices(Measurement(13, (1.0,) * 51 + (0.0,) * 6 + (1.0, 1.0, 0.0)), start, slices) == ["b"], "six losses, no gain"
    assert worse_slices(Measurement(13, (1.0,) * 51 + (0.0,) * 6 + (1.0, 1.0, 1.0)), start, slices) == [], "six losses, one gain"
    assert worse_slices(Measurement(13, (1.0,) * 51 + (0.0,) * 5 + (1.0, 1.0, 1.0, 0.0)), start, slices) == [], "five losses"
    two = ["a"] * 43 + ["c"] * 8 + ["b"] * 9
    assert worse_slices(Measurement(13, (1.0,) * 51 + (0.0,) * 6 + (1.0, 1.0, 0.0)), start, two) == [], "one of two slices, by chance"
    assert worse_slices(Measurement(13, (1.0,) * 51 + (0.0,) * 8 + (0.0,)), start, two) == ["b"]
    likelihood = Measurement(0, tuple(-1.0 for _ in range(N)))
    assert worse_slices(likelihood._replace(step=13, scores=(-0.5,) * 51 + (-1.001,) * 9), likelihood, slices) == []


def test_prompts_without_a_score_are_left_out() -> None:
    one, other = Measurement(1, (1.0, None, 1.0, 0.0)), Measurement(2, (0.0, 1.0, None, 0.0))
    assert difference(one, other)[0] == 0.5
    assert mean(one) == pytest.approx(2 / 3)
    assert difference(Measurement(1, (None,)), Measurement(2, (1.0,))) == (0.0, float("inf"))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_what_is_kept_is_never_withdrawn_for_another_earlier_model(shares: list[float], seed: int) -> None:
    """A checkpoint carries only the weights of the model that would be published. So a later measurement may only choose itself."""
    draw = random.Random(seed)
    slices = [draw.choice(["a", "b", None]) for _ in range(N)]
    steps = points(MOST)
    measured = [Measurement(0, tuple(float(draw.random() < 0.5) for _ in range(N)))]
    before = 0
    for step, share in zip(steps, shares, strict=False):
        measured.append(Measurement(step, tuple(float(draw.random() < share) for _ in range(N))))
        kept = decide(measured, slices, MOST).kept
        assert kept in (before, step)
        before = kept


def test_the_rate_rises_stays_and_falls() -> None:
    assert [share_of_rate(step, 4, None) for step in (0, 2, 4, 900)] == [0.0, 0.5, 1.0, 1.0]
    assert [share_of_rate(step, 0, (100, 20)) for step in (99, 100, 110, 119, 120, 200)] == pytest.approx([1, 1, 0.5, 0.05, 0, 0])


def test_limits_follow_the_size_of_the_training_set() -> None:
    assert most_steps(900, 32) == 1000
    assert most_steps(50_000, 32) == 6250
    assert unmeasured_steps(900, 32, 1000) == 85
    assert unmeasured_steps(10, 32, 1000) == 32
    assert unmeasured_steps(900, 32, 50) == 50


def test_the_cooled_model_wins_a_tie() -> None:
    flat = curve(0.2, 0.6, 0.5, 0.5, 0.5)
    assert decide(flat, [None] * N, MOST).kept == points(MOST)[0]
    assert decide([*flat, binary(125, 0.6, cooled=True)], [None] * N, MOST).kept == 125
    assert decide([*flat, binary(125, 0.58, cooled=True)], [None] * N, MOST).kept == points(MOST)[0]


@pytest.mark.parametrize(
    ("answers", "scores", "many"),
    [
        (["a"] * 10, [1.0] * 10, False),
        (["a"] * 9 + [" a\n"], [1.0] * 10, False),
        (["a"] * 9 + ["b"], [1.0] * 10, False),
        (["a"] * 8 + ["b", "c"], [1.0] * 10, False),
        (["a"] * 6 + ["b", "c", "d", "e"], [1.0] * 10, True),
        (["b"] * 10, [0.0] * 10, False),
        (["b"] * 10, [None] * 10, False),
    ],
)
def test_a_scorer_accepts_many_answers_if_right_ones_differ_from_the_known_one(
    answers: list[str], scores: list[float | None], many: bool
) -> None:
    assert accepts_many(scores, answers, ["a"] * 10) is many
    assert accepts_many(scores, answers, [None] * 10) is False


def test_the_more_answers_are_known_the_smaller_a_share_of_others_is_shown() -> None:
    answers = ["a"] * 8 + ["b"] * 2
    assert [accepts_many([1.0] * 10 * n, answers * n, ["a"] * 10 * n) for n in (1, 5, 500)] == [False, True, True]
    assert not accepts_many([1.0] * 5000, (["a"] * 9 + ["b"]) * 500, ["a"] * 5000)
