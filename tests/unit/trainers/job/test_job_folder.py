"""Tests of the settings that the supervisor reads from a plan, also from the recipe of a trainer of another package."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.contracts.errors import ConfigError
from ratchet.contracts.jobs.training import Method, TrainingPlan
from ratchet.contracts.model import ModelRef
from ratchet.runtime.jobs.job_protocol import TRAINER
from ratchet.trainers.job.job_folder import supervised

START = ModelRef(**dict.fromkeys(("weights", "tokenizer", "chat_template", "generation_config", "others", "files"), "a" * 64))


def plan(recipe: dict[str, Any]) -> TrainingPlan:
    fixed: dict[str, Any] = dict.fromkeys(("dataset", "pairs", "prompts", "demonstrations", "code"), "1" * 64) | {"scorers": ()}
    return TrainingPlan(line="l", cycle="cycle/l/0001", start=START, method=Method.SFT, recipe=recipe, seed=1, **fixed)


def test_a_recipe_of_another_package_gives_its_steps_and_health_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRAINER.name, "some_package.train")
    settings = supervised(plan({"steps": 7, "colour": "red", "health": {"stall": "stop"}}))
    assert (settings.steps, settings.health.stall) == (7, "stop")
    assert supervised(plan({})).health.stall == "adjust", "without the keys, the defaults apply"
    with pytest.raises(ConfigError, match="steps"):
        supervised(plan({"steps": 0}))


def test_a_recipe_of_ratchet_is_read_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TRAINER.name, raising=False)
    assert supervised(plan({"steps": 7})).steps == 7
    with pytest.raises(ConfigError, match="colour"):
        supervised(plan({"steps": 7, "colour": "red"}))
