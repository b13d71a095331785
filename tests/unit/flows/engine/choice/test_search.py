"""Tests the space of a search, what an earlier search contributes, and how the figures of a trial are read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.contracts.data.datasets import TrainingSet
from ratchet.contracts.errors import RatchetError
from ratchet.contracts.jobs.training import Method, TrainingPlan
from ratchet.contracts.loop import SearchSettings, TrainingSettings
from ratchet.flows.core.searches.search import LEAST_PROMPTS
from ratchet.flows.engine.choice.search import _scores, last_winner, with_search
from ratchet.trainers.backends.trl import DPO, GRPO, SFT
from ratchet.trainers.choose import choose
from tests.builders import make_facts, make_plan

FACTS = make_facts()
TRAINERS = {Method.SFT: SFT(), Method.DPO: DPO(), Method.GRPO: GRPO()}


def draft(method: Method, recipe: dict[str, Any]) -> TrainingPlan:
    return make_plan(method, recipe)


def dataset(development: int = 40) -> TrainingSet:
    digests = dict.fromkeys(("snapshot", "pairs", "prompts", "demonstrations", "content"), "0" * 64)
    return TrainingSet(
        name="set",
        probe=None,
        facts=FACTS,
        development="d" * 64 if development else None,
        development_prompts=development,
        **digests,
    )


def searched(method: Method = Method.SFT, won: str | None = None, development: int = 40, **settings: Any) -> TrainingPlan:
    given = TrainingSettings(search=SearchSettings(budget=600), **settings)
    context: Any = SimpleNamespace(choose=choose, rewards=SimpleNamespace(for_jobs=lambda: (1,)), trainers=TRAINERS)
    plan = draft(method, TRAINERS[method].recipe(given.recipe(method), FACTS))
    return with_search(context, plan, dataset(development), given, draft, won)


def names(plan: TrainingPlan) -> list[str]:
    return [variant.name for variant in plan.search.variants] if plan.search else []


def test_space_has_every_suitable_method_at_three_rates_and_begins_with_the_plan() -> None:
    plan = searched()
    assert names(plan) == ["SFT", "DPO", "SFT, rate × 3", "DPO, rate × 3", "SFT, rate × 0.33", "DPO, rate × 0.33"]
    assert plan.search is not None
    assert plan.search.variants[0].recipe == plan.recipe
    assert plan.search.budget == 600
    assert [round(variant.recipe["rate_scale"], 2) for variant in plan.search.variants] == [1.0, 1.0, 3.0, 3.0, 0.33, 0.33]
    assert plan.id != plan.model_copy(update={"search": None}).id, "the approval of the plan covers its search"


def test_space_has_only_methods_that_the_loop_file_allows_and_keeps_its_rates() -> None:
    assert names(searched(methods=("sft",))) == ["SFT", "SFT, rate × 3", "SFT, rate × 0.33"]
    plan = searched(methods=("sft",), sft={"learning_rate": 1e-4, "rate_scale": 2.0})
    assert plan.search is not None
    assert {variant.recipe["learning_rate"] for variant in plan.search.variants} == {1e-4}
    assert [round(variant.recipe["rate_scale"], 2) for variant in plan.search.variants] == [2.0, 6.0, 0.67]


def test_space_of_grpo_has_its_rates_alone_because_its_steps_take_longer() -> None:
    plan = searched(method=Method.GRPO, grpo={"steps": "auto"})
    assert names(plan) == ["GRPO", "GRPO, rate × 3", "GRPO, rate × 0.33"]
    assert "GRPO" not in " ".join(names(searched(grpo={"steps": "auto"})))


def test_recipe_that_won_before_comes_first_and_is_the_one_of_the_plan() -> None:
    plan = searched(won="DPO, rate × 3")
    assert plan.search is not None
    assert (plan.method, plan.recipe["rate_scale"], plan.search.first) == (Method.DPO, 3.0, "it won the last search of the line")
    assert names(plan)[0] == "DPO, rate × 3"
    assert searched(won="a recipe of another release") == searched()


@pytest.mark.parametrize(
    "settings",
    [
        {"method": Method.GRPO, "grpo": {"steps": 100}},
        {"sft": {"steps": 100}},
        {"development": LEAST_PROMPTS - 1},
        {"development": 0},
        {"sft_on": "mine"},
    ],
    ids=["grpo", "steps", "few-prompts", "no-prompts", "another-package"],
)
def test_plan_that_cannot_be_compared_on_development_prompts_has_no_search(settings: dict[str, Any]) -> None:
    assert searched(**settings).search is None


def test_last_winner_is_that_of_the_newest_search() -> None:
    chosen = {1: "SFT", 2: "DPO", 3: None}

    def view(stream: str) -> Any:
        number = int(stream.rpartition("/")[2])
        if number not in chosen:
            raise RatchetError("not in the ledger")
        won = chosen[number]
        return SimpleNamespace(chosen=SimpleNamespace(variant=won) if won else None)

    context: Any = SimpleNamespace(cycle_view=view)
    assert last_winner(context, "sim", 4) == "DPO"
    assert last_winner(context, "sim", 2) == "SFT"
    assert last_winner(context, "sim", 1) is None


@pytest.mark.parametrize("value", [None, "high", {"a": 1}, [1.0, "x"], [True], [float("nan")], [0.0] * 10_001])
def test_scores_that_a_job_made_up_are_ignored(value: object) -> None:
    assert _scores(value) == ()


def test_scores_of_a_job_are_numbers_or_absent() -> None:
    assert _scores([1, 0.5, None]) == (1.0, 0.5, None)
