"""`RolloutJudge` that decides on a rollout step from the evidence of live traffic.

Steps with low weights decide on exposure, errors, refused requests and latency. The step with the largest weight below 100 also decides on
quality, with a non-inferiority test. At any step, a candidate with significantly lower ratings rolls back, unless its whole interval is
within the margin. The error budget alpha is divided evenly over the three tested metrics and all steps. Each user counts once, with the
mean of the user's ratings. Latency is compared by ratios without a test and is not part of the budget.

No step advances on evidence that is missing, stale or contradictory, or whose sessions are not split as the route says.
"""

from __future__ import annotations

import math

from contracts.evaluation import Interval
from contracts.loop import RolloutSettings
from contracts.serving import Arm, Evidence, StepJudgement, StepResult
from gates.statistics import difference_sequence, sample_ratio_p, sequence_factor, share_difference_sequence

_METRICS = 3
"""Number of metrics that are tested: errors, refused requests and ratings."""
_SAMPLE_RATIO = 1e-4
"""A p-value of the sessions' ratio below this means that the sessions were not assigned as the route says."""
_SECONDS = 1.0
"""Largest difference between the length of a step and the window of its evidence."""


class EvidenceJudge:
    """`RolloutJudge` that uses the rollout settings of the loop file."""

    def __init__(self, settings: RolloutSettings) -> None:
        self._settings = settings
        self._alpha = settings.alpha / (_METRICS * len(settings.steps))
        self._tightest = max(20.0, float(settings.min_requests))

    def judge(self, largest: bool, seconds: float, share: float, fresh: Evidence, mature: Evidence) -> StepJudgement:
        """Roll back on evidence of harm, wait while evidence is missing or invalid, otherwise advance."""
        counts = {"requests": fresh.champion.requests + fresh.candidate.requests, "candidate_requests": fresh.candidate.requests}
        flaw = _flaw(seconds, fresh, mature)
        if flaw:
            return StepJudgement(result=StepResult.WAIT, reasons=(flaw,), **counts)
        errors = share_difference_sequence(_errors(fresh.champion), _errors(fresh.candidate), self._alpha, self._tightest)
        refusals = share_difference_sequence(_refusals(fresh.champion), _refusals(fresh.candidate), self._alpha, self._tightest)
        quality = difference_sequence(mature.champion.rated, mature.candidate.rated, self._alpha, self._tightest)
        strict = difference_sequence(mature.champion.rated, mature.candidate.rated, 2 * self._settings.beta, self._tightest)
        harm = self._harm(errors, refusals, quality, fresh)
        missing = self._missing(largest, seconds, share, fresh, strict)
        result = StepResult.ROLL_BACK if harm else StepResult.WAIT if missing else StepResult.ADVANCE
        reasons = harm or missing or self._summary(largest, fresh, strict)
        return StepJudgement(result=result, reasons=tuple(reasons), quality=strict, errors=errors, refusals=refusals, **counts)

    def _harm(self, errors: Interval | None, refusals: Interval | None, quality: Interval | None, fresh: Evidence) -> list[str]:
        settings = self._settings
        harm = []
        for what, interval in (("error share", errors), ("share of refused requests", refusals)):
            if interval is not None and interval.low > settings.error_margin:
                harm.append(f"the {what} is higher by {_show(interval)}, more than the margin {settings.error_margin:g}")
        if quality is not None and quality.high < 0 and quality.low <= -settings.margin:
            harm.append(f"the mean rating is lower by {_show(quality)}; a loss beyond the margin {settings.margin:g} cannot be ruled out")
        slow = _slower(fresh, settings.latency_ratio, settings.min_requests)
        return [*harm, slow] if slow else harm

    def _missing(self, largest: bool, seconds: float, share: float, fresh: Evidence, quality: Interval | None) -> list[str]:
        settings, n = self._settings, fresh.candidate.served
        missing = []
        if n < settings.min_requests:
            missing.append(f"{n} of {settings.min_requests} requests seen")
        if fresh.champion.served < settings.min_requests and (largest or share < 100):
            missing.append(f"{fresh.champion.served} of {settings.min_requests} requests of the champion seen for a comparison")
        missing += [f"the latency of {arm.tag} is not measured" for arm in (fresh.champion, fresh.candidate) if _unmeasured(arm)]
        p = sample_ratio_p(fresh.champion.sessions, fresh.candidate.sessions, share / 100)
        if not p >= _SAMPLE_RATIO:
            told = f"{fresh.candidate.sessions} of {fresh.champion.sessions + fresh.candidate.sessions} sessions"
            missing.append(f"the versions are not comparable: {told} on the candidate, although the route says {share:g} % (p {p:.1g})")
        if seconds < settings.min_seconds:
            missing.append(f"{seconds:.0f} of {settings.min_seconds:g} s elapsed")
        if largest and (quality is None or not quality.low > -settings.margin):
            known = _show(quality) if quality else "no ratings on both sides"
            missing.append(f"non-inferiority within {settings.margin:g} is not shown yet: {known}")
        return missing

    def _summary(self, largest: bool, fresh: Evidence, quality: Interval | None) -> list[str]:
        old, new = fresh.champion, fresh.candidate
        errors = f"errors {new.errors}/{new.served} against {old.errors}/{old.served}"
        if new.refused or old.refused:
            errors += f"; refused {new.refused}/{new.requests} against {old.refused}/{old.requests}"
        rated = f"; ratings {_show(quality)}, above -{self._settings.margin:g}" if largest and quality else ""
        return [errors + rated]


def _flaw(seconds: float, fresh: Evidence, mature: Evidence) -> str | None:
    """Return why the evidence does not belong to this step, or None."""
    if (fresh.champion.tag, fresh.candidate.tag) != (mature.champion.tag, mature.candidate.tag):
        return "the evidence for errors and the evidence for quality name other versions"
    covered = (fresh.until - fresh.since).total_seconds()
    if abs(covered - seconds) > _SECONDS:
        return f"the evidence covers {covered:.0f} s, but the step is {seconds:.0f} s old"
    if mature.since != fresh.since or mature.until > fresh.until:
        return "the evidence for quality is from another time than the evidence for errors"
    return None


def _errors(arm: Arm) -> tuple[int, int]:
    return arm.errors, arm.served


def _refusals(arm: Arm) -> tuple[int, int]:
    return arm.refused, arm.requests


def _unmeasured(arm: Arm) -> bool:
    """Whether an arm has answers but no latency. One answer is not enough for percentiles."""
    return arm.served - arm.errors > 1 and arm.latency_p50_ms is None


def _slower(fresh: Evidence, ratio: float, enough: int) -> str | None:
    """Return a reason if the candidate is slower by more than `ratio`, otherwise None.

    Both the median and the 95th percentile must exceed the ratio, because single slow requests or a busy machine affect only the tail.
    """
    old, new = fresh.champion, fresh.candidate
    if min(old.served, new.served) < enough:
        return None
    pairs = [(new.latency_p50_ms, old.latency_p50_ms), (new.latency_p95_ms, old.latency_p95_ms)]
    ratios = [a / b for a, b in pairs if a is not None and b]
    if len(ratios) < 2 or min(ratios) <= ratio:
        return None
    return f"the candidate is slower: median ×{ratios[0]:.2f}, p95 ×{ratios[1]:.2f}, more than ×{ratio:g}"


def _show(interval: Interval) -> str:
    return f"{interval.estimate:+.3f} ({interval.low:+.3f} to {interval.high:+.3f}, {interval.n} clusters)"


def ratings_to_decide(settings: RolloutSettings, difference: float = 0.0, deviation: float = 0.5) -> int:
    """Estimate the number of ratings that the quality step needs to show non-inferiority.

    The number covers both versions, with one rating per user. `difference` is the assumed true difference of the mean ratings,
    `deviation` the standard deviation of a rating. Returns -1 if the number is not reachable.
    """
    below = [weight for weight in settings.steps if weight < 100]
    share = (below[-1] if below else 50.0) / 100
    room = settings.margin + difference
    if room <= 0:
        return -1
    n = 20.0
    while n < 1e9:
        error = deviation * math.sqrt(1 / (n * share) + 1 / (n * (1 - share)))
        if error * sequence_factor(n, 2 * settings.beta, max(20.0, float(settings.min_requests))) <= room:
            return math.ceil(n)
        n *= 1.02
    return -1
