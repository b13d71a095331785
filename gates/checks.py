"""The gate's rules, pure: an EvalReport in, pass / fail / inconclusive out. Missing evidence never passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from contracts.evaluation import UNLIKE, CheckResult, Comparison, EvalReport, Interval, Result
from contracts.loop import GateSettings
from contracts.ports import Check

SHOWN = 12
"""Slices of which a reason gives figures; the others it names."""


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
        unlike = report.failures.get(UNLIKE, 0)
        if unlike > self._settings.max_unlike * asked:
            said = f"{unlike} of {asked} {UNLIKE}: a scorer was away; more than {self._settings.max_unlike:.0%}"
            return _result(self, Result.INCONCLUSIVE, said)
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
        return _result(self, Result.PASS, "; ".join([f"{len(slices)} slices judged", *self._losses(slices), *self._unjudged(report)]))

    def _losses(self, slices: Sequence[Comparison]) -> Iterator[str]:
        """What an average hides within the margin: losses that are there, and where one may hide. Few prompts miss a small loss easily, and
        saying nothing of it would deny it."""
        tolerance = self._settings.slice_tolerance
        lower = [c for c in slices if c.difference.estimate < 0]
        if lower:
            yield f"lower, within the margin: {_listed(lower, _show)}"
        shown = [c for c in slices if c.difference.high < -tolerance]
        if shown:
            yield f"beyond doubt more than {tolerance:g} lower: {_listed(shown, lambda c: c.name)}"
        may = [c for c in slices if c.difference.low < -tolerance <= c.difference.high]
        if may:
            yield f"a loss of more than {tolerance:g} cannot be ruled out in {_listed(may, lambda c: _would_tell(c, tolerance))}"
        elif slices and not shown:
            yield f"a loss of more than {tolerance:g} is ruled out in each"

    def _unjudged(self, report: EvalReport) -> Iterator[str]:
        small = [c for c in report.comparisons if c.name.startswith("slice:") and c.n < self._settings.min_slice]
        if small:
            yield f"too few prompts to judge {_listed(small, lambda c: f'{c.name} (n {c.n})')}"


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


def _listed(comparisons: Sequence[Comparison], show: Callable[[Comparison], str]) -> str:
    """All of them by name, the ones that lose most first; figures for the first dozen only."""
    ranked = sorted(comparisons, key=lambda c: c.difference.estimate)
    names = ", ".join(c.name for c in ranked[SHOWN:])
    return "; ".join(show(c) for c in ranked[:SHOWN]) + (f"; and {names}" if names else "")


def _would_tell(comparison: Comparison, tolerance: float) -> str:
    """With how many prompts of this spread the interval would end at the tolerance, if the estimate stays: it shrinks with their root."""
    interval = comparison.difference
    room = abs(interval.estimate + tolerance)
    half = (interval.high - interval.low) / 2
    about = f"about {math.ceil(comparison.n * (half / room) ** 2)}" if room * 1000 > half else "very many"
    return f"{comparison.name} (n {comparison.n}, {about} would tell)"


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
