"""Values of a loop file that would make the gate say the opposite of what it means."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from contracts.loop import GateSettings


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, -math.inf])
def test_a_gate_cannot_be_told_to_take_what_is_worse(value: float) -> None:
    with pytest.raises(ValidationError, match="min_effect"):
        GateSettings(min_effect=value)


def test_no_least_effect_is_a_choice() -> None:
    assert GateSettings(min_effect=0.0).min_effect == 0.0
