"""Tests of the choice of a method: its rules, and properties that hold for all facts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.data.datasets import UNMEASURED_NOISE, Facts
from ratchet.contracts.jobs.training import Choice, Method
from ratchet.contracts.loop import TrainingSettings
from ratchet.trainers.choose import MIN_GAIN, choose, effective_pairs, usable_prompts
from tests.builders import make_facts


def pick(found: Facts, unseen: bool = True, **settings: Any) -> Choice:
    """Return the choice for these facts and settings."""
    return choose(found, TrainingSettings(**settings), unseen)


def test_the_order_of_methods_decides_if_several_are_possible() -> None:
    assert pick(make_facts()).method == Method.SFT
    assert pick(make_facts(), methods=("dpo", "grpo")).method == Method.DPO
    assert pick(make_facts(), methods=("grpo", "dpo")).method == Method.GRPO
    assert "would also be possible" in pick(make_facts()).reason


@pytest.mark.parametrize(
    ("share", "distance", "error", "holds"),
    [(0.6, None, None, True), (0.2, 0.9, 0.1, True), (0.2, 0.9, 0.3, False), (0.2, -0.2, 0.0, False), (None, None, None, False)],
)
def test_off_policy_pairs_are_reported(share: float | None, distance: float | None, error: float | None, holds: bool) -> None:
    found = make_facts(off_policy=share, policy_distance=distance, policy_distance_error=error)
    (row,) = (row for row in pick(found).rules if row.rule == "off-policy pairs")
    assert row.holds == holds
    assert (distance == 0.9) == ("90% of the logged answers" in row.evidence)


def test_answers_that_the_model_already_gives_are_not_imitated() -> None:
    known = make_facts(teachable=3)
    assert pick(known, methods=("sft",)).method == Method.NONE
    assert "repeat answers that the model already gives" in pick(known, methods=("sft",)).reason
    assert pick(known).method == Method.GRPO


def test_a_row_names_the_change_that_would_reverse_it() -> None:
    rows = {row.rule: row for row in pick(make_facts(demonstrations={"correction": 20}, teachable=8)).rules}
    assert rows["answers to imitate"].change == "30 more correct answers"
    assert rows["answers that teach something new"].change == "12 more correct answers where the model fails"
    assert rows["group coverage"].change == "25 fewer points of coverage would still be enough"


@pytest.mark.parametrize("lacking", ["demonstrations", "teachable", "group_coverage", "pairs"])
def test_the_choice_changes_exactly_at_each_limit(lacking: str) -> None:
    """Exactly at each limit the method is chosen. Just below it, no method is chosen."""
    method = {"demonstrations": "sft", "teachable": "sft", "group_coverage": "grpo", "pairs": "dpo"}[lacking]
    at: dict[str, Any] = {"demonstrations": {"correction": 50}, "teachable": 20, "group_coverage": 0.15, "pairs": 50}
    below: dict[str, Any] = {"demonstrations": {"correction": 49}, "teachable": 19, "group_coverage": 0.149, "pairs": 49}
    tiers = {"pairs_by_tier": {"verifiable": 1000}}
    assert pick(make_facts(**{lacking: at[lacking]}, **tiers), methods=(method,)).method == method
    assert pick(make_facts(**{lacking: below[lacking]}, **tiers), methods=(method,)).method == Method.NONE


def test_without_pairs_groups_with_mixed_rewards_lead_to_grpo() -> None:
    assert pick(make_facts(pairs=0, pairs_by_tier={}), methods=("dpo", "grpo")).method == Method.GRPO


@pytest.mark.parametrize(
    ("found", "unseen"),
    [
        (make_facts(pairs=0, pairs_by_tier={}, group_coverage=0.0, demonstrations={}, teachable=0), True),
        (make_facts(pairs=0, pairs_by_tier={}, group_coverage=None, teachable=19), True),
        (make_facts(pairs=0, pairs_by_tier={}, demonstrations={"correction": 49}), False),
        (make_facts(pairs=49, group_coverage=0.1, teachable=0), True),
        (make_facts(pairs=300, pairs_by_tier={"feedback": 300}, label_noise=0.5, group_coverage=0.0, demonstrations={}), True),
    ],
)
def test_data_that_cannot_teach_is_not_trained_on(found: Facts, unseen: bool) -> None:
    choice = pick(found, unseen)
    assert choice.method == Method.NONE
    assert choice.reason.startswith("do not train: ")


def test_a_model_without_a_possible_gain_is_not_trained() -> None:
    at_its_best = make_facts(best_of_k=0.61, corrections=0, demonstrations={"verifiable": 100}, teachable=0)
    assert pick(at_its_best).method == Method.NONE
    assert "nothing to gain" in pick(at_its_best).reason


def test_corrections_are_used_if_the_model_never_samples_a_correct_answer() -> None:
    never_right = make_facts(best_of_k=0.6, champion_reward=0.6, group_coverage=0.0)
    assert pick(never_right).method == Method.SFT
    assert pick(never_right, methods=("dpo", "grpo")).method == Method.DPO
    assert pick(never_right, methods=("grpo",)).method == Method.NONE


def test_sft_goes_first_where_more_is_out_of_reach_of_grpo_than_within() -> None:
    order = ("grpo", "sft", "dpo")
    beyond = make_facts(never_right=0.5, group_coverage=0.3)
    choice = pick(beyond, methods=order)
    assert choice.method == Method.SFT
    assert "50% of the probed prompts were never answered right although a reference is known, 30% have mixed rewards" in choice.reason
    assert "GRPO and DPO would also be possible" in choice.reason
    assert pick(make_facts(never_right=0.3, group_coverage=0.3), methods=order).method == Method.GRPO
    assert pick(make_facts(never_right=None), methods=order).method == Method.GRPO
    assert pick(beyond, methods=("grpo", "dpo")).method == Method.GRPO, "without demonstrations, GRPO still learns what it can"
    assert pick(beyond, methods=("dpo", "grpo", "sft")).method == Method.DPO
    rows = {row.rule: row for row in choice.rules}
    assert rows["prompts that are never answered right"].holds
    assert rows["prompts that are never answered right"].change == "a share of never right answers up to 30%"


def test_every_row_has_its_evidence_and_effect() -> None:
    for rule in pick(make_facts()).rules:
        assert rule.evidence
        assert rule.effect


def test_label_noise_reduces_the_effective_pairs() -> None:
    assert effective_pairs(make_facts(pairs=100, pairs_by_tier={"feedback": 100}, label_noise=0.25)) == pytest.approx(25)
    assert effective_pairs(make_facts(pairs=100, pairs_by_tier={"verifiable": 100}, label_noise=0.25)) == 100


def test_measuring_the_assumed_noise_changes_nothing() -> None:
    """Unmeasured labels do not count as clean. Otherwise, a measurement of the noise could only ever prevent training."""
    liked = make_facts(pairs=100, pairs_by_tier={"feedback": 100})
    unknown, known = (liked.model_copy(update={"label_noise": noise}) for noise in (None, UNMEASURED_NOISE))
    assert effective_pairs(unknown) == effective_pairs(known) == pytest.approx(36)
    assert pick(unknown, methods=("dpo",)).method == pick(known, methods=("dpo",)).method == Method.NONE


share = st.none() | st.floats(0, 1)
usual: dict[str, Any] = {
    "usual_reward": share,
    "usual_error": st.none() | st.floats(0, 0.5),
    "usable_prompts": st.none() | st.integers(0, 50),
    "policy_distance": st.none() | st.floats(-0.5, 1),
    "policy_distance_error": st.none() | st.floats(0, 0.5),
}
any_facts = st.builds(
    lambda clean, other, **rest: Facts(
        pairs=clean + other, pairs_by_tier={"verifiable": clean, "feedback": other}, pairs_dropped={}, samples=0, **rest
    ),
    clean=st.integers(0, 200),
    other=st.integers(0, 200),
    prompts=st.integers(0, 50),
    prompts_with_reference=st.integers(0, 50),
    corrections=st.integers(0, 5),
    demonstrations=st.fixed_dictionaries({"correction": st.integers(0, 90), "feedback": st.integers(0, 90)}),
    teachable=st.integers(0, 40),
    group_coverage=share,
    never_right=share,
    label_noise=share,
    champion_reward=share,
    best_of_k=share,
    off_policy=share,
    **usual,
)
some_facts = any_facts | st.builds(make_facts, prompts_with_reference=st.integers(0, 50), **usual)
"""Arbitrary facts, or facts with plenty of everything except prompts and the usual answers of the champion.

The second kind is necessary because arbitrary facts rarely reach the rules about prompts and usual answers.
"""
some_settings = st.builds(
    TrainingSettings,
    methods=st.sampled_from([(), ("dpo",), ("grpo",), ("sft",), ("dpo", "grpo"), ("grpo", "sft"), ("sft", "grpo", "dpo")]),
    min_pairs=st.integers(1, 100),
    min_group_coverage=st.floats(0, 1),
    min_prompts=st.integers(1, 50),
    grpo=st.fixed_dictionaries({}, optional={"prompts_per_step": st.integers(1, 50)}),
)


def trains(found: Facts, settings: TrainingSettings, unseen: bool) -> bool:
    """Return whether a method is chosen for these facts."""
    return choose(found, settings, unseen).method != Method.NONE


@given(some_facts, some_settings, st.booleans())
def test_each_method_needs_enough_data_of_its_kind(found: Facts, settings: TrainingSettings, unseen: bool) -> None:
    choice = choose(found, settings, unseen)
    assert choice.method == Method.NONE or choice.method in settings.methods
    if choice.method == Method.DPO:
        assert found.pairs > 0
        assert effective_pairs(found) >= settings.min_pairs
    if choice.method == Method.SFT:
        assert sum(found.demonstrations.values()) >= settings.min_demonstrations
        assert found.teachable >= settings.min_teachable
    if choice.method == Method.GRPO:
        assert unseen
        assert usable_prompts(found) >= max(settings.min_prompts, settings.grpo.get("prompts_per_step", 8))
        assert found.group_coverage


@given(some_facts, some_settings, st.booleans())
def test_without_room_for_a_gain_nothing_is_trained(found: Facts, settings: TrainingSettings, unseen: bool) -> None:
    """The distance to the full reward must exceed the minimum gain plus its standard error, whatever the other facts are."""
    missing = 1.0 if found.usual_reward is None else 1.0 - found.usual_reward
    if missing < MIN_GAIN + (found.usual_error or 0.0) - 1e-9:
        assert not trains(found, settings, unseen)
    (row,) = (row for row in choose(found, settings, unseen).rules if row.rule == "room")
    assert row.holds or not trains(found, settings, unseen)


@given(some_facts, some_settings, st.booleans(), st.integers(1, 60))
def test_more_prompts_never_stop_training(found: Facts, settings: TrainingSettings, unseen: bool, extra: int) -> None:
    changes = {"prompts": found.prompts + extra, "prompts_with_reference": found.prompts_with_reference + extra}
    if found.usable_prompts is not None:
        changes["usable_prompts"] = found.usable_prompts + extra
    assert trains(found.model_copy(update=changes), settings, unseen) or not trains(found, settings, unseen)


@pytest.mark.slow
@given(some_facts, some_settings, st.booleans(), st.floats(0, 1))
def test_a_better_champion_never_starts_training(found: Facts, settings: TrainingSettings, unseen: bool, better: float) -> None:
    """Only the reward of its usual answers rises here. The possible gain of sampled answers is a separate value."""
    risen = found.model_copy(update={"usual_reward": max(better, found.usual_reward or 0.0)})
    assert trains(found, settings, unseen) or not trains(risen, settings, unseen)


@pytest.mark.slow
@given(some_facts, some_settings, st.booleans(), st.integers(1, 100), st.sampled_from(["verifiable", "feedback"]))
def test_more_pairs_never_stop_training(found: Facts, settings: TrainingSettings, unseen: bool, extra: int, tier: str) -> None:
    tiers = {**found.pairs_by_tier, tier: found.pairs_by_tier[tier] + extra}
    more = found.model_copy(update={"pairs": found.pairs + extra, "pairs_by_tier": tiers})
    assert trains(more, settings, unseen) or not trains(found, settings, unseen)


@given(some_facts, some_settings, st.booleans(), st.floats(0, 1))
def test_more_noise_never_starts_training(found: Facts, settings: TrainingSettings, unseen: bool, noise: float) -> None:
    noisier = found.model_copy(update={"label_noise": max(noise, UNMEASURED_NOISE if found.label_noise is None else found.label_noise)})
    assert trains(found, settings, unseen) or not trains(noisier, settings, unseen)


@pytest.mark.slow
@given(some_facts, some_settings, st.booleans(), st.floats(0, 1), st.integers(1, 5))
def test_more_to_learn_never_stops_training(found: Facts, settings: TrainingSettings, unseen: bool, better: float, extra: int) -> None:
    changes = {
        "group_coverage": max(better, found.group_coverage or 0.0),
        "corrections": found.corrections + extra,
        "demonstrations": {**found.demonstrations, "correction": found.demonstrations["correction"] + extra},
        "teachable": found.teachable + extra,
    }
    assert trains(found.model_copy(update=changes), settings, unseen) or not trains(found, settings, unseen)


@pytest.mark.parametrize("method", ["sft", "dpo", "grpo"])
def test_a_champion_that_is_usually_right_is_not_trained(method: str) -> None:
    """This holds despite plenty of pairs and corrections: a sampled answer can be wrong where the usual answer is right."""
    assert pick(make_facts(usual_reward=0.97), methods=(method,)).method == method
    done = pick(make_facts(usual_reward=0.985), methods=(method,))
    assert done.method == Method.NONE
    assert "no training could show a gain" in done.reason
    assert {row.rule: row.change for row in done.rules}["room"] == "a usual reward below 0.980"


def test_one_wrong_answer_among_few_prompts_is_no_room_for_a_gain() -> None:
    """For one of 47 prompts, the most frequent of four sampled answers may differ from the model's usual answer."""
    assert pick(make_facts(usual_reward=46 / 47, usual_error=0.021)).method == Method.NONE
    assert pick(make_facts(usual_reward=43 / 47, usual_error=0.041)).method == Method.SFT


def test_a_champion_that_was_not_probed_may_be_trained() -> None:
    assert pick(make_facts(usual_reward=None)).method == Method.SFT


@pytest.mark.parametrize(
    ("changes", "settings", "trains"),
    [
        ({"prompts": 400, "prompts_with_reference": 1}, {}, False),
        ({"prompts": 400, "prompts_with_reference": 31}, {}, False),
        ({"prompts": 400, "prompts_with_reference": 32}, {}, True),
        ({"prompts": 400, "prompts_with_reference": 1, "usable_prompts": 400}, {}, True),
        ({"prompts": 400, "prompts_with_reference": 40}, {"grpo": {"prompts_per_step": 64}}, False),
        ({"prompts": 400, "prompts_with_reference": 8}, {"min_prompts": 2}, True),
        ({"prompts": 400, "prompts_with_reference": 7}, {"min_prompts": 2}, False),
    ],
)
def test_grpo_counts_the_prompts_that_it_will_train_on(changes: dict[str, Any], settings: dict[str, Any], trains: bool) -> None:
    assert (pick(make_facts(**changes), methods=("grpo",), **settings).method == Method.GRPO) is trains
