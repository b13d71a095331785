"""The gate's rules, pure: an EvalReport in, pass / fail / inconclusive out. Missing evidence never passes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from contracts.evaluation import CheckResult, Comparison, EvalReport, Interval, Result
from contracts.loop import GateSettings
from contracts.ports import Check


class Coverage:
    """Enough pairs of answers, and few failures on either side."""

    name = "coverage"

    def __init__(self, settings: GateSettings) -> None:
        self._settings = settings

    def check(self, report: EvalReport) -> CheckResult:
        pairs, asked = report.answered_by_both, report.asked
        if pairs > asked:
            return _result(self, Result.INCONCLUSIVE, f"the report contradicts itself: {pairs} answered of {asked} asked")
        if pairs < self._settings.min_prompts:
            return _result(self, Result.INCONCLUSIVE, f"{pairs} prompts answered by both, {self._settings.min_prompts} needed")
        failures = {side: sum(n for key, n in report.failures.items() if key.startswith(f"{side}:")) for side in ("champion", "candidate")}
        worst = max(failures.values()) / asked if asked else 1.0
        if worst > self._settings.max_failures:
            said = ", ".join(f"{side} {n}" for side, n in failures.items())
            return _result(self, Result.INCONCLUSIVE, f"unanswered of {asked}: {said}; more than {self._settings.max_failures:.0%}")
        return _result(self, Result.PASS, f"{pairs} of {asked} prompts answered by both")


class Quality:
    """The whole interval of the paired difference lies above the effect that the loop file asks for."""

    name = "quality"

    def __init__(self, settings: GateSettings) -> None:
        self._settings = settings

    def check(self, report: EvalReport) -> CheckResult:
        overall = _find(report, "overall")
        if overall is None:
            return _result(self, Result.INCONCLUSIVE, "the report holds no overall comparison")
        said, wanted, needed = _show(overall), self._settings.min_effect, self._settings.min_prompts
        flaw = _flaw([c for c in report.comparisons if c.name == "overall"])
        if flaw or overall.n < needed:
            return _result(self, Result.INCONCLUSIVE, flaw or f"{said}: {overall.n} different prompts, {needed} needed")
        if overall.difference.low > wanted:
            return _result(self, Result.PASS, said)
        if overall.difference.high < wanted or overall.difference.high <= 0:
            return _result(self, Result.FAIL, f"{said}: not above {wanted:+g}")
        return _result(self, Result.INCONCLUSIVE, f"{said}: the interval includes {wanted:+g}")


class Slices:
    """No slice loses more than the margin, as far as its prompts can tell: an average can hide a part that is ruined."""

    name = "slices"

    def __init__(self, settings: GateSettings) -> None:
        self._settings = settings

    def check(self, report: EvalReport) -> CheckResult:
        slices = [c for c in report.comparisons if c.name.startswith("slice:") and c.n >= self._settings.min_slice]
        flaw = _flaw(slices)
        if flaw:
            return _result(self, Result.INCONCLUSIVE, flaw)
        lost = [c for c in slices if c.difference.high < -self._settings.slice_margin]
        if lost:
            lost.sort(key=lambda c: c.difference.estimate)
            more = f"; and {len(lost) - 3} more" if len(lost) > 3 else ""
            return _result(self, Result.FAIL, "; ".join(_show(c) for c in lost[:3]) + more)
        doubtful = [c for c in slices if c.difference.estimate < -self._settings.slice_margin]
        if doubtful:
            said = "; ".join(_show(c) for c in doubtful)
            return _result(self, Result.INCONCLUSIVE, f"it may lose more than {self._settings.slice_margin:g}: {said}")
        lower = sorted((c for c in slices if c.difference.estimate < 0), key=lambda c: c.difference.estimate)
        said = f"; lower, within the margin: {'; '.join(_show(c) for c in lower)}" if lower else ", none of them lower"
        return _result(
            self, Result.PASS, f"{len(slices)} slices judged{said}{self._undecided(slices)}{_too_small(report, self._settings.min_slice)}"
        )

    def _undecided(self, slices: Sequence[Comparison]) -> str:
        """Where a loss beyond the tolerance may hide: few prompts miss a small loss easily, and saying nothing would deny it."""
        tolerance = self._settings.slice_tolerance
        may = [c for c in slices if c.difference.low < -tolerance]
        if not may:
            return f"; a loss of more than {tolerance:g} is ruled out in all of them"
        said = ", ".join(f"{c.name} (n {c.n}, about {_prompts_for(c, tolerance)} would tell)" for c in may)
        return f"; a loss of more than {tolerance:g} cannot be ruled out in {said}"


class Agreement:
    """Golden set and holdout may not point in opposite directions: that is contradictory evidence."""

    name = "agreement"

    def check(self, report: EvalReport) -> CheckResult:
        golden, holdout = _find(report, "golden"), _find(report, "holdout")
        if golden is None or holdout is None:
            return _result(self, Result.PASS, "only one set of prompts, nothing to contradict it")
        said = f"{_show(golden)}; {_show(holdout)}"
        flaw = _flaw([c for c in report.comparisons if c.name in ("golden", "holdout")])
        if flaw:
            return _result(self, Result.INCONCLUSIVE, flaw)
        if _sign(golden.difference) * _sign(holdout.difference) < 0:
            return _result(self, Result.INCONCLUSIVE, f"they contradict each other: {said}")
        return _result(self, Result.PASS, said)


class Length:
    """Answers neither explode nor vanish: a common way of gaming a reward."""

    name = "length"

    def __init__(self, settings: GateSettings) -> None:
        self._settings = settings

    def check(self, report: EvalReport) -> CheckResult:
        old, new = report.lengths.get("champion"), report.lengths.get("candidate")
        if old is None or new is None or not (math.isfinite(old) and math.isfinite(new) and min(old, new) >= 0):
            return _result(self, Result.INCONCLUSIVE, "no lengths were measured")
        ratio = (new + 1) / (old + 1)
        said = f"mean answer {new:.0f} characters against {old:.0f} (×{ratio:.2f})"
        if max(ratio, 1 / ratio) > self._settings.max_length_ratio:
            return _result(self, Result.FAIL, f"{said}, beyond ×{self._settings.max_length_ratio:g}")
        return _result(self, Result.PASS, said)


def checks(settings: GateSettings) -> tuple[Check, ...]:
    """All of them, in the order in which they are shown."""
    return (Coverage(settings), Quality(settings), Slices(settings), Agreement(), Length(settings))


def _result(check: Check, result: Result, reason: str) -> CheckResult:
    return CheckResult(check=check.name, result=result, reason=reason)


def _find(report: EvalReport, name: str) -> Comparison | None:
    return next((c for c in report.comparisons if c.name == name), None)


def _too_small(report: EvalReport, least: int) -> str:
    small = [f"{c.name} (n {c.n})" for c in report.comparisons if c.name.startswith("slice:") and c.n < least]
    return f"; too few prompts to judge {', '.join(small)}" if small else ""


def _prompts_for(comparison: Comparison, half: float) -> int:
    """How many prompts of the same spread make an interval of this half-width. An interval shrinks with their square root."""
    interval = comparison.difference
    return math.ceil(comparison.n * ((interval.high - interval.low) / (2 * half)) ** 2)


def _flaw(comparisons: Sequence[Comparison]) -> str | None:
    """Why these figures are no evidence: not numbers, an interval that does not hold its own estimate, or two of one name."""
    for c in comparisons:
        d = c.difference
        if not all(math.isfinite(value) for value in (c.champion, c.candidate, d.estimate, d.low, d.high)):
            return f"{_show(c)}: not all of its figures are numbers"
        if not d.low <= d.estimate <= d.high:
            return f"{_show(c)}: its interval does not hold its estimate"
    names = [c.name for c in comparisons]
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"the report holds {', '.join(twice)} twice" if twice else None


def _sign(interval: Interval) -> int:
    return 1 if interval.low > 0 else -1 if interval.high < 0 else 0


def _show(c: Comparison) -> str:
    d = c.difference
    return f"{c.name} {c.champion:.3f} → {c.candidate:.3f} ({d.estimate:+.3f}, {d.low:+.3f} to {d.high:+.3f}, n {c.n})"
