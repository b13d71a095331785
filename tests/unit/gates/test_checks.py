"""Tests of the gate's checks with good, bad and simulated evidence.

Missing, invalid or contradictory evidence never passes. Equal models pass rarely. A simulated regression is detected.
"""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.contracts.evaluation import Comparison, EvalReport, Interval, Result, verdict_of
from ratchet.contracts.ids import digest
from ratchet.contracts.loop import GateSettings
from ratchet.gates.checks import checks
from ratchet.gates.statistics import paired_interval
from tests.unit.gates.reports import GOOD, comparison, count, cut, report, swapped

SETTINGS = GateSettings(min_prompts=50, min_slice=10)


def verdict(given: EvalReport, settings: GateSettings = SETTINGS) -> Result:
    return verdict_of(tuple(check.check(given) for check in checks(settings)), digest("report")).result


def said(name: str, given: EvalReport) -> Result:
    return next(check.check(given).result for check in checks(SETTINGS) if check.name == name)


def test_good_evidence_passes() -> None:
    assert verdict(report()) is Result.PASS


def test_gate_passes_only_above_the_required_effect() -> None:
    assert said("quality", report(comparisons=swapped(comparison("overall", 0.0, 0.1)))) is Result.INCONCLUSIVE
    assert said("quality", report(comparisons=swapped(comparison("overall", -0.2, -0.1)))) is Result.FAIL
    assert said("slices", report(comparisons=swapped(comparison("slice:a", -0.4, -0.2)))) is Result.FAIL
    assert said("length", report(lengths={"champion": 100.0, "candidate": 1000.0})) is Result.FAIL


@pytest.mark.parametrize(
    ("champion", "candidate", "said_so"),
    [
        (0.02, 0.0, "cut at gate.max_tokens: 0.0% of the answers, champion 2.0% (n 200)"),
        (0.02, 0.06, "cut at gate.max_tokens: 6.0% of the answers, champion 2.0% (n 200)"),
        (0.02, 0.08, "more than 5% above the champion"),
        (1.0, 1.0, "no answer ends; check the end of turn of the chat template, or raise the limit"),
        (0.3, 0.3, "30.0% of the answers, champion 30.0%"),
    ],
)
def test_a_candidate_that_is_cut_more_often_or_always_is_held(champion: float, candidate: float, said_so: str) -> None:
    judged = next(check for check in checks(SETTINGS) if check.name == "cut").check(report(cut=cut(champion, candidate)))
    assert said_so in judged.reason
    held = candidate - champion > SETTINGS.max_cut or candidate == 1
    assert judged.result is (Result.INCONCLUSIVE if held else Result.PASS)


def test_without_knowing_how_answers_ended_nothing_passes() -> None:
    assert said("cut", report(cut=None)) is Result.INCONCLUSIVE


def test_an_estimate_that_is_not_the_difference_of_the_means_is_refused() -> None:
    wrong = comparison("overall", 0.05, 0.15).model_copy(update={"candidate": 0.62})
    with pytest.raises(ValueError, match=r"the estimate 0\.1 is not the difference of the means"):
        report(comparisons=(wrong, *GOOD[1:]))


def test_a_report_without_counts_is_refused() -> None:
    with pytest.raises(ValueError, match="do not add up"):
        report(counts=())


def test_a_failing_check_stays_failed_if_the_coverage_is_not_sufficient() -> None:
    few = report(comparisons=swapped(comparison("overall", -0.2, -0.1)), failures={"candidate:HTTP 500": 20})
    assert said("quality", few) is Result.FAIL
    assert said("coverage", few) is Result.INCONCLUSIVE


def test_small_slices_are_not_judged() -> None:
    assert verdict(report(comparisons=swapped(comparison("slice:a", -0.5, -0.3, n=9)))) is Result.PASS


def slices_said(*comparisons: Comparison) -> str:
    asked = max(200, *(c.n for c in comparisons)) if comparisons else 200
    given_report = report(comparisons=(*GOOD[:3], *comparisons), asked=asked, answered_by_both=asked)
    (judged,) = [c.check(given_report) for c in checks(SETTINGS) if c.name == "slices"]
    assert judged.result is Result.PASS
    return judged.reason


@given(low=st.floats(-0.09, 0.05), width=st.floats(0, 0.2), n=st.integers(1, 2000))
def test_reason_of_a_pass_states_the_possible_loss_of_every_slice(low: float, width: float, n: int) -> None:
    lost, high = SETTINGS.slice_tolerance, low + width
    parts = slices_said(comparison("slice:a", low, high, n=n)).split("; ")
    told = {
        words
        for words in ("lower, within", "is confirmed in", "cannot be ruled out", "too few")
        for part in parts
        if words in part and "slice:a" in part
    }
    if n < SETTINGS.min_slice:
        assert told == {"too few"}
        return
    assert ("lower, within" in told) == ((low + high) / 2 < 0)
    assert ("is confirmed in" in told) == (high < -lost)
    assert ("cannot be ruled out" in told) == (low < -lost <= high)
    assert ("a loss of more than 0.02 is ruled out in each" in parts) == (low >= -lost)


@pytest.mark.parametrize(
    ("low", "high", "n", "about"),
    [(-0.06, 0.06, 50, 450), (-0.04, 0.08, 100, 225), (-0.06, 0.0, 100, 900), (-0.1, 0.06, 100, "very many")],
)
def test_reason_states_how_many_prompts_are_needed(low: float, high: float, n: int, about: int | str) -> None:
    """The width of the interval is assumed to fall with the square root of the number of prompts.

    The number needed is the one at which an end of the interval reaches the tolerance.
    """
    said = re.search(r"slice:a \(n \d+, (?:about )?(.*) prompts needed", slices_said(comparison("slice:a", low, high, n=n)))
    assert said is not None
    assert said[1] == about if isinstance(about, str) else int(said[1]) == pytest.approx(about, abs=1)


def test_reason_with_many_slices_is_short_and_names_all_slices() -> None:
    reason = slices_said(*[comparison(f"slice:{number}", -0.05 - number / 10_000, 0.03, n=500) for number in range(60)])
    assert all(f"slice:{number}" in reason for number in range(60))
    assert reason.count(" → ") == 12
    assert reason.index("slice:59 ") < reason.index("slice:58 "), "slices are in order of their loss, largest first"


def test_reason_without_slices() -> None:
    assert slices_said() == "0 of 0 slices judged"


def test_verdict_without_checks_is_inconclusive() -> None:
    assert verdict_of((), digest("report")).result is Result.INCONCLUSIVE


numbers = st.floats(allow_nan=True, allow_infinity=True)


@given(low=numbers, high=numbers, estimate=numbers, old=numbers, new=numbers, n=st.integers(0, 300))
def test_only_a_finite_interval_above_zero_passes(low: float, high: float, estimate: float, old: float, new: float, n: int) -> None:
    try:
        given = report(
            comparisons=swapped(comparison("overall", low, high, n, estimate)), lengths={"champion": abs(old), "candidate": abs(new)}
        )
    except ValueError:
        return
    if verdict(given) is Result.PASS:
        assert 0 < low <= estimate <= high < math.inf
        assert n >= SETTINGS.min_prompts
        assert abs(new) + 1 <= SETTINGS.max_length_ratio * (abs(old) + 1)


def _simulated(draw: np.random.Generator, n: int, gain: float, slice_loss: float = 0.0) -> EvalReport:
    """A report on right and wrong answers, paired by prompt.

    A quarter of the prompts belong to slice b, in which the candidate may lose.
    """
    old = draw.random(n) < 0.6
    flips = draw.random(n)
    in_b = np.arange(n) % 4 == 0
    chance = np.where(in_b, gain - slice_loss, gain)
    new = np.where(flips < 0.15, draw.random(n) < 0.6, old)
    new = np.where(draw.random(n) < np.abs(chance), chance > 0, new)
    difference = new.astype(float) - old.astype(float)
    comparisons = []
    for name, rows in (("overall", slice(None)), ("holdout", slice(None)), ("slice:a", ~in_b), ("slice:b", in_b)):
        values = difference[rows]
        interval = paired_interval(list(values), SETTINGS.level)
        assert interval is not None
        comparisons.append(
            Comparison(name=name, n=len(values), champion=float(old[rows].mean()), candidate=float(new[rows].mean()), difference=interval)
        )
    counts = tuple(count(c.name, c.n) for c in comparisons if c.name != "overall")
    return report(asked=n, answered_by_both=n, comparisons=tuple(comparisons), counts=counts)


@pytest.mark.slow
def test_equal_models_pass_no_more_often_than_the_level_allows() -> None:
    draw = np.random.default_rng(1)
    passed = sum(verdict(_simulated(draw, 300, 0.0)) is Result.PASS for _ in range(1000))
    assert passed / 1000 <= 0.05


def test_simulated_regression_is_detected() -> None:
    draw = np.random.default_rng(2)
    results = [verdict(_simulated(draw, 400, -0.15)) for _ in range(100)]
    assert Result.PASS not in results
    assert results.count(Result.FAIL) >= 95


def test_regression_in_one_slice_is_detected_despite_a_good_average() -> None:
    draw = np.random.default_rng(3)
    results = [verdict(_simulated(draw, 800, 0.3, slice_loss=0.8)) for _ in range(50)]
    assert Result.PASS not in results


def test_simulated_gain_passes() -> None:
    draw = np.random.default_rng(4)
    assert sum(verdict(_simulated(draw, 400, 0.25)) is Result.PASS for _ in range(50)) >= 48


def test_gain_that_a_judge_sees_only_in_longer_answers_is_inconclusive() -> None:
    at_equal_length = Interval(estimate=0.01, low=-0.03, high=0.05, level=0.95, n=200)
    judged = next(check for check in checks(SETTINGS) if check.name == "length").check(report(length_adjusted=at_equal_length))
    assert judged.result is Result.INCONCLUSIVE
    assert "the gain may come from the length of the answers" in judged.reason
    shown = Interval(estimate=0.06, low=0.02, high=0.1, level=0.95, n=200)
    assert verdict(report(length_adjusted=shown)) is Result.PASS
