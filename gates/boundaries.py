"""Boundaries of a test that looks at its data several times: how much of its error each look may spend.

The error is spent by the function of Hwang, Shih and DeCani, and a boundary follows from the number of observations at each look by the
recursion of Armitage, McPherson and Rowe. Sources: Lan, DeMets: Discrete sequential boundaries for clinical trials, Biometrika 70 (1983);
Hwang, Shih, DeCani: Group sequential designs using a family of type I error probability spending functions, Statistics in Medicine 9
(1990); Armitage, McPherson, Rowe: Repeated significance tests on accumulating data, JRSS A 132 (1969).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

GAMMA = -12.0
"""Parameter of the spending function. The last of five looks keeps 99 % of the error, so that looks cost almost no power."""
_FARTHEST = 8.0
"""Standard deviations below 0 from which on the density is ignored."""
_NODES = (200, 1500)
"""Least and greatest number of nodes of an integral."""
_BISECTIONS = 60
LEAST_ERROR = 1e-12
"""Least error of a look, so that its confidence level is a number below 1."""


def spent(fraction: float, error: float) -> float:
    """Return how much of `error` is spent when `fraction` of the observations is known: 0 at 0, `error` at 1."""
    share = math.expm1(-GAMMA * min(1.0, fraction)) / math.expm1(-GAMMA)  # exactly 1 at 1, which a product with `error` first would not be
    return error * share


def error_of_look(sizes: Sequence[int], planned: int, error: float, last: bool) -> float:
    """Return the one-sided error of a single test at the newest look, such that all looks together have at most `error`.

    `sizes` has the number of independent observations at each look so far, and `planned` is their number in the whole test. `last`: no
    look follows, so what is left of the error is spent, also if there are fewer observations than planned. A look without new
    observations is not counted. With a single look the result is `error`.
    Raises ValueError if the newest look has no observation.
    """
    counted = tuple(sorted(set(sizes) - {0}))
    if not sizes or sizes[-1] == 0:
        raise ValueError("no boundary without observations")
    return min(error, max(LEAST_ERROR, _errors(counted, planned, error, last)[-1]))


@lru_cache(maxsize=4096)
def _errors(sizes: tuple[int, ...], planned: int, error: float, last: bool) -> tuple[float, ...]:
    """Return the one-sided error of the test at each look. `sizes` increase."""
    if last and len(sizes) == 1:
        return (error,)
    fractions = [size / sizes[-1] for size in sizes]
    total = [spent(size / planned, error) for size in sizes]
    if last:
        total[-1] = error
    errors: list[float] = []
    places, density = np.zeros(1), np.ones(1)
    known, before = 0.0, 0.0
    for fraction, now in zip(fractions, total, strict=True):
        step = math.sqrt(fraction - known)
        bound = _bound(places, density, step, now - before)
        errors.append(float(_ndtr(-bound / math.sqrt(fraction))))
        low = -_FARTHEST * math.sqrt(fraction)
        places, density = _continued(places, density, step, low, max(low, bound))
        known, before = fraction, now
    return tuple(errors)


def _bound(places: np.ndarray, density: np.ndarray, step: float, error: float) -> float:
    """Return the sum above which a share `error` of all tests is after the step. `density` has weights at `places` before it."""
    low, high = -_FARTHEST, 2 * _FARTHEST
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if float((density * _ndtr((places - middle) / step)).sum()) > error:
            low = middle
        else:
            high = middle
    return high


def _continued(places: np.ndarray, density: np.ndarray, step: float, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Return places and weights of the sums after the step of the tests that go on: those between `low` and `high`."""
    count = int(min(_NODES[1], max(_NODES[0], 8 * (high - low) / step)))
    nodes, weights = _legendre(count)
    found = low + (high - low) * (nodes + 1) / 2
    kernel = np.exp(-((found[:, None] - places[None, :]) ** 2) / (2 * step**2)) / (step * math.sqrt(2 * math.pi))
    return found, (kernel @ density) * weights * (high - low) / 2


@lru_cache(maxsize=16)
def _legendre(count: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return nodes, weights


def _ndtr(values: Any) -> Any:
    """Return the share of the standard normal distribution below each value."""
    from scipy import special  # imported late: it takes 15 MB, which the idle service does not need

    return special.ndtr(values)
