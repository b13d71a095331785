"""Exact arithmetic on Kubernetes quantities such as 500m, 1600Gi and 8."""

from __future__ import annotations

import re
from fractions import Fraction

UNITS = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}  # fmt: skip
_FORM = re.compile(r"([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(?:[eE]([+-]?\d+))?([a-zA-Z]*)")


def parse(text: str | int) -> Fraction:
    """Parse a quantity into whole units (cores, bytes or pieces).

    Raises ValueError if `text` is not a quantity.

    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
    """
    found = _FORM.fullmatch(str(text))
    if not found or found[3] not in UNITS:
        raise ValueError(f"{text!r} is not a quantity, such as 2, 500m or 64Gi")
    return Fraction(found[1]) * Fraction(10) ** int(found[2] or 0) * UNITS[found[3]]


def multiple(text: str, times: int) -> str:
    """Multiply a quantity by `times` and keep its unit.

    A whole number stays whole. A number with a fraction or an exponent is written in thousandths (suffix m). Raises ValueError if
    `text` is not a quantity.
    """
    found = _FORM.fullmatch(text)
    if not found or found[3] not in UNITS:
        raise ValueError(f"{text!r} is not a quantity, such as 2, 500m or 64Gi")
    if found[2] is None and "." not in found[1]:
        return f"{int(found[1]) * times}{found[3]}"
    return f"{int(parse(text) * times * 1000)}m"
