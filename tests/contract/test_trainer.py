"""Contract tests for every trainer: a plan determines the job, and a recipe is completed or rejected."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

import pytest

from contracts.errors import ConfigError
from contracts.model import ModelRef
from contracts.training import Adjustment, Attempt, Method, TrainingPlan
from trainers.backends.trl import DPO, GRPO, SFT

START = ModelRef(weights="a" * 64, tokenizer="b" * 64, chat_template="c" * 64, generation_config="d" * 64, files="e" * 64)


@pytest.fixture(params=[DPO, GRPO, SFT])
def trainer(request: pytest.FixtureRequest) -> Any:
    return request.param()


def plan(trainer: Any) -> TrainingPlan:
    fixed: dict[str, Any] = dict.fromkeys(("dataset", "pairs", "prompts", "demonstrations", "code"), "1" * 64) | {"scorers": ()}
    return TrainingPlan(
        line="l", cycle="cycle/l/0001", start=START, method=Method(trainer.method), recipe=trainer.recipe({}), seed=1, **fixed
    )


def test_trainer_is_found_by_its_method(trainer: Any) -> None:
    (entry,) = entry_points(group="ratchet.trainers", name=trainer.method)
    assert entry.load() is type(trainer)


def test_completing_a_recipe_is_idempotent(trainer: Any) -> None:
    recipe = trainer.recipe({})
    assert trainer.recipe(recipe) == recipe


def test_error_for_an_unknown_key_names_the_nearest_known_key(trainer: Any) -> None:
    key = next(iter(trainer.recipe({})))
    with pytest.raises(ConfigError, match=key):
        trainer.recipe({key + "x": 1})


def test_job_is_determined_by_plan_and_attempt(trainer: Any) -> None:
    one = plan(trainer)
    first = Attempt(number=1, timeout=60.0)
    job = trainer.job(one, first)
    assert job == trainer.job(one, first)
    assert TrainingPlan.model_validate_json(job.plan_json) == one
    assert job.plan == one.id
    assert START.files in job.inputs.values()
    assert job.name != trainer.job(one, Attempt(number=2, timeout=60.0)).name
    assert job.name != trainer.job(one, Attempt(number=1, timeout=61.0)).name
    assert job.name != trainer.job(one, Attempt(number=1, timeout=60.0, adjustment=Adjustment(learning_rate=0.5))).name
