"""Tests of limits on gate settings that would let a worse candidate pass."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from contracts.loop import GateSettings


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, -math.inf])
def test_min_effect_must_be_finite_and_not_negative(value: float) -> None:
    with pytest.raises(ValidationError, match="min_effect"):
        GateSettings(min_effect=value)


def test_min_effect_of_zero_is_valid() -> None:
    assert GateSettings(min_effect=0.0).min_effect == 0.0
