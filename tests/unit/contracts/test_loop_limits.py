"""Tests of limits on gate settings that would let a worse candidate pass."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from ratchet.contracts.loop import GateSettings


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, -math.inf])
def test_min_effect_must_be_finite_and_not_negative(value: float) -> None:
    with pytest.raises(ValidationError, match="min_effect"):
        GateSettings(min_effect=value)


def test_min_effect_of_zero_is_valid() -> None:
    assert GateSettings(min_effect=0.0).min_effect == 0.0


def test_several_answers_per_prompt_must_be_sampled() -> None:
    with pytest.raises(ValidationError, match=r"gate\.samples = 2 needs gate\.temperature above 0: at temperature 0, each answer"):
        GateSettings(samples=2)
    assert GateSettings(samples=2, temperature=0.7).samples == 2
    assert GateSettings(temperature=0.7).samples == 1, "one sampled answer per prompt is allowed"


@pytest.mark.parametrize("values", [{"samples": 0}, {"samples": 9}, {"temperature": -0.1}, {"temperature": math.nan}, {"temperature": 2.1}])
def test_samples_and_temperature_are_limited(values: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(values))):
        GateSettings.model_validate({"samples": 2, "temperature": 0.7} | values)
