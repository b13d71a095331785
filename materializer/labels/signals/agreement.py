"""Agreement of signals with the ratings of the same answers, and whether a signal may label other answers. Pure.

A share of agreeing ratings alone says little: where nine ratings in ten are good, nine in ten agree with a signal that always says "right".
So ratings must also agree with the signal more often than on answers without it.

The intervals are Wilson's with the effective number of answers, because the answers to one user are not independent: the variance comes
from the users' totals, and the quantile is Student's with one degree of freedom less than users. Source: Korn, Graubard: Confidence
intervals for proportions with small expected number of positive counts estimated from survey data, Survey Methodology 24, 1998; Dean,
Pagano: Evaluating confidence interval methods for binomial proportions in clustered surveys, J. Surv. Stat. Methodol. 3, 2015. The
difference of two shares is that of Newcombe (1998, method 10).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import polars as pl

from ratchet.contracts.data.beliefs import SignalBelief
from ratchet.contracts.data.records import FeedbackKind, Signal
from ratchet.contracts.loop import SignalSettings

LEVEL = 0.995
"""Confidence level of the two-sided intervals. One side of each fails in 0.25 %, so that a line with all twelve signals named, which say
nothing, uses one in at most 3 % of the freezes."""
LEAST_RATED = 20
"""Least number of rated answers with a signal that is used."""
LEAST_PEOPLE = 10
"""Least number of users who asked for them. With fewer, the variance between users is not known well enough."""


class Proportion(NamedTuple):
    """A share with its interval."""

    estimate: float
    low: float
    high: float


def measure_signals(traces: pl.DataFrame, feedback: pl.DataFrame, signals: pl.DataFrame, settings: SignalSettings) -> list[SignalBelief]:
    """Return for each signal of an answer of `traces` how far it agrees with the ratings.

    `traces` has the columns source, id, user and session of the answers that may be trained on. `feedback` and `signals` are results of
    `attach`. An answer is rated good if its mean rating is above one half; a mean of one half is neutral, and the answer is not counted.
    """
    person = pl.coalesce("user", "session", pl.concat_str("source", "id", separator="/")).alias("person")
    ratings = feedback.filter((pl.col("kind") == FeedbackKind.RATING.value) & pl.col("value").is_not_null())
    means = ratings.group_by("source", "id").agg(pl.col("value").mean().alias("mean")).filter(pl.col("mean") != 0.5)
    answers = traces.select("source", "id", person)
    rated = answers.join(means, on=["source", "id"], how="inner").sort("source", "id")
    given = signals.join(answers, on=["source", "id"], how="semi").select("signal", "source", "id").unique()
    return [_belief(signal, given.filter(pl.col("signal") == signal.value), rated, settings) for signal in _known(given)]


def _known(given: pl.DataFrame) -> list[Signal]:
    names = set(given["signal"].to_list())
    return [signal for signal in Signal if signal.value in names]


def _belief(signal: Signal, given: pl.DataFrame, rated: pl.DataFrame, settings: SignalSettings) -> SignalBelief:
    keys = ["source", "id"]
    agrees = (pl.col("mean") > 0.5) == signal.says_right
    counted = rated.with_columns(agrees.alias("agrees"))
    both = counted.join(given, on=keys, how="semi", maintain_order="left")
    rest = counted.join(given, on=keys, how="anti", maintain_order="left")
    share, other = (clustered_share(frame.select("person", "agrees").rows()) for frame in (both, rest))
    gain = None if share is None or other is None else share.estimate - other.estimate - _reach(share, other)
    known: dict[str, Any] = {
        **{"signal": signal, "answers": len(given), "rated": len(both), "people": both["person"].n_unique()},
        **{"agreeing": int(both["agrees"].sum()), "others": other.estimate if other else None},
        **({"agreement": share.estimate, "low": share.low, "high": share.high} if share else {}),
        **({"gain": max(gain, -1.0)} if gain is not None else {}),
    }
    why = _why_not(SignalBelief(**known, used=False, reason=""), settings)
    return SignalBelief(**known, used=why is None, reason=why or "it agrees with the ratings")


def _why_not(found: SignalBelief, settings: SignalSettings) -> str | None:
    """Return why a signal does not label answers; None if it does."""
    if found.rated < LEAST_RATED:
        return f"{found.rated} rated answers have it, and {LEAST_RATED} are required"
    if found.people < LEAST_PEOPLE:
        return f"{found.people} users asked for the rated answers that have it, and {LEAST_PEOPLE} are required"
    if found.low < settings.min_agreement:
        return f"its agreement may be only {found.low:.2f}, and signals.min_agreement is {settings.min_agreement:g}"
    if found.gain <= 0:
        return f"ratings may agree with it no more often than without it (difference at least {found.gain:+.2f})"
    return None if found.signal in settings.use else "it passes, and signals.use does not name it"


def clustered_share(cases: Sequence[tuple[str, bool]]) -> Proportion | None:
    """Return the share of true cases with a two-sided interval at LEVEL. A case is (person, holds). None without cases.

    With one person, the interval is [0, 1].
    """
    n = len(cases)
    if n == 0:
        return None
    estimate = sum(holds for _, holds in cases) / n
    sizes, totals = Counter(person for person, _ in cases), Counter(person for person, holds in cases if holds)
    people = len(sizes)
    if people < 2:
        return Proportion(estimate, 0.0, 1.0)
    residuals = math.fsum((totals[person] - estimate * size) ** 2 for person, size in sizes.items())
    variance = people / (people - 1) * residuals / n**2
    if estimate in (0.0, 1.0):
        effective = float(people)  # nothing tells how alike the answers to one user are
    else:
        effective = min(float(n), estimate * (1 - estimate) / variance) if variance > 0 else float(n)
    return _wilson(estimate, effective, _student(people - 1))


def _wilson(estimate: float, n: float, quantile: float) -> Proportion:
    square = quantile**2 / n
    centre = (estimate + square / 2) / (1 + square)
    half = quantile * math.sqrt(estimate * (1 - estimate) / n + square / (4 * n)) / (1 + square)
    return Proportion(estimate, max(0.0, centre - half), min(1.0, centre + half))


def _reach(share: Proportion, other: Proportion) -> float:
    """Return how far the lower bound of a difference is below its estimate."""
    return math.hypot(share.estimate - share.low, other.high - other.estimate)


def _student(freedom: int) -> float:
    from scipy import special  # its import takes 15 MB, which only a freeze with signals needs

    return float(special.stdtrit(freedom, (1 + LEVEL) / 2))
