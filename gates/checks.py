"""Checks of the gate. Each maps an `EvalReport` to pass, fail or inconclusive, without side effects. Missing evidence never passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from contracts.evaluation import UNLIKE, CheckResult, Comparison, EvalReport, Interval, Result
from contracts.loop import GateSettings
from contracts.ports import Check

SHOWN = 12
"""Maximum number of slices with figures in a reason. Further slices are listed by name."""


class Coverage:
    """Checks that enough prompts have comparable answers and that few requests failed.

    The result is pass or inconclusive, never fail.
    """

    name = "coverage"

    def __init__(self, settings: GateSettings) -> None:
        self._settings = settings

    def check(self, report: EvalReport) -> CheckResult:
        """Judge the number of answered prompts and failed requests."""
        pairs, asked = report.answered_by_both, report.asked
        if pairs > asked:
            return _result(self, Result.INCONCLUSIVE, f"the report is inconsistent: {pairs} answered of {asked} asked")
        if pairs < self._settings.min_prompts:
            return _result(self, Result.INCONCLUSIVE, f"{pairs} prompts answered by both, {self._settings.min_prompts} needed")
        failures = {side: sum(n for key, n in report.failures.items() if key.startswith(f"{side}:")) for side in ("champion", "candidate")}
        worst = max(failures.values()) / asked if asked else 1.0
        if worst > self._settings.max_failures:
            text = ", ".join(f"{side} {n}" for side, n in failures.items())
            return _result(self, Result.INCONCLUSIVE, f"failed requests of {asked}: {text}; more than {self._settings.max_failures:.0%}")
        unlike = report.failures.get(UNLIKE, 0)
        if unlike > self._settings.max_unlike * asked:
            text = f"{unlike} of {asked} {UNLIKE}: a scorer was unavailable; more than {self._settings.max_unlike:.0%}"
            return _result(self, Result.INCONCLUSIVE, text)
        return _result(self, Result.PASS, f"{pairs} of {asked} prompts answered by both")


class Quality:
    """Checks that the interval of the paired reward difference is above the required effect (`gate.min_effect`).

    Passes if the whole interval is above it. Fails if the whole interval is below it, or if no improvement is possible (the upper bound
    is at most 0). Otherwise the result is inconclusive.
    """

    name = "quality"

    def __init__(self, settings: GateSettings) -> None:
        self._settings = settings

    def check(self, report: EvalReport) -> CheckResult:
        """Judge the overall comparison of the report."""
        overall = _find(report, "overall")
        if overall is None:
            return _result(self, Result.INCONCLUSIVE, "the report has no overall comparison")
        text, wanted, needed = _show(overall), self._settings.min_effect, self._settings.min_prompts
        flaw = _flaw([c for c in report.comparisons if c.name == "overall"])
        if flaw or overall.n < needed:
            return _result(self, Result.INCONCLUSIVE, flaw or f"{text}: {overall.n} distinct prompts, {needed} needed")
        if overall.difference.low > wanted:
            return _result(self, Result.PASS, text)
        if overall.difference.high < wanted or overall.difference.high <= 0:
            return _result(self, Result.FAIL, f"{text}: not above {wanted:+g}")
        return _result(self, Result.INCONCLUSIVE, f"{text}: the interval includes {wanted:+g}")


class Slices:
    """Checks that no slice loses more than the margin, because an overall average can hide a large loss in one slice.

    Fails if the whole interval of a slice is below the negative margin. The result is inconclusive if only an estimate is below it. A
    pass reports smaller losses, losses that cannot be ruled out, and slices that are too small to judge.
    """

    name = "slices"

    def __init__(self, settings: GateSettings) -> None:
        self._settings = settings

    def check(self, report: EvalReport) -> CheckResult:
        """Judge all slices with at least `gate.min_slice` prompts."""
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
            text = "; ".join(_show(c) for c in doubtful)
            return _result(self, Result.INCONCLUSIVE, f"a loss of more than {self._settings.slice_margin:g} is possible: {text}")
        return _result(self, Result.PASS, "; ".join([f"{len(slices)} slices judged", *self._losses(slices), *self._unjudged(report)]))

    def _losses(self, slices: Sequence[Comparison]) -> Iterator[str]:
        """Describe the losses within the margin: estimated and confirmed ones, and those that the intervals cannot rule out.

        A slice with few prompts can miss a small loss, so the reason must state this explicitly.
        """
        tolerance = self._settings.slice_tolerance
        lower = [c for c in slices if c.difference.estimate < 0]
        if lower:
            yield f"lower, within the margin: {_listed(lower, _show)}"
        shown = [c for c in slices if c.difference.high < -tolerance]
        if shown:
            yield f"a loss of more than {tolerance:g} is confirmed in {_listed(shown, lambda c: c.name)}"
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
    """Checks that golden set and holdout do not show significant differences in opposite directions.

    Opposite directions are contradictory evidence, so the result is inconclusive.
    """

    name = "agreement"

    def __init__(self, _settings: GateSettings) -> None:
        """Take the settings of the gate, as every check does; this check has none."""

    def check(self, report: EvalReport) -> CheckResult:
        """Judge whether golden set and holdout agree."""
        golden, holdout = _find(report, "golden"), _find(report, "holdout")
        if golden is None or holdout is None:
            return _result(self, Result.PASS, "only one prompt set has a comparison, so no contradiction is possible")
        text = f"{_show(golden)}; {_show(holdout)}"
        flaw = _flaw([c for c in report.comparisons if c.name in ("golden", "holdout")])
        if flaw:
            return _result(self, Result.INCONCLUSIVE, flaw)
        if _sign(golden.difference) * _sign(holdout.difference) < 0:
            return _result(self, Result.INCONCLUSIVE, f"golden set and holdout contradict each other: {text}")
        return _result(self, Result.PASS, text)


class Length:
    """Checks that the mean answer length does not change by more than `gate.max_length_ratio` in either direction.

    Very long or very short answers are a common form of reward hacking.
    """

    name = "length"

    def __init__(self, settings: GateSettings) -> None:
        self._settings = settings

    def check(self, report: EvalReport) -> CheckResult:
        """Judge the ratio of the mean answer lengths."""
        old, new = report.lengths.get("champion"), report.lengths.get("candidate")
        if old is None or new is None or not (math.isfinite(old) and math.isfinite(new) and min(old, new) >= 0):
            return _result(self, Result.INCONCLUSIVE, "the mean answer lengths are missing or invalid")
        ratio = (new + 1) / (old + 1)
        text = f"mean answer length {new:.0f} characters, champion {old:.0f} (×{ratio:.2f})"
        if max(ratio, 1 / ratio) > self._settings.max_length_ratio:
            return _result(self, Result.FAIL, f"{text}; the limit is ×{self._settings.max_length_ratio:g} in either direction")
        return _result(self, Result.PASS, text)


def checks(settings: GateSettings) -> tuple[Check, ...]:
    """Return the built-in checks of the gate, in display order."""
    return (Coverage(settings), Quality(settings), Slices(settings), Agreement(settings), Length(settings))


def _result(check: Check, result: Result, reason: str) -> CheckResult:
    return CheckResult(check=check.name, result=result, reason=reason)


def _find(report: EvalReport, name: str) -> Comparison | None:
    return next((c for c in report.comparisons if c.name == name), None)


def _listed(comparisons: Sequence[Comparison], show: Callable[[Comparison], str]) -> str:
    """List all comparisons, largest loss first. Only the first `SHOWN` include figures."""
    ranked = sorted(comparisons, key=lambda c: c.difference.estimate)
    names = ", ".join(c.name for c in ranked[SHOWN:])
    return "; ".join(show(c) for c in ranked[:SHOWN]) + (f"; and {names}" if names else "")


def _would_tell(comparison: Comparison, tolerance: float) -> str:
    """Describe how many prompts are needed for the interval to end at the tolerance.

    Assumes the same estimate and variance: the width of the interval decreases with the square root of the number of prompts.
    """
    interval = comparison.difference
    room = abs(interval.estimate + tolerance)
    half = (interval.high - interval.low) / 2
    about = f"about {math.ceil(comparison.n * (half / room) ** 2)}" if room * 1000 > half else "very many"
    return f"{comparison.name} (n {comparison.n}, {about} prompts needed)"


def _flaw(comparisons: Sequence[Comparison]) -> str | None:
    """Return why these figures are invalid, or None.

    Invalid are non-finite values, an interval that does not contain its estimate, and duplicate names.
    """
    for c in comparisons:
        d = c.difference
        if not all(math.isfinite(value) for value in (c.champion, c.candidate, d.estimate, d.low, d.high)):
            return f"{_show(c)}: some values are not finite numbers"
        if not d.low <= d.estimate <= d.high:
            return f"{_show(c)}: the interval does not contain the estimate"
    names = [c.name for c in comparisons]
    twice = sorted({name for name in names if names.count(name) > 1})
    return f"the report contains {', '.join(twice)} more than once" if twice else None


def _sign(interval: Interval) -> int:
    return 1 if interval.low > 0 else -1 if interval.high < 0 else 0


def _show(c: Comparison) -> str:
    d = c.difference
    return f"{c.name} {c.champion:.3f} → {c.candidate:.3f} ({d.estimate:+.3f}, {d.low:+.3f} to {d.high:+.3f}, n {c.n})"
