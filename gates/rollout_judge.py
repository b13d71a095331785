"""`RolloutJudge` that decides on a rollout step from the evidence of live traffic, over all steps so far.

Ratings, errors, refused requests and slow answers are tested with sequential probability ratio tests (`sequential.py`). At any step, a
test that shows harm rolls back. The step with the largest weight below 100 advances only if a loss of the margin is excluded for ratings,
errors and slow answers.

With `rollout.mirror`, the pairs of mirrored prompts are a fifth metric. They then exclude the loss of the margin instead of the ratings,
which only show harm. Pairs that are left out may hide a loss, so a large share of them makes the step wait.

The error budget alpha is divided evenly over the metrics. Errors, refused requests and slow answers are also tested for the current
step alone, because a version may fail only under more load. These tests share the budget of their metric.

Median and 95th percentile of the latency are compared by ratios without a test, and are not part of the budget. No step advances on
evidence that is missing, stale or contradictory, or whose sessions are not split as the route says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from ratchet.contracts.evaluation import Interval
from ratchet.contracts.loop import RolloutSettings
from ratchet.contracts.mirror import MIRROR_PAIRS, MIRROR_PEOPLE, Mirrored
from ratchet.contracts.serving import Arm, Evidence, SequentialTest, StepJudgement, StepResult, Stratum, latency_bucket
from ratchet.gates.sequential import (
    Difference,
    Share,
    harm_evidence,
    mean_evidence,
    mirrored_difference,
    rating_difference,
    share_difference,
    share_evidence,
)
from ratchet.gates.statistics import sample_ratio_p

METRICS = 4
"""Number of metrics that are tested without mirrored prompts: ratings, errors, refused requests and slow answers."""
_ALL_STEPS = 0.5
"""Part of a metric's error budget for the test over all steps. The tests of single steps share the rest."""
_SAMPLE_RATIO = 1e-4
"""A p-value of the sessions' ratio below this means that the sessions were not assigned as the route says."""
_SECONDS = 1.0
"""Largest difference between the length of a step and the window of its evidence."""
_LEVEL = 0.9
_QUANTILE = 1.6448536269514722
"""Level of the shown intervals, and its quantile of the normal distribution."""
_LEAST_FOR_P95 = 20
"""Answers of the champion below which its 95th percentile says nothing."""
_WORDS = {
    "ratings": "mean rating",
    "mirrored": "mean reward of the mirrored prompts",
    "errors": "error share",
    "refused": "share of refused requests",
    "slow": "share of slow answers",
}


_Pair = Callable[[Evidence], tuple[Share, Share]]
"""Reads a share of both versions."""


class EvidenceJudge:
    """`RolloutJudge` that uses the rollout settings of the loop file."""

    def __init__(self, settings: RolloutSettings) -> None:
        self._settings = settings
        alpha = settings.alpha / (METRICS + (settings.mirror > 0))
        self._equal = math.log(1 / settings.beta)
        self._harm_of_means = math.log(1 / alpha)
        self._harm = math.log(1 / (alpha * _ALL_STEPS))
        self._harm_of_step = math.log(max(1, len(settings.steps) - 1) / (alpha * (1 - _ALL_STEPS)))

    def judge(self, largest: bool, seconds: float, strata: Sequence[Stratum], mirrored: Mirrored | None = None) -> StepJudgement:
        """Roll back on evidence of harm, wait while evidence is missing or invalid, otherwise advance."""
        if not strata:
            return self._by_mirrored_prompts(seconds, mirrored)
        fresh = strata[-1].fresh
        counts = {"requests": fresh.champion.requests + fresh.candidate.requests, "candidate_requests": fresh.candidate.requests}
        flaw = _flaw(seconds, strata)
        if flaw:
            return StepJudgement(result=StepResult.WAIT, reasons=(flaw,), **counts)
        shares = {name: [one(stratum.fresh) for stratum in strata] for name, one in self._shares().items()}
        tests = {name: test for name, pairs in shares.items() if (test := self._share_test(name, pairs)) is not None}
        pairs = mirrored.pairs if mirrored is not None and self._settings.mirror else ()
        means = {
            "ratings": rating_difference([(stratum.mature.champion, stratum.mature.candidate) for stratum in strata]),
            "mirrored": mirrored_difference(pairs, self._settings.margin),
        }
        tests |= {name: self._mean_test(found) for name, found in means.items() if found is not None}
        harm = self._harms(tests, shares, fresh)
        missing = self._missing(largest, seconds, strata[-1], tests, mirrored)
        result = StepResult.ROLL_BACK if harm else StepResult.WAIT if missing else StepResult.ADVANCE
        reasons = harm or missing or self._summary(largest, fresh, tests)
        intervals = {field: _interval(tests[name]) for name, field in _INTERVALS.items() if name in tests}
        return StepJudgement(result=result, reasons=tuple(reasons), tests=tests, **intervals, **counts)

    def _by_mirrored_prompts(self, seconds: float, mirrored: Mirrored | None) -> StepJudgement:
        """Judge a step whose answers are not attributed. Each step waits until the pairs exclude a loss, also the first one.

        A larger weight would show nothing more about the candidate, so no user gets it before the pairs have decided.
        """
        found = mirrored_difference(mirrored.pairs if mirrored is not None else (), self._settings.margin)
        test = None if found is None else self._mean_test(found)
        few, least = self._few("mirrored", test), self._settings.min_seconds
        if test is not None and few is None and test.harm >= test.harm_at:
            reasons, result = [f"the {_WORDS['mirrored']} is lower: {_show(test, 'mirrored')}"], StepResult.ROLL_BACK
        else:
            reasons = [f"{seconds:.0f} of {least:g} s elapsed"] if seconds < least else []
            if few is not None or test is None or test.equal < test.equal_at:
                shown = few or (_show(test, "mirrored") if test is not None else "no pairs")
                reasons.append(f"non-inferiority within {self._settings.margin:g} is not shown yet: {shown}")
                reasons += self._spent(mirrored)
            reasons += self._left_out(mirrored)
            result = StepResult.WAIT if reasons else StepResult.ADVANCE
        if test is not None and result is StepResult.ADVANCE:
            margin = self._settings.margin
            reasons = [f"mirrored prompts {_show(test, 'mirrored')}, a loss of {margin:g} is excluded; live traffic is not attributed"]
        return StepJudgement(result=result, reasons=tuple(reasons), tests={} if test is None else {"mirrored": test})

    def _shares(self) -> dict[str, _Pair]:
        ratio = self._settings.latency_ratio
        return {"errors": _errors, "refused": _refusals, "slow": lambda evidence: _slow(evidence, ratio)}

    def _margin(self, name: str) -> float:
        return {"ratings": self._settings.margin, "slow": self._settings.slow_margin}.get(name, self._settings.error_margin)

    def _share_test(self, name: str, pairs: Sequence[tuple[Share, Share]]) -> SequentialTest | None:
        """Test a share over all steps. Each step has its own share of the champion, because that may change with time."""
        pairs = [(old, new) for old, new in pairs if old[1] and new[1]]
        if not pairs:
            return None
        margin = self._margin(name)
        estimate, error = share_difference(pairs)
        equal, harm = sum(share_evidence(old, new, margin) for old, new in pairs), harm_evidence(pairs, margin)
        found = {"estimate": estimate, "error": error, "margin": margin, "n": sum(old[1] + new[1] for old, new in pairs)}
        return SequentialTest(equal=equal, equal_at=self._equal, harm=harm, harm_at=self._harm, **found)

    def _mean_test(self, found: Difference) -> SequentialTest:
        margin = self._settings.margin
        equal = mean_evidence(found.estimate, found.variance, margin)
        limits = {"margin": margin, "equal": equal, "equal_at": self._equal, "harm": -equal, "harm_at": self._harm_of_means}
        return SequentialTest(estimate=found.estimate, error=math.sqrt(found.variance), n=found.ratings, people=found.people, **limits)

    def _few(self, name: str, test: SequentialTest | None) -> str | None:
        """Return why a test of a mean decides nothing yet, or None."""
        if test is None or test.people is None:
            return "no ratings on both sides" if name == "ratings" else "no pairs of two people"
        if name == "ratings":
            least = self._settings.min_people
            return None if test.people >= least else f"{test.people:.0f} of {least} effective people have rated"
        if test.n >= MIRROR_PAIRS and test.people >= MIRROR_PEOPLE:
            return None
        return f"{test.n} of at least {MIRROR_PAIRS} mirrored pairs, of {test.people:.0f} of at least {MIRROR_PEOPLE} effective people"

    def _harms(self, tests: dict[str, SequentialTest], shares: dict[str, list[tuple[Share, Share]]], fresh: Evidence) -> list[str]:
        harm = []
        for name in ("ratings", "mirrored"):
            mean = tests.get(name)
            if mean is not None and self._few(name, mean) is None and mean.harm >= mean.harm_at:
                harm.append(f"the {_WORDS[name]} is lower: {_show(mean, name)}")
        for name, pairs in shares.items():
            test, least = tests.get(name), self._settings.min_requests if name == "slow" else 1
            if test is None or sum(new[1] for _, new in pairs) < least:
                continue
            old, new = pairs[-1]
            here = harm_evidence([(old, new)], test.margin)
            if test.harm >= test.harm_at:
                harm.append(f"the {_WORDS[name]} is higher: {_show(test)}")
            elif here >= self._harm_of_step and new[1] >= least:
                told = f"{new[0]}/{new[1]} against {old[0]}/{old[1]}; evidence of harm {here:.1f} of {self._harm_of_step:.1f}"
                harm.append(f"the {_WORDS[name]} is higher at this step: {told}")
        slow = _slower(fresh, self._settings.latency_ratio, self._settings.min_requests)
        return [*harm, slow] if slow else harm

    def _missing(
        self, largest: bool, seconds: float, stratum: Stratum, tests: dict[str, SequentialTest], mirrored: Mirrored | None
    ) -> list[str]:
        settings, fresh, share = self._settings, stratum.fresh, stratum.share
        n = fresh.candidate.served
        missing = []
        if n < settings.min_requests:
            missing.append(f"{n} of {settings.min_requests} requests seen")
        if fresh.champion.served < settings.min_requests and (largest or share < 100):
            missing.append(f"{fresh.champion.served} of {settings.min_requests} requests of the champion seen for a comparison")
        missing += [f"the latency of {arm.tag} is not measured" for arm in (fresh.champion, fresh.candidate) if _unmeasured(arm)]
        missing += self._split(fresh, share)
        if seconds < settings.min_seconds:
            missing.append(f"{seconds:.0f} of {settings.min_seconds:g} s elapsed")
        if largest:
            missing += [*self._not_shown(tests, mirrored), *self._left_out(mirrored)]
        return missing

    def _left_out(self, mirrored: Mirrored | None) -> list[str]:
        """Return a reason to wait if too many mirrored prompts have no comparable pair, because these may be those of a loss."""
        if not self._settings.mirror or mirrored is None:
            return []
        if not mirrored.too_many_left_out(self._settings.margin):
            return []
        told = f"{mirrored.failed} without an answer of the champion, {mirrored.unscored} without comparable rewards"
        return [f"too many of {mirrored.asked} mirrored prompts are left out: {told}"]

    def _spent(self, mirrored: Mirrored | None) -> list[str]:
        """Return that no further prompts are asked, if so: an undecided step then only waits for its end."""
        most = self._settings.mirror
        if not most or mirrored is None or mirrored.asked < most:
            return []
        return [f"all {most} prompts of rollout.mirror are asked, so no further pairs come"]

    def _split(self, fresh: Evidence, share: float) -> list[str]:
        """Return a reason to wait if sessions or users are not split as the route says."""
        by_user = self._settings.unit == "user"
        old, new = (arm.users if by_user else arm.sessions for arm in (fresh.champion, fresh.candidate))
        if old is None or new is None:
            return ['the metrics do not count users, which rollout.unit = "user" needs']
        p = sample_ratio_p(old, new, share / 100)
        if p >= _SAMPLE_RATIO:
            return []
        told = f"{new} of {old + new} {self._settings.unit}s"
        return [f"the versions are not comparable: {told} on the candidate, although the route says {share:g} % (p {p:.1g})"]

    def _not_shown(self, tests: dict[str, SequentialTest], mirrored: Mirrored | None) -> list[str]:
        """Return what is not shown yet at the step that decides."""
        settings, missing, decides = self._settings, [], self._decides
        mean = tests.get(decides)
        few = self._few(decides, mean)
        if few is not None and mean is not None:
            missing.append(few)
        elif mean is None or mean.equal < mean.equal_at:
            missing.append(f"non-inferiority within {settings.margin:g} is not shown yet: {few or _show(tests[decides], decides)}")
        missing += self._spent(mirrored) if missing else []
        for name in ("errors", "slow"):
            test = tests.get(name)
            if test is None:
                missing.append(f"the {_WORDS[name]} is not known yet")
            elif test.equal < test.equal_at:
                missing.append(f"an increase of the {_WORDS[name]} by {test.margin:g} is not excluded yet: {_show(test)}")
        return missing

    @property
    def _decides(self) -> str:
        """Name of the test that excludes a loss of `rollout.margin`."""
        return "mirrored" if self._settings.mirror else "ratings"

    def _summary(self, largest: bool, fresh: Evidence, tests: dict[str, SequentialTest]) -> list[str]:
        old, new = fresh.champion, fresh.candidate
        errors = f"errors {new.errors}/{new.served} against {old.errors}/{old.served}"
        if new.refused or old.refused:
            errors += f"; refused {new.refused}/{new.requests} against {old.refused}/{old.requests}"
        if new.cut or old.cut:
            errors += f"; cut at the limit of tokens {new.cut}/{new.served} against {old.cut}/{old.served}"
        if not largest:
            return [errors]
        name = self._decides
        shown = f"{'mirrored prompts' if self._settings.mirror else name} {_show(tests[name], name)}"
        return [f"{errors}; {shown}, a loss of {self._settings.margin:g} is excluded"]


_INTERVALS = {"ratings": "quality", "errors": "errors", "refused": "refusals"}
"""Test -> field of the judgement with its interval."""


def _flaw(seconds: float, strata: Sequence[Stratum]) -> str | None:
    """Return why the evidence does not belong to this rollout and step, or None."""
    fresh = strata[-1].fresh
    tags = {(one.champion.tag, one.candidate.tag) for stratum in strata for one in (stratum.fresh, stratum.mature)}
    if len(tags) > 1:
        return "the evidence for errors and the evidence for quality name other versions, or steps do"
    covered = (fresh.until - fresh.since).total_seconds()
    if abs(covered - seconds) > _SECONDS:
        return f"the evidence covers {covered:.0f} s, but the step is {seconds:.0f} s old"
    if any(one.mature.since != one.fresh.since or one.mature.until > one.fresh.until for one in strata):
        return "the evidence for quality is from another time than the evidence for errors"
    if any(later.fresh.since < earlier.fresh.until for earlier, later in pairwise(strata)):
        return "the evidence of two steps overlaps"
    return None


def _errors(evidence: Evidence) -> tuple[Share, Share]:
    old, new = evidence.champion, evidence.candidate
    return (old.errors, old.served), (new.errors, new.served)


def _refusals(evidence: Evidence) -> tuple[Share, Share]:
    old, new = evidence.champion, evidence.candidate
    return (old.refused, old.requests), (new.refused, new.requests)


def _slow(evidence: Evidence, ratio: float) -> tuple[Share, Share]:
    """Return the slow answers of both versions: above `ratio` times the champion's 95th percentile. No trials if that is unknown."""
    old, new = evidence.champion, evidence.candidate
    answers = sum(n for _, n in old.latencies)
    if answers < _LEAST_FOR_P95 or old.latency_p95_ms is None:
        return (0, 0), (0, 0)
    limit = latency_bucket(ratio * old.latency_p95_ms)
    return _above(old, limit), _above(new, limit)


def _above(arm: Arm, bucket: int) -> Share:
    return sum(n for at, n in arm.latencies if at > bucket), sum(n for _, n in arm.latencies)


def _unmeasured(arm: Arm) -> bool:
    """Whether an arm has answers but no latency. One answer is not enough for percentiles."""
    return arm.served - arm.errors > 1 and (arm.latency_p50_ms is None or not arm.latencies)


def _slower(fresh: Evidence, ratio: float, enough: int) -> str | None:
    """Return a reason if the candidate as a whole is slower by more than `ratio`, otherwise None.

    Both the median and the 95th percentile must exceed the ratio. Single slow answers are tested by their share.
    """
    old, new = fresh.champion, fresh.candidate
    if min(old.served, new.served) < enough:
        return None
    pairs = [(new.latency_p50_ms, old.latency_p50_ms), (new.latency_p95_ms, old.latency_p95_ms)]
    ratios = [a / b for a, b in pairs if a is not None and b]
    if len(ratios) < 2 or min(ratios) <= ratio:
        return None
    return f"the candidate is slower: median ×{ratios[0]:.2f}, p95 ×{ratios[1]:.2f}, more than ×{ratio:g}"


def _interval(test: SequentialTest) -> Interval:
    half = _QUANTILE * test.error
    n = test.n if test.people is None else round(test.people)
    return Interval(estimate=test.estimate, low=test.estimate - half, high=test.estimate + half, level=_LEVEL, n=n)


def _show(test: SequentialTest, name: str = "") -> str:
    """Show a test in words: its estimate with the standard error, its size, and its evidence beside the limits."""
    unit = "pairs" if name == "mirrored" else "ratings"
    size = f"{test.n} requests" if test.people is None else f"{test.n} {unit}, {test.people:.0f} effective people"
    limits = f"evidence of equality {test.equal:.1f} of {test.equal_at:.1f}, of harm {test.harm:.1f} of {test.harm_at:.1f}"
    return f"{test.estimate:+.3f} ± {test.error:.3f} ({size}; {limits})"
