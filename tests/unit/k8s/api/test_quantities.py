"""Tests of amounts in the notation of Kubernetes."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.k8s.api.quantities import UNITS, multiple, parse


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("2", Fraction(2)),
        (8, Fraction(8)),
        ("500m", Fraction(1, 2)),
        ("1.5", Fraction(3, 2)),
        ("64Gi", Fraction(64 * 2**30)),
        ("1e3", Fraction(1000)),
        ("2E", Fraction(2 * 10**18)),
        ("0", Fraction(0)),
        ("1937332Mi", Fraction(1937332 * 2**20)),
    ],
)
def test_quantities_are_parsed(text: str | int, amount: Fraction) -> None:
    assert parse(text) == amount


@pytest.mark.parametrize("text", ["", "Gi", "5 Gi", "5gi", "five", "1.2.3", "1ee3"])
def test_text_that_is_not_a_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse(text)
    with pytest.raises(ValueError, match="is not a quantity"):
        multiple(text, 2)


@given(st.integers(0, 10**6), st.sampled_from(sorted(UNITS)), st.integers(0, 100))
def test_a_multiple_is_exact(number: int, unit: str, times: int) -> None:
    assert parse(multiple(f"{number}{unit}", times)) == parse(f"{number}{unit}") * times


@given(st.integers(0, 10**6), st.integers(1, 100))
def test_fractions_are_multiplied_exactly(thousandths: int, times: int) -> None:
    text = f"{thousandths // 1000}.{thousandths % 1000:03d}"
    assert parse(multiple(text, times)) == parse(text) * times
