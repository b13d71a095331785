"""Tests of the health rules with synthetic metrics: problems are found, healthy runs continue, and each remedy fits its problem."""

from __future__ import annotations

import math
import pickle
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.jobs.training import Adjustment, JobEvent
from ratchet.trainers.health import (
    MEASURING,
    REMEDIES,
    RULES,
    HealthVerdict,
    Watch,
    out_of_memory,
    proposed,
    seconds_of_saves,
    stall_timeout,
)
from ratchet.trainers.recipes.completion import complete
from ratchet.trainers.recipes.derived import adjusted
from ratchet.trainers.recipes.dpo import DPORecipe
from ratchet.trainers.recipes.grpo import GRPORecipe
from ratchet.trainers.recipes.health_limits import LIMITS, Health
from ratchet.trainers.recipes.sft import SFTRecipe

CHANCE = random.Random(4)


def well(step: int) -> dict[str, float]:
    """Return the metrics of one step of a healthy run, which are noisy and improve slowly."""
    return {
        "loss": 0.7 - 0.001 * step + CHANCE.gauss(0, 0.02),
        "grad_norm": 2 + CHANCE.random(),
        "kl": 0.02 + 0.0005 * step,
        "entropy": 1.2 - 0.002 * step,
        "reward": 0.4 + 0.001 * step + CHANCE.gauss(0, 0.02),
        "answer_tokens": 200 + CHANCE.gauss(0, 10),
        "generation_seconds": 20 + CHANCE.gauss(0, 1),
        "chosen_fall": 2.0,
        "generation_mismatch": 1.01,
    }


def lived(trouble, steps: int = 200, begins: int = 100, **changes) -> list[tuple[int, HealthVerdict]]:
    """Return the verdicts about a run that is healthy before step `begins` and has the metrics of `trouble(step)` from then on.

    The run ends at the first verdict that would end it.
    """
    watch = Watch(Health(**changes), beta=0.04)
    said = []
    for step in range(1, steps + 1):
        figures = well(step) | (trouble(step) if step >= begins else {})
        for verdict in watch.judge(step, figures):
            said.append((step, verdict))
            if verdict.action != "note":
                return said
    return said


def test_a_healthy_run_gets_no_verdict() -> None:
    assert lived(lambda _step: {}, steps=400) == []


TROUBLES = {
    "kl": lambda _: {"kl": 0.9},
    "grad_norm": lambda _: {"grad_norm": 40.0},
    "chosen_fall": lambda _: {"chosen_fall": 180.0},
    "loss_spike": lambda _: {"loss": 3.0},
    "generation_mismatch": lambda _: {"generation_mismatch": 2.1},
    "reward_falls": lambda step: {"reward": 0.5 - 0.01 * (step - 100)},
    "entropy_collapse": lambda _: {"entropy": 0.02},
    "length_grows": lambda _: {"answer_tokens": 900.0},
    "generation_slow": lambda _: {"generation_seconds": 90.0},
}


@pytest.mark.parametrize("rule", TROUBLES)
def test_each_problem_is_found_with_its_first_step(rule: str) -> None:
    limit = LIMITS[rule]
    (step, verdict), *more = lived(TROUBLES[rule])
    assert (verdict.rule, verdict.action) == (rule, limit.action)
    assert more == [], "a note is reported once, and any other verdict ends the run"
    assert step - verdict.since == limit.patience - 1
    assert 100 <= verdict.since <= 125
    assert f"last at step {step}" in verdict.reason
    proposal = verdict.proposal
    assert (proposal is not None) == (limit.action == "adjust")
    if proposal is not None:
        assert (proposal.good, proposal.adjustment) == (verdict.since - 1, REMEDIES[rule])


def test_a_reward_that_does_not_rise_is_noted() -> None:
    watch = Watch(Health(), beta=0.04)
    said = [verdict for step in range(1, 120) for verdict in watch.judge(step, {"reward": 0.3})]
    assert [(verdict.rule, verdict.action) for verdict in said] == [("reward_flat", "note")]


def test_every_rule_is_tested_and_has_a_limit() -> None:
    assert {rule.name for rule in RULES} == {*TROUBLES, "reward_flat"} == set(LIMITS)


@pytest.mark.parametrize("name", ["loss", "grad_norm"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_metric_that_is_not_finite_ends_the_run_at_once(name: str, value: float) -> None:
    (verdict,) = Watch(Health()).judge(7, {name: value})
    assert (verdict.action, verdict.since, verdict.remedy) == ("adjust", 7, Adjustment(learning_rate=0.5))
    assert "learning rate" in verdict.reason


def test_a_limit_must_be_exceeded_in_consecutive_steps() -> None:
    watch = Watch(Health(kl={"limit": 1.0, "patience": 2}), beta=0.04)
    said = [watch.judge(step, {"kl": kl}) for step, kl in enumerate([2.0, 0.5, 2.0, 3.0])]
    assert said[:3] == [[], [], []]
    assert said[3][0].reason == "KL to the start model 3 exceeded 1 for 2 steps in a row, last at step 3"


def test_the_last_calm_step_is_before_the_problem() -> None:
    watch = Watch(Health(kl={"patience": 3}), beta=0.04)
    calm = []
    for step, kl in enumerate([0.1, 0.1, 0.9, 0.9, 0.1, 0.9], start=1):
        watch.judge(step, {"kl": kl})
        calm.append(watch.calm)
    assert calm == [1, 2, 2, 2, 5, 5]


def test_a_rule_proposes_an_adjustment_only_once() -> None:
    trouble = {"kl": 2.0, "grad_norm": 50.0}
    watch = Watch(Health(kl={"patience": 1}, grad_norm={"patience": 1}), beta=0.04, used=("kl", "grad_norm"))
    said = {verdict.rule: verdict.action for verdict in watch.judge(1, trouble)}
    assert said == {"kl": "stop", "grad_norm": "note"}, "clipped gradients must not end a run whose learning rate was reduced"
    assert proposed("memory", "adjust", ("memory",), 9) is None


def test_without_a_kl_penalty_the_remedy_is_a_lower_learning_rate() -> None:
    (verdict,) = Watch(Health(kl={"patience": 1}), beta=0.0).judge(1, {"kl": 2.0})
    assert verdict.remedy == Adjustment(learning_rate=0.5)


def test_a_rule_that_is_off_gives_no_verdict() -> None:
    assert lived(TROUBLES["kl"], kl={"action": "off"}) == []
    assert Watch(Health(not_finite="off")).judge(1, {"loss": math.nan}) == []


figure = st.one_of(st.floats(-1e6, 1e6), st.just(math.nan), st.just(math.inf))
rows = st.lists(st.dictionaries(st.sampled_from(sorted(well(1))), figure, max_size=8), max_size=60)


@pytest.mark.slow
@settings(max_examples=60)
@given(rows)
def test_any_metrics_can_be_judged_and_no_verdict_names_a_later_step(figures: list[dict[str, float]]) -> None:
    watch, again = Watch(Health()), Watch(Health())
    for step, row in enumerate(figures):
        said = watch.judge(step, row)
        assert said == again.judge(step, row)
        assert all(0 <= verdict.since <= step for verdict in said)


def test_the_state_of_the_watch_does_not_grow_with_the_run() -> None:
    """All ranks judge every step. If the state grew with the run, judging would take more and more time."""
    watch, sizes = Watch(Health(), beta=0.04), []
    for step in range(1, 3001):
        watch.judge(step, well(step))
        sizes += (
            [len(pickle.dumps(watch.__dict__ | {"_streaks": [vars(s.past) for s in watch._streaks.values()]}))]
            if step in (100, 3000)
            else []
        )
    assert sizes[1] < 1.1 * sizes[0]


def test_part_of_a_limit_may_be_set_and_a_misspelling_is_named() -> None:
    recipe = complete(DPORecipe, {"health": {"kl": {"limit": 2.0}}})
    assert recipe.health.kl == LIMITS["kl"].model_copy(update={"limit": 2.0})
    with pytest.raises(ConfigError, match="did you mean 'patience'"):
        complete(DPORecipe, {"health": {"kl": {"patienc": 2}}})
    with pytest.raises(ConfigError, match="did you mean 'grad_norm'"):
        complete(DPORecipe, {"health": {"grad_nrm": {"limit": 2.0}}})
    assert complete(DPORecipe, recipe.model_dump(mode="json")) == recipe


@pytest.mark.parametrize("kind", [DPORecipe, GRPORecipe, SFTRecipe])
def test_remedies_change_their_settings(kind: type) -> None:
    recipe = complete(kind, {"learning_rate": 1e-4})
    assert adjusted(recipe, REMEDIES["not_finite"]).learning_rate == recipe.learning_rate / 2
    assert adjusted(recipe, REMEDIES["memory"]).micro_batch == recipe.micro_batch // 2
    if kind is not SFTRecipe:
        assert adjusted(recipe, REMEDIES["kl"]).beta == 2 * recipe.beta
    assert adjusted(recipe, REMEDIES["stall"]) == recipe


@pytest.mark.parametrize(
    ("reason", "short"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes", True),
        ("MemoryError: ", True),
        ("ValueError: the prompt is too long", False),
    ],
)
def test_out_of_memory_is_recognised_by_its_message(reason: str, short: bool) -> None:
    assert out_of_memory(reason) is short


def test_the_limit_for_a_stall_follows_from_the_runs_own_steps() -> None:
    health = Health(stall_seconds=1000, stall_times=10, stall_least_seconds=5)
    assert stall_timeout([], health) == 1000
    assert stall_timeout([0, 2, 4], health) == 1000, "too few steps for a measurement"
    assert stall_timeout([0, 2, 4, 6, 8], health) == 20
    assert stall_timeout([0, 0.1, 0.2, 0.3, 0.4], health) == 5
    assert stall_timeout([0, 500, 1000, 1500], health) == 1000


DIFFICULTIES = {
    "often all or nothing": (lambda luck: luck.betavariate(0.5, 0.5), 8, 8),
    "one prompt a step": (lambda luck: luck.betavariate(0.1, 0.1), 1, 8),
    "easy": (lambda luck: luck.betavariate(4, 0.5), 4, 4),
    "hard": (lambda luck: luck.betavariate(0.1, 0.9), 2, 8),
    "all alike": (lambda _: 0.5, 8, 8),
    "mostly nothing": (lambda luck: float(luck.random() < 0.15), 1, 4),
}
"""For each mix: a random generator of a prompt's share of correct answers, the prompts per step, and the answers per prompt."""


def rewards(mix: str, steps: int, seed: int, worse: float = 1.0, since: int = 10**9) -> list[float]:
    """Return the mean rewards of the steps of a run.

    From step `since` on, a correct answer stays correct only with probability `worse`.
    """
    share, prompts, answers = DIFFICULTIES[mix]
    luck = random.Random(f"{mix}-{seed}")
    means = []
    for step in range(steps):
        right = [share(luck) * (worse if step >= since else 1.0) for _ in range(prompts)]
        means.append(sum(luck.random() < p for p in right for _ in range(answers)) / (prompts * answers))
    return means


def accused(found: list[float]) -> int | None:
    """Return the step at which the rule for a falling reward would end the run, or None."""
    watch = Watch(Health(), beta=0.04)
    for step, reward in enumerate(found, 1):
        if any(verdict.rule == "reward_falls" for verdict in watch.judge(step, {"reward": reward})):
            return step
    return None


@pytest.mark.parametrize("mix", DIFFICULTIES)
def test_a_reward_that_only_fluctuates_ends_no_run(mix: str) -> None:
    ends = [accused(rewards(mix, 200, seed)) for seed in range(15)]
    assert sum(end is not None for end in ends) == 0, ends


@pytest.mark.parametrize(("mix", "worse"), [("often all or nothing", 0.2), ("easy", 0.5), ("all alike", 0.3)])
def test_a_reward_that_really_falls_is_found(mix: str, worse: float) -> None:
    ends = [accused(rewards(mix, 200, seed, worse, since=100)) for seed in range(20)]
    assert sum(end is not None and 100 < end <= 160 for end in ends) >= 19, ends


def test_a_large_save_is_no_stall_but_an_endless_save_is() -> None:
    health = Health(stall_seconds=1000, stall_times=10, stall_least_seconds=5, save_seconds=4000)
    steps = [0, 2, 4, 6, 8]
    assert [stall_timeout(steps, health, last) for last in ("saving", "exporting", "checkpoint")] == [4000, 4000, 20]
    told = (("saving", 10), ("checkpoint", 12), ("progress", 13), ("saving", 20), ("checkpoint", 27))
    events = [JobEvent(kind=kind, at=at, incarnation=1, step=1, total=9, data={}) for kind, at in told]
    saves = seconds_of_saves(events)
    assert saves == [2, 7]
    assert stall_timeout(steps, health, "saving", saves) == 70, "the duration of a save is known"
    assert stall_timeout(steps, health, "exporting", saves) == 4000, "the exported model has another size than a checkpoint"
    assert stall_timeout(steps, health, "saving", [1e6]) == 4000


@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": math.inf},
        {"learning_rate": math.nan},
        {"lora": {"alpha": math.inf}},
        {"health": {"kl": {"limit": math.nan}}},
        {"health": {"stall_seconds": math.inf}},
        {"nemo": {"batch_multiplier": math.inf}},
    ],
)
def test_settings_must_be_finite_numbers(changes: dict) -> None:
    with pytest.raises(ConfigError):
        complete(GRPORecipe, changes)


def test_a_step_with_a_metric_that_is_not_finite_is_never_calm() -> None:
    watch = Watch(Health(not_finite="note"), beta=0.04)
    for step, loss in enumerate([0.5, 0.5, math.nan, math.inf], start=1):
        watch.judge(step, {"loss": loss})
    assert watch.calm == 2


def test_the_memory_remedy_also_samples_fewer_answers_at_once() -> None:
    """The library samples all answers of a step together, whatever the size of the micro-batches."""
    recipe = complete(GRPORecipe, {"prompts_per_step": 8, "generations": 6, "micro_batch": 4})
    less = adjusted(recipe, REMEDIES["memory"])
    assert (recipe.sampled_at_once, less.sampled_at_once, less.micro_batch) == (48, 24, 2)
    assert less.vllm_memory == recipe.vllm_memory / 2
    least = adjusted(recipe, Adjustment(memory=1 / 1024))
    assert (least.sampled_at_once, least.micro_batch) == (6, 1), "the answers of a group are sampled together"
    assert adjusted(recipe, Adjustment(learning_rate=0.5)).generation_batch == 0


def test_the_memory_remedy_halves_the_token_budget() -> None:
    remedy = REMEDIES["memory"]
    one = complete(DPORecipe, {"micro_batch": 1, "max_length": 512, "learning_rate": 1e-5})
    assert (one.budget, adjusted(one, remedy).budget) == (1024, 512)
    large = complete(DPORecipe, {"micro_batch": 8, "learning_rate": 1e-5})
    assert adjusted(large, remedy).budget == large.budget // 2
    assert adjusted(one, Adjustment(learning_rate=0.5)).micro_tokens == 0, "only the memory remedy changes it"


def test_a_measurement_has_the_time_of_a_save() -> None:
    """Answers to hundreds of prompts take longer than a step, and no step is reported meanwhile."""
    health = Health()
    assert stall_timeout([1.0, 2.0, 3.0, 4.0, 5.0], health) == health.stall_least_seconds
    assert stall_timeout([1.0, 2.0, 3.0, 4.0, 5.0], health, MEASURING) == health.save_seconds
