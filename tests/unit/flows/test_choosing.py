"""A method is taken only where its job can be built for the machines of the loop file."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from contracts.data import Facts
from contracts.errors import ConfigError
from contracts.loop import TrainingSettings
from contracts.model import ModelRef
from contracts.training import Choice, Method, TrainingPlan
from flows.engine.choosing import choose_plan
from trainers.choose import choose
from trainers.nemo import NemoGRPO
from trainers.trl import DPO, GRPO, SFT

START = ModelRef(weights="a" * 64, tokenizer="b" * 64, chat_template="c" * 64, generation_config="d" * 64, files="e" * 64)
FACTS = Facts(
    pairs=300,
    pairs_by_tier={"verifiable": 300},
    pairs_dropped={},
    prompts=400,
    prompts_with_reference=300,
    corrections=40,
    demonstrations={"correction": 100},
    teachable=50,
    samples=900,
    group_coverage=0.4,
    label_noise=0.1,
    champion_reward=0.6,
    best_of_k=0.85,
    off_policy=0.2,
)


def draft(method: Method, recipe: dict[str, Any]) -> TrainingPlan:
    fixed: dict[str, Any] = dict.fromkeys(("dataset", "pairs", "prompts", "demonstrations", "code"), "1" * 64) | {"scorers": ()}
    return TrainingPlan(line="l", cycle="cycle/l/0001", start=START, method=method, recipe=recipe, seed=1, **fixed)


def chosen(facts: Facts = FACTS, trainer: Any = None, **settings: Any) -> tuple[Choice, TrainingPlan | None]:
    trainers = {Method.SFT: SFT(), Method.DPO: DPO(), Method.GRPO: trainer or GRPO()}
    house: Any = SimpleNamespace(choose=choose, rewards=SimpleNamespace(unseen=lambda: True), trainers=trainers)
    return choose_plan(house, facts, TrainingSettings(**settings), draft)


def test_what_fits_is_planned_and_said_so() -> None:
    choice, plan = chosen(gpus=1)
    assert plan is not None
    assert choice.method == plan.method == Method.SFT
    assert [row.holds for row in choice.rules if row.rule == "sft fits the machines"] == [True]


def test_a_method_that_cannot_use_the_machines_gives_way_to_the_next() -> None:
    choice, plan = chosen(gpus=8)
    assert plan is not None
    assert choice.method == plan.method == Method.DPO
    rows = {row.rule: row.holds for row in choice.rules}
    assert (rows["sft fits the machines"], rows["grpo fits the machines"], rows["dpo fits the machines"]) == (False, False, True)
    assert rows["sft is allowed"], "the table is that of the settings as they are"
    assert choice.reason.startswith("DPO: ")
    said = "training.gpus = 8 on 1 nodes: {} on TRL uses at most one GPU; set training.nodes to 1 and training.gpus to 0 or 1"
    assert choice.reason.endswith(f"; not tried: SFT ({said.format('sft')}), GRPO ({said.format('grpo')})"), choice.reason


def test_what_does_not_fit_says_what_would() -> None:
    """A person reads the last column to know what to change."""
    rows = {row.rule: row for row in chosen(gpus=8)[0].rules}
    assert rows["sft fits the machines"].change == "set training.nodes to 1 and training.gpus to 0 or 1"
    tight = {"generation": "dedicated", "generation_gpus": 8}
    choice, _ = chosen(trainer=NemoGRPO(), methods=("grpo",), gpus=8, grpo={"nemo": tight})
    assert choice.rules[-1].change == "other training.nodes, training.gpus, or changes to [training.grpo]"
    assert "0 < nemo.generation_gpus < 8" in choice.rules[-1].evidence


def test_nothing_is_planned_where_nothing_fits() -> None:
    choice, plan = chosen(gpus=8, methods=("sft", "grpo"))
    assert (choice.method, plan) == (Method.NONE, None)
    assert choice.reason.startswith("do not train: SFT: training.gpus = 8")


def test_prompts_that_do_not_fill_a_step_on_the_cluster_are_known_before() -> None:
    few = FACTS.model_copy(update={"prompts_with_reference": 40})
    wide = {"prompts_per_step": 38, "generations": 8, "micro_batch": 4}
    choice, plan = chosen(few, NemoGRPO(), methods=("grpo",), gpus=8, grpo=wide)
    assert (choice.method, plan) == (Method.NONE, None)
    assert "fewer than the 38 of one step" in choice.reason


def test_a_slip_in_a_recipe_is_a_persons_to_mend() -> None:
    with pytest.raises(ConfigError, match="learning_rate"):
        chosen(sft={"learnign_rate": 1e-4})
