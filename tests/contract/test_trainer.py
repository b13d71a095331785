"""Contract tests for every trainer: a plan determines the job, and a recipe is completed or rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.loop import TrainingSettings
from ratchet.extend.testkit import TrainerSuite
from ratchet.runtime.extensions import ExtensionKind, load
from ratchet.trainers.backends.trl import DPO, GRPO, SFT


@pytest.fixture(params=["dpo", "grpo", "sft", "canned-sft"])
def trainer(request: pytest.FixtureRequest, example: Path) -> Any:
    return load(ExtensionKind.TRAINER, request.param).create(options={}, where="")


def test_a_method_is_trained_by_the_trainer_of_its_name_unless_the_loop_file_names_another() -> None:
    assert [load(ExtensionKind.TRAINER, TrainingSettings().trainer(method)).target for method in ("dpo", "grpo", "sft")] == [DPO, GRPO, SFT]
    assert TrainingSettings(sft_on="canned-sft").trainer("sft") == "canned-sft"


class TestTrainers(TrainerSuite):
    """The suite, with the fixture above."""
