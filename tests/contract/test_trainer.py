"""Contract tests for every trainer: a plan determines the job, and a recipe is completed or rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.jobs.training import Adjustment, Attempt, Method, TrainingPlan
from ratchet.contracts.loop import TrainingSettings
from ratchet.runtime.extensions import ExtensionKind, load
from ratchet.trainers.backends.trl import DPO, GRPO, SFT
from tests.builders import START, make_plan


@pytest.fixture(params=["dpo", "grpo", "sft", "canned-sft"])
def trainer(request: pytest.FixtureRequest, example: Path) -> Any:
    return load(ExtensionKind.TRAINER, request.param).create(options={}, where="")


def plan(trainer: Any) -> TrainingPlan:
    return make_plan(Method(trainer.method), trainer.recipe({}))


def test_a_method_is_trained_by_the_trainer_of_its_name_unless_the_loop_file_names_another() -> None:
    assert [load(ExtensionKind.TRAINER, TrainingSettings().trainer(method)).target for method in ("dpo", "grpo", "sft")] == [DPO, GRPO, SFT]
    assert TrainingSettings(sft_on="canned-sft").trainer("sft") == "canned-sft"


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
