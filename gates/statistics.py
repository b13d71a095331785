"""Statistics: paired confidence intervals for the gate, and the sample ratio of a rollout. `sequential.py` has the rollout's tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ratchet.contracts.evaluation import Interval

_LEAST_LENGTHS = 10
"""Minimum number of differences with a length for an adjustment."""
_ROUNDING = 1e-9
"""Half-widths below this are rounding errors of zero."""


def _special() -> Any:
    """Return scipy.special. Its import takes 15 MB, which the idle service does not need; scipy.stats would take a second, too."""
    from scipy import special

    return special


def paired_interval(differences: Sequence[float], level: float) -> Interval | None:
    """Return the mean of per-prompt differences with a two-sided Student t interval. None for fewer than two differences.

    If the differences are a few large losses and many small gains, the lower end is corrected (`_reach_if_skewed`), because a sample with
    too few of the losses has too high a mean and too low a variance. The lower end is also at least as low as with the largest frequency
    of losses of 1 that a sample without such a loss does not exclude. If all differences are equal, the sample variance is 0 and not
    informative. The half-width is then the limit for an event that did not occur in n trials (generalised "rule of three").
    """
    n = len(differences)
    if n < 2:
        return None
    values = np.asarray(differences, dtype=float)
    mean, error = float(values.mean()), float(values.std(ddof=1) / math.sqrt(n))
    half = float(_special().stdtrit(n - 1, (1 + level) / 2)) * error
    half = max(half, _never(n, level)) if error == 0 else half
    reach = max(half, _never(n, level), 0.0 if error == 0 else _reach_if_skewed(values, level) * error)
    return Interval(estimate=mean, low=mean - reach, high=mean + half, level=level, n=n)


def paired_share_interval(gained: int, lost: int, n: int, level: float) -> Interval | None:
    """Return the difference of two shares of the same `n` prompts with a two-sided score interval. None for fewer than two prompts.

    `gained` prompts belong only to the new share, `lost` ones only to the old. The interval has the differences that a score test does not
    reject. With few prompts its error is closer to that of `level` than the one of Student's interval, which is wider. Source: Tango,
    Equivalence test and confidence interval for the difference in proportions for the paired-sample design, Statist. Med. 17, 1998.
    """
    if n < 2:
        return None
    estimate, limit = (gained - lost) / n, normal_quantile((1 + level) / 2)

    def score(difference: float) -> float:
        """Return the score of a true difference: the distance of the estimate from it in standard errors."""
        b = (2 * n - gained + lost) * difference - gained - lost
        c = -lost * difference * (1 - difference)
        share_lost = (math.sqrt(max(0.0, b * b - 8 * n * c)) - b) / (4 * n)
        variance = n * (2 * share_lost + difference * (1 - difference))
        distance = gained - lost - n * difference
        return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance) if distance else 0.0

    def end(low: float, high: float, reached: float) -> float:
        """Return the difference between `low` and `high` whose score is `reached`. The score falls with the difference."""
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if score(middle) > reached else (low, middle)
        return (low + high) / 2

    return Interval(estimate=estimate, low=end(-1.0, estimate, limit), high=end(estimate, 1.0, -limit), level=level, n=n)


SKEWED = -0.5
"""Skewness below which the lower end of an interval is corrected. Paired rewards of 0 and 1 are less skewed, and keep their power."""


def _reach_if_skewed(values: np.ndarray, level: float) -> float:
    """Return the distance of the lower end from the mean in standard errors, by the skewness of `values`; 0 if they are not skewed.

    The cubic transformation of Hall (On the removal of skewness by transformation, J. R. Statist. Soc. B 54, 1992), with Student's
    quantile. `values` has shape [n] and is not constant.
    """
    n = len(values)
    centred = values - values.mean()
    spread = float((centred**2).mean() ** 1.5)
    skewness = float((centred**3).mean() / spread) if spread > 0 else 0.0
    if skewness >= SKEWED:
        return 0.0
    quantile = float(_special().stdtrit(n - 1, (1 + level) / 2))
    inner = 1 + skewness * (quantile / math.sqrt(n) - skewness / (6 * n))
    return 3 * math.sqrt(n) / skewness * (float(np.cbrt(inner)) - 1)


def _never(n: int, level: float) -> float:
    """Return the upper limit for the probability of an event that did not occur in `n` trials, with the error of one end of an interval."""
    return float(1 - ((1 - level) / 2) ** (1 / n))


LENGTH_LEVEL = 0.975
"""Highest level of the interval at equal length. A candidate whose whole gain comes from the length of its answers then passes in one to
three percent of the evaluations (`benchmarks/gate_decisions.py`). The level of `quality` is higher, because an edition has several
evaluations. At that level, a candidate with longer answers would need a much larger gain than one with answers of equal length."""


def length_adjusted_interval(differences: Sequence[float], longer: Sequence[float | None], level: float) -> Interval | None:
    """Return the mean difference that remains at equal length, with a two-sided Student t interval. None for too few lengths.

    `longer` has, per difference, the length of the candidate's answer minus that of the champion's; None where the length must not be
    adjusted for. The differences are regressed on tanh(longer / its standard deviation) and on whether there is a length. The result is
    the intercept, with White's variance (HC1). Source: Dubois, Galambosi, Liang, Hashimoto: Length-controlled AlpacaEval, arXiv:2404.04475.
    """
    n = len(differences)
    adjusted = np.array([length is not None for length in longer])
    if adjusted.sum() < _LEAST_LENGTHS:
        return None
    lengths = np.array([length or 0.0 for length in longer])
    spread = float(lengths[adjusted].std(ddof=1))
    if spread == 0 and lengths.any():  # every answer is longer by the same length, so nothing tells its effect from the gain
        return Interval(estimate=float(np.mean(differences)), low=-1.0, high=1.0, level=level, n=n)
    design = np.column_stack([np.ones(n), np.tanh(lengths / (spread or 1.0)), adjusted - adjusted.mean()])
    inverse = np.linalg.pinv(design.T @ design)
    values = np.asarray(differences, dtype=float)
    fitted = inverse @ design.T @ values
    residuals = values - design @ fitted
    freedom = n - int(np.linalg.matrix_rank(design))
    variance = inverse @ (design.T * residuals**2) @ design @ inverse * n / freedom
    estimate, half = float(fitted[0]), float(_special().stdtrit(freedom, (1 + level) / 2)) * math.sqrt(max(0.0, float(variance[0, 0])))
    half = max(half, _never(n, level)) if half < _ROUNDING else half
    return Interval(estimate=estimate, low=estimate - half, high=estimate + half, level=level, n=n)


def sample_ratio_p(champion: int, candidate: int, share: float) -> float:
    """Return the p-value for the hypothesis that each session was assigned to the candidate with probability `share`.

    `champion` and `candidate` are numbers of distinct sessions. The test is the exact two-sided binomial test. For large numbers it equals
    the chi-square test of the sample ratio, and it also holds for small ones. The result is 1 if `share` is 0 or 1, where the numbers
    contain no information on a ratio.
    """
    n = champion + candidate
    if not 0 < share < 1 or n == 0:
        return 1.0
    return min(1.0, 2 * float(min(_special().bdtr(candidate, n, share), _special().bdtrc(candidate - 1, n, share))))


def normal_quantile(share: float) -> float:
    """Return the quantile of the standard normal distribution."""
    return float(_special().ndtri(share))


def normal_share(quantile: float) -> float:
    """Return the share of the standard normal distribution below a quantile."""
    return float(_special().ndtr(quantile))


def detectable_effect(n: int, level: float, power: float = 0.8, deviation: float = 0.5) -> float:
    """Return the smallest true mean difference that a paired interval over `n` prompts detects with probability `power`.

    `deviation` is the standard deviation of one difference.
    """
    return float((normal_quantile((1 + level) / 2) + normal_quantile(power)) * deviation / math.sqrt(max(n, 1)))


def deviation_of(interval: Interval) -> float:
    """Return the standard deviation of one difference that `paired_interval` measured, from its interval."""
    factor = float(_special().stdtrit(interval.n - 1, (1 + interval.level) / 2))
    return (interval.high - interval.estimate) / factor * math.sqrt(interval.n)
