"""Tests of the order of GRPO's prompts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.data.datasets import is_mixed
from ratchet.trainers.prompt_order import ORDERS, Group, by_signal, uniform
from ratchet.trainers.recipes.grpo import GRPORecipe

PROBED = st.lists(st.sampled_from(["mixed", "equal", None]), min_size=1, max_size=30)


def drawn(probed: Sequence[str | None], n: int, steps: int, seed: int, signal: Callable[[int], bool]) -> list[Group]:
    """Return the groups of a run of `steps` steps with `n` prompts each. `signal` says which prompts have mixed rewards in the run."""
    groups: list[Group] = []
    for _ in range(steps):
        groups += [Group(prompt, signal(prompt)) for prompt in by_signal(probed, groups, n, seed)]
    return groups


@pytest.mark.parametrize(
    ("rewards", "signal"),
    [
        ([0.0, 1.0], True),
        ([1.0, 1.0], False),
        ([0.7, 0.7 + 1e-9], False),
        ([None, None], False),
        ([None, 1.0], False),
        ([0.0, None, 1.0], True),
    ],
)
def test_a_group_has_a_signal_if_two_scored_answers_differ(rewards: list[float | None], signal: bool) -> None:
    assert is_mixed(rewards) == signal


@given(PROBED, st.integers(1, 12), st.integers(0, 9), st.sampled_from([set(), {0}, {0, 2, 5}]))
def test_every_prompt_is_drawn_whatever_its_groups_show(probed: list[str | None], n: int, seed: int, mixed: set[int]) -> None:
    steps = -(-17 * len(probed) // n) + 1
    assert {prompt for prompt, _ in drawn(probed, n, steps, seed, mixed.__contains__)} == set(range(len(probed)))


@given(PROBED, st.integers(1, 40), st.integers(0, 9), st.integers(0, 6))
def test_a_run_that_resumes_continues_with_the_same_prompts(probed: list[str | None], n: int, seed: int, steps: int) -> None:
    groups = drawn(probed, n, steps, seed, lambda prompt: prompt % 3 == 0)
    chosen = by_signal(probed, groups, n, seed)
    assert by_signal(list(probed), [Group(*group) for group in groups], n, seed) == chosen
    assert len(chosen) == n
    assert len(set(chosen)) == min(n, len(probed))


def test_prompts_with_mixed_rewards_come_first_then_unknown_ones() -> None:
    probed = ["equal"] * 8 + [None] * 8 + ["mixed"] * 8
    assert {probed[one] for one in by_signal(probed, [], 8, 1)} == {"mixed"}
    groups = drawn(probed, 8, 8, 1, lambda _: True)
    assert "equal" not in {probed[prompt] for prompt, _ in groups[:16]}
    assert None in {probed[prompt] for prompt, _ in groups[8:16]}


def test_mixed_prompts_have_the_share_of_their_weights() -> None:
    """With a quarter of mixed prompts, a uniform order would give them a quarter of the groups."""
    probed = ["mixed"] * 50 + ["equal"] * 150
    found = Counter(probed[prompt] for prompt, _ in drawn(probed, 8, 200, 3, lambda prompt: prompt < 50))
    assert found["mixed"] > 0.75 * found.total()


def test_a_prompt_without_signal_waits_and_returns() -> None:
    probed = ["mixed"] * 20
    groups = drawn(probed, 4, 100, 5, lambda prompt: prompt != 7)
    at = [place for place, (prompt, _) in enumerate(groups) if prompt == 7]
    others = Counter(prompt for prompt, _ in groups)
    assert len(at) <= 0.25 * others[6]
    waits = [later - earlier for earlier, later in pairwise(at)]
    assert waits[0] < waits[-1]


def test_a_prompt_that_gains_signal_is_drawn_as_often_as_the_others() -> None:
    probed = ["equal"] + ["mixed"] * 9
    groups = drawn(probed, 2, 300, 5, lambda _: True)
    late = Counter(prompt for prompt, _ in groups[300:])
    assert late[0] >= 0.9 * max(late.values())


def test_more_groups_have_signal_than_in_a_uniform_order() -> None:
    """Of 280 prompts, most are nearly always answered right or wrong. The probe has four answers to each, and a group eight."""
    chance = random.Random(1)
    right = [chance.betavariate(0.15, 0.3) for _ in range(280)]
    probed = ["mixed" if 0 < sum(chance.random() < p for _ in range(4)) < 4 else "equal" for p in right]
    groups = drawn(probed, 8, 100, 1, lambda prompt: 0 < sum(chance.random() < right[prompt] for _ in range(8)) < 8)
    uniform = sum(1 - p**8 - (1 - p) ** 8 for p in right) / len(right)
    assert uniform < 0.45
    assert sum(signal for _, signal in groups) / len(groups) > 1.5 * uniform


def test_runs_with_other_seeds_have_other_orders() -> None:
    assert by_signal([None] * 30, [], 30, 1) != by_signal([None] * 30, [], 30, 2)


def test_unknown_values_of_the_probe_are_refused() -> None:
    with pytest.raises(ValueError, match="odd"):
        by_signal(["odd"], [], 1, 1)


def test_the_uniform_order_repeats_permutations_whatever_the_groups_show() -> None:
    groups: list[Group] = []
    for _ in range(15):
        groups += [Group(prompt, prompt == 0) for prompt in uniform(["mixed", *["equal"] * 9], groups, 4, 3)]
    drawn_in_order = [prompt for prompt, _ in groups]
    rounds = [drawn_in_order[at : at + 10] for at in range(0, 60, 10)]
    assert all(sorted(one) == list(range(10)) for one in rounds)
    assert len(set(map(tuple, rounds))) > 1


def test_every_order_of_a_recipe_exists() -> None:
    assert set(get_args(GRPORecipe.model_fields["prompt_order"].annotation)) == set(ORDERS)
