"""Tests of the cross-validation: folds that share no near-duplicates, pooled scores, and the chosen number of steps."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.data.datasets import CROSS_VALIDATED_LEAST
from ratchet.trainers.cross_validation import (
    ENOUGH,
    MOST,
    choose,
    folds_of,
    may_have_folds,
    most_folds_of_run,
    number_of_folds,
    pooled,
)
from ratchet.trainers.length import Measurement, cooldown_steps
from ratchet.trainers.recipes.dpo import DPORecipe
from ratchet.trainers.recipes.grpo import GRPORecipe
from ratchet.trainers.recipes.sft import SFTRecipe

CLUSTERS = st.dictionaries(st.integers(0, 400).map("p{}".format), st.integers(0, 60).map("c{}".format), max_size=120)


@pytest.mark.slow
@given(CLUSTERS, st.data(), st.integers(2, 6))
def test_folds_are_disjoint_and_hold_whole_clusters(clusters: dict[str, str], data: st.DataObject, k: int) -> None:
    scorable = data.draw(st.sets(st.sampled_from(sorted(clusters)))) if clusters else set()
    able = {clusters[prompt] for prompt in scorable}
    folds = folds_of(clusters, scorable, k, "s")
    assert bool(folds) == (len(able) >= CROSS_VALIDATED_LEAST)
    for one, other in itertools.combinations(folds, 2):
        assert not {clusters[p] for p in one.held} & {clusters[p] for p in other.held}, (
            "near-duplicates of a measured prompt are not trained on"
        )
    for fold in folds:
        held = {clusters[prompt] for prompt in fold.held}
        assert fold.held == {prompt for prompt, cluster in clusters.items() if cluster in held}
        assert set(fold.measured) <= scorable & fold.held
        assert sorted(clusters[prompt] for prompt in fold.measured) == sorted(held), "one prompt of each cluster is measured"
    if folds:  # of at most 61 clusters, none is left out
        assert {clusters[prompt] for fold in folds for prompt in fold.measured} == able
        sizes = [len(fold.measured) for fold in folds]
        assert max(sizes) - min(sizes) <= 1


def test_folds_do_not_depend_on_the_order_of_prompts_and_measure_a_limited_number() -> None:
    clusters = {f"p{n}": f"c{n}" for n in range(2 * MOST)}
    folds = folds_of(clusters, list(clusters), 4, "s")
    assert folds == folds_of(dict(reversed(clusters.items())), list(reversed(clusters)), 4, "s")
    assert [len(fold.measured) for fold in folds] == [2 * MOST // 4]
    many = folds_of({f"p{n}": f"c{n}" for n in range(20 * MOST)}, [f"p{n}" for n in range(20 * MOST)], 4, "s")
    assert [len(fold.measured) for fold in many] == [len(fold.held) for fold in many] == [MOST], "the others are trained on in every fold"


def test_another_cycle_measures_other_prompts() -> None:
    clusters = {f"p{n}": f"c{n}" for n in range(800)}
    one, other = (set(folds_of(clusters, list(clusters), 4, salt)[0].measured) for salt in ("7", "8"))
    assert len(one & other) < len(one) / 2


@pytest.mark.slow
@given(st.integers(0, 3000), st.integers(0, 10))
def test_no_more_folds_are_trained_than_are_needed_to_measure_enough_prompts(prompts: int, folds: int) -> None:
    clusters = {f"p{n}": f"c{n}" for n in range(prompts)}
    found = folds_of(clusters, list(clusters), folds, "s")
    assert len(found) == number_of_folds(folds, prompts)
    measured = [len(fold.measured) for fold in found]
    if found:
        assert len(found) == folds or sum(measured) >= ENOUGH
        assert sum(measured[:-1]) < ENOUGH + len(measured), "one fold less would not have been enough"


@pytest.mark.parametrize("folds", [0, 1])
def test_fewer_than_two_folds_are_none(folds: int) -> None:
    clusters = {f"p{n}": f"c{n}" for n in range(100)}
    assert folds_of(clusters, list(clusters), folds, "s") == ()


def measured(step: int, right: int, of: int) -> Measurement:
    return Measurement(step, tuple(float(i < right) for i in range(of)), agreement=tuple(float(i < right) for i in range(of)))


def test_scores_are_pooled_at_the_steps_that_all_folds_reached() -> None:
    one = [measured(step, 5, 10) for step in (0, 13, 26, 52)]
    other = [measured(step, 3, 8) for step in (0, 13, 26)]
    together = pooled([one, other])
    assert [found.step for found in together] == [0, 13, 26]
    assert all(len(found.scores) == len(found.agreement) == 18 for found in together)
    assert sum(score or 0.0 for score in together[0].scores) == 8
    assert pooled([]) == ()


def test_the_better_number_of_steps_is_chosen_and_among_equals_not_the_shorter_one() -> None:
    folds = [[measured(0, 4, 16), measured(13, 12, 16), measured(26, 12, 16), measured(52, 16, 16)] for _ in range(4)]
    chosen = choose(folds, [None] * 64)
    assert chosen is not None
    assert (chosen.constant, chosen.steps, chosen.prompts, chosen.folds) == (52, 52 + cooldown_steps(52), 64, 4)
    assert chosen.gain[0] == 0.75
    assert chosen.reason.startswith("52 steps, chosen by cross-validation over 64 prompts: +0.75 ± 0.05 against the start model")
    assert (chosen.score_of(13), chosen.score_of(14)) == (0.75, None)
    shorter = choose([fold[:3] for fold in folds], [None] * 64)
    assert shorter is not None
    assert shorter.constant == 26
    assert choose([fold[:1] for fold in folds], [None] * 64) is None, "nothing was measured after the start"


def test_a_single_fold_can_choose() -> None:
    chosen = choose([[measured(0, 25, 100), measured(13, 50, 100), measured(26, 90, 100)]], [None] * 100)
    assert chosen is not None
    assert chosen.reason.startswith("26 steps, chosen by cross-validation over 100 prompts: +0.65 ± 0.05")


def test_without_any_score_nothing_is_chosen() -> None:
    silent = [[Measurement(step, (None,) * 30, agreement=(None,) * 30) for step in (0, 13, 26)]]
    assert choose(silent, [None] * 30) is None, "the run then has the length of a run that cannot be measured"


def test_a_step_that_is_worse_in_a_slice_is_not_chosen() -> None:
    right = {0: (8, 4), 13: (8, 6), 26: (0, 8)}
    fold = [Measurement(step, tuple(float(i < n) for n in pair for i in range(8))) for step, pair in right.items()]
    chosen = choose([fold, fold], [*["old"] * 8, *["new"] * 8] * 2)
    assert chosen is not None
    assert chosen.constant == 13


def test_only_a_run_of_one_process_with_steps_of_its_own_has_folds() -> None:
    assert most_folds_of_run(SFTRecipe(), 1, 0, 60) == most_folds_of_run(DPORecipe(), 1, 1, 60) == 4
    assert [most_folds_of_run(SFTRecipe(), 1, 0, prompts) for prompts in (19, 20, 140, 200, 400, 500, 90_000)] == [0, 4, 4, 3, 2, 1, 1]
    for recipe, nodes, gpus in [
        (SFTRecipe(folds=0), 1, 0),
        (SFTRecipe(folds=1), 1, 0),
        (SFTRecipe(), 1, 2),
        (SFTRecipe(), 2, 1),
        (SFTRecipe(steps=60), 1, 0),
        (GRPORecipe(steps="auto"), 1, 0),
    ]:
        assert not may_have_folds(recipe, nodes, gpus)
        assert most_folds_of_run(recipe, nodes, gpus, 60) == 0
