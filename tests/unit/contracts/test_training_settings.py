"""Tests of the settings that name the trainer of a method."""

from __future__ import annotations

import pytest

from ratchet.contracts.loop import TrainingSettings


@pytest.mark.parametrize(
    ("name", "trainer", "on_nemo"),
    [
        ("trl", "sft", False),
        ("sft", "sft", False),
        ("nemo-rl", "nemo-rl-sft", True),
        ("nemo-rl-sft", "nemo-rl-sft", True),
        ("mine", "mine", None),
    ],
)
def test_a_trainer_is_named_by_its_library_or_its_entry_point(name: str, trainer: str, on_nemo: bool | None) -> None:
    settings = TrainingSettings(sft_on=name)
    assert settings.trainer("sft") == trainer
    assert settings.built_in("sft") == (on_nemo is not None)
    assert settings.on_nemo("sft") == bool(on_nemo)
