"""Decides which recipe a search tries next, and which trained model becomes the candidate. Pure: a function of the search's rows.

The plan's own recipe is trained in full first, so that a search never has less than a cycle without one. The other recipes then run for a
third of its steps, and the best third of them in full (successive halving: Jamieson and Talwalkar 2016, arXiv:1502.07943, with one cut).
A trial begins only if the budget is likely to suffice for it. All trials are compared on the same development prompts, and a later one has
to show a gain that chance alone rarely gives to the best of so many (`demanded`). `search_results.py` shows the outcome.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from ratchet.contracts.jobs.search import Chosen, Trial, TrialEnd, trial_plan
from ratchet.contracts.jobs.training import TrainingPlan

THIRD = 3
"""Divisor of the steps and of the recipes: the first trial of another recipe has a third of the steps of trial 1, and the best third of
these recipes is then trained in full."""
SHORT = 100
"""Least number of steps of a first trial. If a third is fewer, the recipes are trained in full at once: too few steps show too little."""
LEAST_PROMPTS = 20
"""Minimum number of development prompts for a search. With fewer, the best of several recipes is often the luckiest."""
OWN = "the recipe of the plan"
"""`Search.first` if trial 1 trains what a cycle without a search would train."""
CHANCE = NormalDist().cdf(-1.0)
"""Probability that trial 1 is replaced although all recipes are equally good, about 16 %. It is the one-sided error of a rule that demands
a gain of one standard error from a single other recipe."""
TIE = 1 + 1e-9
"""Factor on the error that a gain must exceed. If two models differ on a single prompt, gain and error are equal, up to rounding."""


def demanded(compared: int) -> float:
    """Return how many standard errors a gain must exceed if `compared` trials are compared: 1.00 for two, 1.86 for six.

    It is the normal quantile of 1 - CHANCE / (compared - 1). By the inequality of Bonferroni, the probability that any of the other trials
    replaces trial 1 by chance is then at most CHANCE, also for trials that depend on each other (Dunn 1961, "Multiple comparisons among
    means", Journal of the American Statistical Association 56, doi:10.1080/01621459.1961.10482090). The normal distribution is an
    approximation, because most scores are 0 or 1 and a search may have as few as `LEAST_PROMPTS` prompts.
    Raises ValueError if fewer than two trials are compared.
    """
    if compared < 2:
        raise ValueError(f"{compared} trials cannot be compared; at least two are needed")
    return NormalDist().inv_cdf(1.0 - CHANCE / (compared - 1))


@dataclass(frozen=True)
class Tried:
    """A trial, and how it ended; None while it runs."""

    trial: Trial
    end: TrialEnd | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the trial has published a model."""
        return self.end is not None and self.end.succeeded

    @property
    def score(self) -> float:
        """Mean score of its model on the development prompts; minus infinity without a score."""
        known = [score for score in self.end.scores if score is not None] if self.end else []
        return math.fsum(known) / len(known) if known else -math.inf


def next_trial(plan: TrainingPlan, tried: Sequence[Tried], attempt: int, timeout: float) -> Trial | Chosen | None:
    """Return the next trial of the plan's search, or the choice after the last one; None if no trial published a model.

    `tried` are the trials so far, all ended. `attempt` is the number of the next attempt, and `timeout` the longest duration of an attempt
    in seconds. Raises ValueError if the plan has no search.
    """
    if plan.search is None:
        raise ValueError("the plan has no search")
    if not tried:
        return Trial(number=1, variant=0, attempt=attempt, timeout=timeout, reason=plan.search.first)
    left = plan.search.budget - spent(tried)
    wanted = _wanted(len(plan.search.variants), tried)
    if wanted is None:
        return choice(plan, tried, "every recipe was tried")
    variant, most_steps, reason = wanted
    if (needed := _seconds(tried, variant, most_steps)) > left:
        return choice(plan, tried, f"the next trial would take about {needed:.0f} s, and {max(0.0, left):.0f} s of the budget are left")
    return Trial(number=len(tried) + 1, variant=variant, attempt=attempt, timeout=min(timeout, left), most_steps=most_steps, reason=reason)


def spent(tried: Sequence[Tried]) -> float:
    """Return the seconds of the budget that the trials have used. The first trial is the training of a cycle without a search."""
    return math.fsum(one.end.seconds for one in tried[1:] if one.end)


def choice(plan: TrainingPlan, tried: Sequence[Tried], why_now: str) -> Chosen | None:
    """Return the trial whose model becomes the candidate; None if none published a model. `why_now` says why the search ends.

    An earlier trial is replaced by a later one only if the mean paired difference of their scores exceeds `demanded` standard errors. All
    trials with scores count as compared, short and full ones.
    """
    able = [one for one in tried if one.succeeded]
    if not able or plan.search is None:
        return None
    best, compared = able[0], len(measured(able))
    for one in able[1:]:
        gain, error = difference(one, best)
        if compared > 1 and gain > demanded(compared) * error * TIE:
            best = one
    return Chosen(
        trial=best.trial.number,
        variant=plan.search.variants[best.trial.variant].name,
        plan=trial_plan(plan, best.trial).id,
        reason=f"{_why(best, able)}; {why_now}",
    )


def measured(tried: Sequence[Tried]) -> list[Tried]:
    """Return the trials whose model has a score."""
    return [one for one in tried if one.succeeded and math.isfinite(one.score)]


def _why(best: Tried, able: Sequence[Tried]) -> str:
    if math.isinf(best.score):
        return (
            f"{'the first model has no score to compare with' if measured(able) else 'no model was measured'}, so the earliest one counts"
        )
    others = [one for one in measured(able) if one is not best]
    if not others:
        return f"the only model with a score, {best.score:.3f}"
    rule = f"{len(others) + 1} trials were compared, so a gain had to exceed {demanded(len(others) + 1):.2f} standard errors"
    if best is not able[0]:
        gain, error = difference(best, able[0])
        return f"score {best.score:.3f}, {gain:+.3f} against trial {able[0].trial.number} (standard error {error:.3f}); {rule}"
    other = max(others, key=lambda one: one.score)
    gain, error = difference(other, best)
    apart = f"differs by {gain:+.3f} (standard error {error:.3f})"
    return f"score {best.score:.3f}; the best other one, trial {other.trial.number}, {apart}; {rule}"


def difference(one: Tried, other: Tried) -> tuple[float, float]:
    """Return the mean of `one` minus `other` over the development prompts that both have a score for, and its standard error.

    Without two such prompts, the result is (0, infinity).
    """
    scores = zip(one.end.scores, other.end.scores, strict=False) if one.end and other.end else ()
    pairs = [a - b for a, b in scores if a is not None and b is not None]
    if len(pairs) < 2:
        return 0.0, math.inf
    mean = math.fsum(pairs) / len(pairs)
    return mean, math.sqrt(math.fsum((pair - mean) ** 2 for pair in pairs) / (len(pairs) - 1) / len(pairs))


def _wanted(variants: int, tried: Sequence[Tried]) -> tuple[int, int | None, str] | None:
    """Return the variant that the search would try next, its limit of steps and the reason; None if it is complete."""
    first = tried[0]
    if first.succeeded and first.end and not first.end.scores:
        return None  # nothing can be compared
    third = math.ceil(first.end.step / THIRD) if first.succeeded and first.end else 0
    short = third if third >= SHORT else None
    seen = {one.trial.variant for one in tried[1:]}
    for variant in range(1, variants):
        if variant not in seen:
            return variant, short, f"a third of the {first.end.step if first.end else 0} steps of trial 1" if short else "in full"
    if short is None:
        return None
    brief = [one for one in tried[1:] if one.trial.most_steps is not None]
    kept = sorted((one for one in brief if one.succeeded), key=lambda one: -one.score)[: math.ceil(len(brief) / THIRD)]
    full = {one.trial.variant for one in tried if one.trial.most_steps is None}
    for one in kept:
        cut = one.end is not None and one.trial.most_steps is not None and one.end.step >= 0.8 * one.trial.most_steps
        if cut and one.trial.variant not in full:
            return one.trial.variant, None, f"among the best third of the short trials (trial {one.trial.number})"
    return None


def expected_seconds(tried: Sequence[Tried], trial: Trial) -> float:
    """Return about how many seconds a later trial needs. `tried` are the trials so far, with or without this one."""
    return _seconds([one for one in tried if one.trial.number < trial.number], trial.variant, trial.most_steps)


def _seconds(tried: Sequence[Tried], variant: int, most_steps: int | None) -> float:
    """Return about how many seconds a trial needs, from the first trial and the same recipe's short one."""
    first = tried[0].end
    if first is None or not first.step:
        return first.seconds if first else 0.0
    steps = most_steps or first.step
    rates = [one.end.seconds / one.end.step for one in (tried[0], *tried) if one.end and one.end.step and one.trial.variant in (0, variant)]
    return steps * max(rates)
