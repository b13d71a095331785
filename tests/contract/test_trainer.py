"""Contract tests for every trainer: a plan determines the job, and a recipe is completed or rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ratchet.contracts.loop import TrainingSettings
from ratchet.extend.testkit import TrainerSuite
from ratchet.runtime.extensions import ExtensionKind, load
from ratchet.trainers.backends.nemo.backend import NemoGRPO
from ratchet.trainers.backends.nemo.offline import NemoDPO, NemoSFT
from ratchet.trainers.backends.trl import DPO, GRPO, SFT


@pytest.fixture(params=["dpo", "grpo", "sft", "canned-sft"])
def trainer(request: pytest.FixtureRequest, example: Path) -> Any:
    return load(ExtensionKind.TRAINER, request.param).create(options={}, where="")


def test_a_method_is_trained_by_the_trainer_of_its_name_unless_the_loop_file_names_another() -> None:
    assert [load(ExtensionKind.TRAINER, TrainingSettings().trainer(method)).target for method in ("dpo", "grpo", "sft")] == [DPO, GRPO, SFT]
    assert TrainingSettings(sft_on="canned-sft").trainer("sft") == "canned-sft"


def test_nemo_rl_trains_each_method_that_the_loop_file_gives_it() -> None:
    settings = TrainingSettings(sft_on="nemo-rl", dpo_on="nemo-rl", grpo_on="nemo-rl")
    for method, kind in (("dpo", NemoDPO), ("grpo", NemoGRPO), ("sft", NemoSFT)):
        assert load(ExtensionKind.TRAINER, settings.trainer(method)).target is kind
        assert kind.method == method
        assert (settings.on_nemo(method), settings.built_in(method)) == (True, True)
        assert not TrainingSettings().on_nemo(method)


class TestTrainers(TrainerSuite):
    """The suite, with the fixture above."""
